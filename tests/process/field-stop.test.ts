/** A stop stops: it reaches model calls and tools wherever they run, keeps what was said, and nothing is written after the end. */
import { fileURLToPath } from 'node:url';
import { Redis } from 'ioredis';
import pg from 'pg';
import { afterAll, beforeAll, describe, expect, inject, test } from 'vitest';
import { logKey } from '#src/events/keys.ts';
import { type Cluster, call, ended, follow, type Sent, send, startCluster, textOf } from '#tests/support/cluster.ts';
import type { ModelCall } from '#tests/support/fake-model.ts';
import { callTools, type Reply, say } from '#tests/support/fake-model-script.ts';
import { dataOf, spoken } from '#tests/support/frames.ts';
import type { TestServer } from '#tests/support/server.ts';
import { type ServiceCall, type SlowService, startSlowService } from '#tests/support/slow-service.ts';
import { until } from '#tests/support/until.ts';

let cluster: Cluster;
let a: TestServer;
let b: TestServer;
let service: SlowService;
let ledger: pg.Pool;
let redis: Redis;

beforeAll(async () => {
  const stoppable = fileURLToPath(new URL('../support/graphs/stoppable.ts', import.meta.url));
  const chat = fileURLToPath(new URL('../../src/graphs/chat.ts', import.meta.url));
  const graphs = { chat: `${chat}:graph`, working: `${stoppable}:working` };
  service = await startSlowService();
  cluster = await startCluster({ size: 2, model: { strict: true }, server: { config: { graphs } } });
  [a, b] = cluster.servers as [TestServer, TestServer];
  ledger = new pg.Pool({ connectionString: cluster.database.url, max: 2 });
  redis = new Redis(inject('redisUrl'), { protocol: 2 });
});
afterAll(async () => {
  redis?.disconnect();
  await ledger?.end();
  await Promise.all([cluster?.stop(), service?.close()]);
});

const now = () => performance.timeOrigin + performance.now();
const words = (count: number): string => Array.from({ length: count }, (_, index) => `w${index}`).join(' ');
const LONG = say(words(2_000), { delayMs: 30 });
const callTool = (name: string): Reply => callTools([{ id: 'c1', name, args: {} }]);

interface Turn {
  status: string;
  question: { content: unknown };
  answer: { content: string; partial: boolean; stream_id: string } | null;
}
async function lastTurn(server: TestServer, sent: Sent): Promise<Turn | undefined> {
  const { body } = await call<{ turns: Turn[] }>(server, 'GET', `/api/v1/threads/${sent.thread_id}/turns`);
  return body.turns.at(-1);
}

interface Traces {
  row: unknown[];
  messages: unknown[];
  checkpoints: unknown[];
  writes: unknown[];
  log: unknown[];
}

/** Everything a run can leave behind. */
async function traces({ run_id }: Pick<Sent, 'run_id'>): Promise<Traces> {
  const rows = async (text: string) => (await ledger.query(text, [run_id])).rows;
  return {
    row: await rows('select * from runs where id = $1'),
    messages: await rows('select * from messages where run_id = $1 order by seq'),
    checkpoints: await rows('select * from checkpoints where run_id = $1 order by seq'),
    writes: await rows('select * from checkpoint_writes where run_id = $1 order by checkpoint_id, task_id, idx'),
    log: await redis.xrange(logKey(run_id), '-', '+'),
  };
}
const NO_TRACES: Traces = { row: [], messages: [], checkpoints: [], writes: [], log: [] };

const PLACES = ['parent', 'subgraph'] as const;
const WORK = ['model', 'tool'] as const;
const LEVERS = ['cancel', 'cancel and wait', 'delete'] as const;
const CASES = PLACES.flatMap((place) => WORK.flatMap((work) => LEVERS.map((lever) => [lever, work, place] as const)));

