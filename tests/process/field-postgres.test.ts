/** Postgres drops connections, goes away, comes back: the same processes go on, and nothing is answered with a 500. */
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import {
  type Cluster,
  call,
  ended,
  follow,
  type Sent,
  send,
  sendStreaming,
  startCluster,
  textOf,
} from '#tests/support/cluster.ts';
import { lastText, say } from '#tests/support/fake-model-script.ts';
import { dataOf, idsOf } from '#tests/support/frames.ts';
import { query, startPostgres, type TestPostgres } from '#tests/support/postgres.ts';
import type { TestServer } from '#tests/support/server.ts';
import { until } from '#tests/support/until.ts';

let postgres: TestPostgres;
let cluster: Cluster;
let a: TestServer;
let b: TestServer;

const words = (count: number): string => Array.from({ length: count }, (_, index) => `w${index}`).join(' ');
const answers = new Map([
  ['long', say(words(100), { delayMs: 30 })],
  ['short', say('short')],
]);

beforeAll(async () => {
  postgres = await startPostgres();
  const script = (request: Parameters<typeof lastText>[0]) => answers.get(lastText(request)) ?? say('?');
  cluster = await startCluster({ databaseUrl: postgres.url, model: { script }, server: { args: ['--migrate'] } });
  await cluster.add();
  [a, b] = cluster.servers as [TestServer, TestServer];
});
afterAll(async () => {
  await cluster?.stop();
  await postgres?.stop();
});

/** Ends every connection of the servers, those of one kind, or those that are idle. Returns the names of the ended. */
async function terminate(which: 'all' | 'idle'): Promise<string[]> {
  const { rows } = await query(
    postgres.url,
    `select application_name as name, pg_terminate_backend(pid) from pg_stat_activity
     where application_name like 'runledger %' and ($1 = 'all' or state = 'idle')`,
    [which],
  );
  return rows.map(({ name }) => String(name));
}

const alive = (): void => {
  for (const { pid } of [a, b]) expect(() => process.kill(pid, 0)).not.toThrow();
};

/** Statuses of what clients ask meanwhile; a refusal must say when to come again. */
async function ask(server: TestServer): Promise<number> {
  const asked = await Promise.all([
    call(server, 'GET', '/api/v1/threads'),
    call(server, 'POST', '/api/v1/threads', { title: 'x' }),
    call(server, 'POST', '/api/v1/threads/messages', { content: 'short' }),
    call(server, 'GET', '/livez'),
  ]);
  for (const answer of asked) {
    if (answer.status < 300) continue;
    expect(answer).toMatchObject({ status: 503, body: { code: 'UNAVAILABLE' } });
    expect(answer.headers.get('retry-after')).toMatch(/^\d+$/);
  }
  expect(asked[3]?.status).toBe(200);
  return asked.filter(({ status }) => status === 503).length;
}

describe('connections are terminated', () => {
  test.each(['idle', 'all'] as const)(
    '(%s), the liveness connection too: nothing is lost, nobody is taken for dead',
    async (which) => {
      const stream = await sendStreaming(a, 'long');
      await stream.waitFor(({ event }) => event === 'message_chunk');
      const ids = idsOf(stream);
      const reader = await follow(b, ids);
      for (let round = 0; round < 3; round += 1) {
        const names = await terminate(which);
        if (round === 0)
          expect(names).toEqual(expect.arrayContaining(['runledger worker', 'runledger app', 'runledger checkpoints']));
        const askedMs = performance.now();
        await until(async () => (await ask(a)) + (await ask(b)) === 0, {
          timeoutMs: 5_000,
          message: 'every request to be served',
        });
        expect(performance.now() - askedMs).toBeLessThan(5_000);
        alive();
      }
      await Promise.all([stream.closed, reader.closed]);
      for (const seen of [stream, reader]) {
        expect(textOf(seen)).toBe(words(100));
        expect(dataOf(seen, 'run_end')).toMatchObject([{ status: 'succeeded' }]);
        expect(dataOf(seen, 'metadata')).toMatchObject([{ takeover: 0 }]);
      }
      expect(await ended(b, ids.run_id)).toMatchObject({ status: 'succeeded' });
    },
  );

  test('under load: requests are served or told to come again', async () => {
    let over = false;
    const storm = (async () => {
      for (let round = 0; round < 15; round += 1) await terminate('all');
      over = true;
    })();
    let served = 0;
    while (!over) served += 8 - (await ask(a)) - (await ask(b));
    await storm;
    expect(served).toBeGreaterThan(0);
    alive();
    await everyRunEnds();
  });
});

async function everyRunEnds(): Promise<void> {
  const live = `select count(*)::int as count from runs where status in ('queued', 'running')`;
  await until(async () => (await query(postgres.url, live)).rows[0].count === 0, {
    timeoutMs: 15_000,
    message: 'every run to end',
  });
}

describe('the server goes away', () => {
  test.each(['fast', 'crash'] as const)(
    '(%s) and comes back: not ready, then ready within 5 s; runs end',
    async (how) => {
      const stream = await sendStreaming(a, 'long');
      await stream.waitFor(({ event }) => event === 'message_chunk');
      const restart = how === 'fast' ? postgres.restart('fast') : postgres.signal('SIGKILL');
      await until(async () => (await call(a, 'GET', '/readyz')).status === 503, {
        message: 'the server to be not ready',
      });
      await Promise.all([ask(a), ask(b)]);
      await restart;
      if (how === 'crash') await postgres.start();
      const backMs = performance.now();
      for (const server of [a, b]) {
        await until(async () => (await call(server, 'GET', '/readyz')).status === 200, {
          timeoutMs: 5_000,
          message: 'ready again',
        });
        await until(async () => (await ask(server)) === 0, { timeoutMs: 5_000, message: 'every request to be served' });
      }
      expect(performance.now() - backMs).toBeLessThan(5_000);
      alive();
      // The model was in mid answer and Postgres is back before it ends: the answer is kept.
      await stream.closed;
      expect(textOf(stream)).toBe(words(100));
      expect(dataOf(stream, 'run_end')).toMatchObject([{ status: 'succeeded' }]);
      expect(await ended(b, idsOf(stream).run_id)).toMatchObject({ status: 'succeeded' });
      await everyRunEnds();
    },
  );

  test('while a run ends: it ends when Postgres is back, once, and its reader is told then', async () => {
    const stream = await sendStreaming(a, 'long');
    const sent: Pick<Sent, 'thread_id' | 'run_id'> = await until(() => stream.frames.length > 3 && idsOf(stream), {
      message: 'the run to be in mid answer',
    });
    await postgres.signal('SIGKILL');
    await until(() => textOf(stream).includes('w99'), { message: 'the model to end its answer' });
    expect(dataOf(stream, 'run_end')).toEqual([]);
    await postgres.start();
    await stream.waitFor(({ event }) => event === 'run_end', { timeoutMs: 30_000 });
    expect(dataOf(stream, 'run_end')).toHaveLength(1);
    const run = await ended(b, sent.run_id);
    expect(dataOf(stream, 'run_end')).toMatchObject([{ status: run.status }]);
    // Either the end of the answer was stored, or the run says why it was not.
    if (run.status !== 'succeeded') expect(run.error?.code).toBe('STORAGE_UNAVAILABLE');
    alive();
    const next = await send(a, 'short', {}, sent.thread_id);
    expect(await ended(b, next.run_id)).toMatchObject({ status: 'succeeded' });
  });
});
