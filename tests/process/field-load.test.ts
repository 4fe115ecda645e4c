/**
 * More runs, readers and requests than there are database connections: they wait their turn. Nobody gets a 500, no run is
 * taken from its worker, and a thread can still be read.
 */
import pg from 'pg';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { type Answer, type Cluster, call, follow, type Sent, startCluster, textOf } from '#tests/support/cluster.ts';
import { readAll } from '#tests/support/crowd.ts';
import { callTools, say } from '#tests/support/fake-model-script.ts';
import { dataOf, parseWithUnicodeLines } from '#tests/support/frames.ts';
import type { TestServer } from '#tests/support/server.ts';
import { until } from '#tests/support/until.ts';

const RUNS = 200;
const READERS = 500;
/** Requests of readers who poll, each this long after the one before, whether that was answered or not. */
const POLL_EVERY_MS = 100;
const ANSWER = 'one two three four five six seven eight nine ten';

let cluster: Cluster;
let server: TestServer;
let ledger: pg.Pool;

beforeAll(async () => {
  const config = { postgres: { pool: 10, checkpoint_pool: 10, lock_timeout: '2s' } };
  cluster = await startCluster({ model: { strict: true }, server: { config } });
  [server] = cluster.servers as [TestServer];
  ledger = new pg.Pool({ connectionString: cluster.database.url, max: 1 });
  cluster.model.setScript((request) =>
    request.messages.at(-1)?.role === 'tool'
      ? say(ANSWER, { delayMs: 100 })
      : callTools([{ id: 'c1', name: 'calculate', args: { expression: '1+1' } }]),
  );
});
afterAll(async () => {
  await ledger?.end();
  await cluster?.stop();
});

/** A refusal for want of connections must say when to come again; it is heeded. */
async function admit(): Promise<Sent> {
  let answer: Answer<Sent> | null = null;
  await until(
    async () => {
      answer = await call<Sent>(server, 'POST', '/api/v1/threads/messages', { content: 'go' });
      if (answer.status === 202) return true;
      assertBusy(answer);
      return false;
    },
    { timeoutMs: 30_000, message: 'the message to be admitted' },
  );
  return (answer as unknown as Answer<Sent>).body;
}

function assertBusy(answer: Answer<unknown>): void {
  expect(answer).toMatchObject({ status: 503, body: { code: 'UNAVAILABLE' } });
  expect(answer.headers.get('retry-after')).toMatch(/^\d+$/);
}

interface Timings {
  thread: number[];
  live: number[];
}

/** What a list of conversations and an open one ask for; and, for comparison, an answer that needs no database. */
async function read(sent: Sent, tookMs: Timings): Promise<void> {
  const timed = async (into: number[], path: string) => {
    const startedMs = performance.now();
    const answer = await call(server, 'GET', path);
    into.push(performance.now() - startedMs);
    return answer;
  };
  const path = `/api/v1/threads/${sent.thread_id}`;
  const [thread] = await Promise.all([timed(tookMs.thread, path), timed(tookMs.live, '/livez')]);
  const others = await Promise.all([call(server, 'GET', `${path}/status`), call(server, 'GET', `${path}/turns`)]);
  for (const answer of [thread, ...others]) if (answer.status !== 200) assertBusy(answer);
}

const p95 = (values: number[]): number =>
  values.toSorted((x, y) => x - y)[Math.floor(values.length * 0.95)] ?? Number.NaN;

test('200 runs, 500 readers and constant reading on ten connections', async () => {
  const runs = await Promise.all(Array.from({ length: RUNS }, admit));
  const tookMs: Timings = { thread: [], live: [] };
  const reads: Promise<void>[] = [];
  const polling = setInterval(() => reads.push(read(runs[reads.length % RUNS] as Sent, tookMs)), POLL_EVERY_MS);
  const readings = await readAll(
    Array.from({ length: READERS }, (_, reader) => `${server.url}${runs[reader % RUNS]?.stream_url}`),
  );
  clearInterval(polling);
  await Promise.all(reads);

  for (const { status, complete, raw } of readings) {
    expect({ status, complete }).toEqual({ status: 200, complete: true });
    const stream = { frames: parseWithUnicodeLines(raw).map((frame) => ({ ...frame, atMs: 0 })) };
    expect(textOf(stream)).toBe(ANSWER);
    expect(dataOf(stream, 'resync_required')).toEqual([]);
    expect(dataOf(stream, 'run_end')).toMatchObject([{ status: 'succeeded' }]);
  }
  // No run changed hands: the lease was held all the time, although every pool was busy.
  const { rows } = await ledger.query('select status, epoch, count(*)::int as runs from runs group by status, epoch');
  expect(rows).toEqual([{ status: 'succeeded', epoch: 1, runs: RUNS }]);
  expect(server.logs()).not.toMatch(/lease not renewed|liveness connection dropped/);
  expect(server.logs()).not.toMatch(/"level":(50|60)/);
  // A second; on a machine that is busy with other things, where even an answer that needs nothing is late, in proportion.
  const limitMs = Math.max(1_000, 10 * p95(tookMs.live));
  expect(p95(tookMs.thread), `p95 of ${tookMs.thread.length} reads of a thread`).toBeLessThan(limitMs);
}, 180_000);

test('when every connection is stuck: 503 in bounded time, the lease is held, and then all goes on', async () => {
  const run = await admit();
  const reader = await follow(server, run);
  await reader.waitFor(({ event }) => event === 'message_chunk');
  const blocker = await ledger.connect();
  await blocker.query('begin');
  await blocker.query('lock table threads in access exclusive mode');
  const answers = await Promise.all(
    Array.from({ length: 30 }, () => call(server, 'GET', `/api/v1/threads/${run.thread_id}`)),
  );
  for (const answer of answers) assertBusy(answer);
  expect(await call(server, 'GET', '/livez')).toMatchObject({ status: 200 });
  // The model has said all by now; the run cannot end yet, and is not told to have ended.
  await until(() => textOf(reader) === ANSWER, { message: 'the whole answer' });
  expect(dataOf(reader, 'run_end')).toEqual([]);
  await blocker.query('rollback');
  blocker.release();
  await reader.waitFor(({ event }) => event === 'run_end');
  expect(dataOf(reader, 'run_end')).toMatchObject([{ status: 'succeeded' }]);
  expect(dataOf(reader, 'metadata')).toMatchObject([{ takeover: 0 }]);
  expect(await call(server, 'GET', `/api/v1/threads/${run.thread_id}`)).toMatchObject({ status: 200 });
  const { rows } = await ledger.query('select epoch from runs where id = $1', [run.run_id]);
  expect(rows).toEqual([{ epoch: 1 }]);
});