async function pull(lever: (typeof LEVERS)[number], sent: Sent): Promise<void> {
  const thread = `/api/v1/threads/${sent.thread_id}`;
  if (lever === 'delete') {
    expect(await call(b, 'DELETE', `${thread}?force=true`)).toMatchObject({ status: 204 });
    return;
  }
  if (lever === 'cancel') {
    expect(await call(b, 'POST', `${thread}/cancel`)).toMatchObject({ status: 200 });
    await ended(a, sent.run_id);
    return;
  }
  const answer = await call(b, 'POST', `${thread}/cancel?wait=true`);
  expect(answer).toMatchObject({ status: 200, body: { outcome: 'stopped', status: 'cancelled' } });
  const { rows } = await ledger.query('select status from runs where id = $1', [sent.run_id]);
  expect(rows).toEqual([{ status: 'cancelled' }]);
}

/** Starts a run and waits until its work has begun; the work is a call of the service under `/key`, or of the model. */
async function begun(
  work: string,
  place: string,
  key: string,
): Promise<{ sent: Sent; left: () => number | null | undefined }> {
  cluster.model.setScript(work === 'model' ? LONG : callTool(work === 'tool' ? 'heeding' : work));
  const models = cluster.model.calls.length;
  const config = { configurable: { place, url: `${service.url}/${key}` } };
  const sent = await send(a, key, { graph: 'working', config });
  const modelCall: ModelCall = await cluster.model.waitForCall(models + 1);
  if (work === 'model') {
    const stream = await follow(b, sent);
    await stream.waitFor(({ event }) => event === 'message_chunk');
    stream.close();
    return { sent, left: () => modelCall.abortedAt };
  }
  const serviceCall: ServiceCall = await until(() => service.calls.find(({ path }) => path === `/${key}`), {
    message: 'the tool to call',
  });
  return { sent, left: () => serviceCall.leftAt };
}

describe('every lever reaches what runs, from the other process, within a second', () => {
  test.each(CASES)('%s, in a %s call, in the %s', async (lever, work, place) => {
    const key = `${lever} ${work} ${place}`.replaceAll(' ', '-');
    const { sent, left } = await begun(work, place, key);
    const readers = await Promise.all([follow(a, sent), follow(b, sent)]);
    const pulledAt = now();
    await pull(lever, sent);
    const leftAt = await until(left, { timeoutMs: 2_000, message: 'the call to be given up' });
    expect(leftAt - pulledAt).toBeLessThan(1_000);
    for (const reader of readers) {
      await reader.closed;
      expect(reader.frames.at(-1)?.event).toBe('run_end');
      expect(dataOf(reader, 'run_end')).toMatchObject([{ status: 'cancelled' }]);
    }
    if (lever !== 'delete') return;
    expect(await call(a, 'GET', `/api/v1/threads/${sent.thread_id}`)).toMatchObject({ status: 404 });
    expect(await traces(sent)).toEqual(NO_TRACES);
  });

  test('and no run went on afterwards', () => {
    expect(service.calls.filter(({ path }) => path.endsWith('/afterwards'))).toEqual([]);
  });
});

describe('a tool that does not heed the stop', () => {
  test.each(PLACES)('does not hold up the end, and what it does later leaves no trace (%s)', async (place) => {
    const key = `deaf-${place}`;
    const { sent } = await begun('deaf', place, key);
    const stream = await follow(b, sent);
    const stoppedMs = performance.now();
    await pull('cancel and wait', sent);
    await stream.closed;
    expect(performance.now() - stoppedMs).toBeLessThan(3_000);
    expect(dataOf(stream, 'run_end')).toMatchObject([{ status: 'cancelled' }]);
    const atTheEnd = await traces(sent);
    service.release(`/${key}`);
    await until(() => service.calls.find(({ path, answered }) => path === `/${key}` && answered), {
      message: 'its answer',
    });
    // The next turn, which runs after the tool has come back in the same process, is not touched by it either.
    service.release(`/${key}/afterwards`);
    cluster.model.setScript(say('next'));
    const config = { configurable: { place, url: `${service.url}/${key}` } };
    const next = await send(a, 'go on', { graph: 'working', config }, sent.thread_id);
    const after = await follow(a, next);
    await after.closed;
    expect(dataOf(after, 'run_end')).toMatchObject([{ status: 'succeeded' }]);
    expect(dataOf(after, 'custom')).toEqual([]);
    expect(await traces(sent)).toEqual(atTheEnd);
  });

  test('nor when its thread is deleted under it', async () => {
    const { sent } = await begun('deaf', 'parent', 'deaf-deleted');
    await pull('delete', sent);
    service.release('/deaf-deleted');
    await until(() => service.calls.find(({ path, answered }) => path === '/deaf-deleted' && answered), {
      message: 'its answer',
    });
    // Another run on the same process passes through everything the tool could still do.
    cluster.model.setScript(say('fine'));
    expect(await ended(a, (await send(a, 'after it')).run_id)).toMatchObject({ status: 'succeeded' });
    expect(await traces(sent)).toEqual(NO_TRACES);
  });
});

