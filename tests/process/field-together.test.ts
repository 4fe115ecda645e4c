/**
 * Several people, or one person in several windows, on two processes (field cases A07, A28): a stop through the process
 * that does not execute the run, twice; and many messages at once on one thread.
 */
import pg from 'pg';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type Cluster, call, ended, follow, type Sent, send, startCluster, textOf } from '#tests/support/cluster.ts';
import { lastText, say } from '#tests/support/fake-model-script.ts';
import { dataOf } from '#tests/support/frames.ts';
import type { TestServer } from '#tests/support/server.ts';
import { until } from '#tests/support/until.ts';

const RUNS = 20;
const words = (count: number): string => Array.from({ length: count }, (_, index) => `w${index}`).join(' ');

let cluster: Cluster;
let a: TestServer;
let b: TestServer;
let ledger: pg.Pool;

beforeAll(async () => {
  // It answers with what was said, at length when it was told to. A round's answer waits until all of its messages were sent.
  const script = (request: Parameters<typeof lastText>[0]) => {
    const said = lastText(request);
    if (said.startsWith('long')) return say(words(3_000), { delayMs: 25 });
    const answer = say(`answer to ${said}`, { delayMs: 10 });
    const [round] = /^round \d+(?= message)/.exec(said) ?? [];
    return round === undefined ? answer : { ...answer, steps: [{ do: 'gate', gate: round } as const, ...answer.steps] };
  };
  cluster = await startCluster({ size: 2, model: { strict: true, script } });
  [a, b] = cluster.servers as [TestServer, TestServer];
  ledger = new pg.Pool({ connectionString: cluster.database.url, max: 2 });
});
afterAll(async () => {
  await ledger?.end();
  await cluster?.stop();
});

/** The process that executes the run, and the other one. By the pid in the worker's row. */
async function sides(sent: Sent): Promise<{ owner: TestServer; other: TestServer }> {
  const pid = await until(
    async () => {
      const { rows } = await ledger.query<{ pid: number }>(
        `select w.pid from runs r join workers w on w.id = r.worker_id where r.id = $1 and r.status = 'running'`,
        [sent.run_id],
      );
      return rows[0]?.pid;
    },
    { message: 'the run to be claimed' },
  );
  return a.pid === pid ? { owner: a, other: b } : { owner: b, other: a };
}

describe('a stop through the process that does not execute the run', () => {
  test(`${RUNS} runs, each stopped twice at once and once more: always 2xx, and the next message is accepted`, async () => {
    const runs = await Promise.all(Array.from({ length: RUNS }, (_, n) => send(n % 2 === 0 ? a : b, `long ${n}`)));
    await Promise.all(
      runs.map(async (sent) => {
        const { owner, other } = await sides(sent);
        const stream = await follow(owner, sent);
        await stream.waitFor(({ event }) => event === 'message_chunk', { timeoutMs: 20_000 });
        const path = `/api/v1/threads/${sent.thread_id}/cancel`;
        const twice = await Promise.all([call(other, 'POST', path), call(other, 'POST', path)]);
        for (const answer of twice) expect(answer.status).toBe(200);
        const waited = await call<{ status: string | null }>(other, 'POST', `${path}?wait=true&run_id=${sent.run_id}`);
        expect(waited).toMatchObject({ status: 200, body: { run_id: sent.run_id, status: 'cancelled' } });
        const next = await send(other, 'short', {}, sent.thread_id);
        await stream.closed;
        expect(dataOf(stream, 'run_end')).toMatchObject([{ status: 'cancelled' }]);
        expect(await ended(owner, next.run_id, 30_000)).toMatchObject({ status: 'succeeded', error: null });
        expect(await call(other, 'POST', path)).toMatchObject({ status: 200, body: { outcome: 'idle' } });
      }),
    );
    const { rows } = await ledger.query(
      'select kind, status, epoch, count(*)::int as runs from runs group by 1, 2, 3 order by 2',
    );
    expect(rows).toEqual([
      { kind: 'message', status: 'cancelled', epoch: 1, runs: RUNS },
      { kind: 'message', status: 'succeeded', epoch: 1, runs: RUNS },
    ]);
  }, 120_000);
});

interface Turn {
  status: string;
  question: { content: string };
  answer: { content: string };
}

describe('twenty messages at once on one thread, on both processes', () => {
  test('one is accepted and 19 are told which run is in progress; the thread holds the accepted ones, in order', async () => {
    const first = await send(a, 'round 0');
    expect(await ended(a, first.run_id)).toMatchObject({ status: 'succeeded' });
    const expected = ['round 0'];
    for (let round = 1; round <= 5; round += 1) {
      const path = `/api/v1/threads/${first.thread_id}/messages`;
      const said = Array.from({ length: 20 }, (_, n) => `round ${round} message ${n}`);
      const answers = await Promise.all(
        said.map((content, n) =>
          call<{ run_id: string; code?: string }>(n % 2 === 0 ? a : b, 'POST', path, { content }),
        ),
      );
      cluster.model.release(`round ${round}`);
      const accepted = answers.flatMap(({ status }, n) => (status === 202 ? [n] : []));
      expect(accepted).toHaveLength(1);
      const [winner = 0] = accepted;
      const runId = answers[winner]?.body.run_id;
      for (const [n, answer] of answers.entries()) {
        if (n === winner) continue;
        expect(answer).toMatchObject({ status: 409, body: { code: 'RUN_IN_PROGRESS', run_id: runId } });
      }
      const stream = await follow(round % 2 === 0 ? a : b, { thread_id: first.thread_id, run_id: runId ?? '' });
      await stream.closed;
      expect(textOf(stream)).toBe(`answer to ${said[winner]}`);
      expected.push(said[winner] ?? '');
    }
    for (const server of [a, b]) {
      const { body } = await call<{ turns: Turn[] }>(server, 'GET', `/api/v1/threads/${first.thread_id}/turns`);
      expect(body.turns.map(({ question }) => question.content)).toEqual(expected);
      expect(body.turns.map(({ answer }) => answer.content)).toEqual(expected.map((text) => `answer to ${text}`));
    }
    const told = cluster.model.calls
      .at(-1)
      ?.body.messages.slice(1)
      .map(({ content }) => content);
    expect(told).toEqual(expected.flatMap((text) => [text, `answer to ${text}`]).slice(0, -1));
  });
});