describe('what was said before the stop', () => {
  test('stays, under the id it was streamed with; the next turn is valid and tells the model once', async () => {
    cluster.model.setScript(say(words(100), { delayMs: 20 }));
    const sent = await send(a, 'count');
    const stream = await follow(b, sent);
    await until(() => textOf(stream).includes('w50'), { message: 'token 50' });
    await call(b, 'POST', `/api/v1/threads/${sent.thread_id}/cancel`);
    await stream.closed;
    const [[id, text] = ['', '']] = spoken(stream, 'text');
    expect(text.length).toBeGreaterThan(words(50).length);
    expect(words(100).startsWith(text)).toBe(true);
    for (const server of [a, b]) {
      expect(await lastTurn(server, sent)).toMatchObject({
        status: 'cancelled',
        question: { content: 'count' },
        answer: { content: text, partial: true, stream_id: id },
      });
    }
    cluster.model.setScript(say('going on'));
    const next = await send(b, 'go on', {}, sent.thread_id);
    expect((await ended(a, next.run_id)).status).toBe('succeeded');
    const told = cluster.model.calls.at(-1)?.body.messages.map(({ role, content }) => [role, content]) ?? [];
    expect(told.slice(1)).toEqual([
      ['user', 'count'],
      ['assistant', text],
      ['user', 'go on'],
    ]);
  });

  test('in the call after a tool: the text after the tool is the answer, and the history stays valid', async () => {
    cluster.model.setScript((request) =>
      request.messages.at(-1)?.role === 'tool'
        ? say(words(500), { delayMs: 20 })
        : callTools([{ id: 'c1', name: 'calculate', args: { expression: '1+1' } }]),
    );
    const sent = await send(a, 'calculate');
    const stream = await follow(b, sent);
    await until(() => textOf(stream).includes('w5'), { message: 'some text' });
    await call(b, 'POST', `/api/v1/threads/${sent.thread_id}/cancel`);
    await stream.closed;
    expect(await lastTurn(a, sent)).toMatchObject({ answer: { content: textOf(stream), partial: true } });
    cluster.model.setScript(say('going on'));
    const next = await send(b, 'go on', {}, sent.thread_id);
    expect((await ended(a, next.run_id)).status).toBe('succeeded');
    const told = cluster.model.calls.at(-1)?.body.messages.map(({ role, content }) => [role, content]) ?? [];
    expect(told.slice(3)).toEqual([
      ['tool', '2'],
      ['assistant', textOf(stream)],
      ['user', 'go on'],
    ]);
  });

  test.each(PLACES)('in a tool: the call gets a result that says so, and the next turn works (%s)', async (place) => {
    const { sent } = await begun('tool', place, `history-${place}`);
    await pull('cancel and wait', sent);
    service.release(`/history-${place}/afterwards`);
    cluster.model.setScript(say('going on'));
    const config = { configurable: { place, url: `${service.url}/history-${place}` } };
    const next = await send(b, 'go on', { graph: 'working', config }, sent.thread_id);
    // The model refuses, as providers do, a call without its result.
    expect(await ended(a, next.run_id)).toMatchObject({ status: 'succeeded', error: null });
    const roles = cluster.model.calls.at(-1)?.body.messages.map(({ role }) => role) ?? [];
    expect(roles).toEqual(place === 'parent' ? ['user', 'assistant', 'tool', 'user'] : ['user', 'user']);
  });
});
