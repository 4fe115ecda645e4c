/**
 * The event log when it has lost its beginning, when its answers get lost, when much is put into it, and when Redis goes
 * away (field cases A11, A13, A36, A37): what a client cannot be shown is said, and nothing is shown twice.
 */
import { readFileSync } from 'node:fs';
import { setTimeout as delay } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { Redis } from 'ioredis';
import { afterAll, beforeAll, describe, expect, inject, test } from 'vitest';
import { logKey } from '#src/events/keys.ts';
import { type Cluster, call, ended, follow, type Sent, send, startCluster, textOf } from '#tests/support/cluster.ts';
import { type ChatRequest, callTools, lastText, say } from '#tests/support/fake-model-script.ts';
import { dataOf, parseWithUnicodeLines } from '#tests/support/frames.ts';
import { startRedis, type TestRedis } from '#tests/support/redis.ts';
import type { TestServer } from '#tests/support/server.ts';
import { type SlowService, startSlowService } from '#tests/support/slow-service.ts';
import type { Frame, SseStream } from '#tests/support/sse.ts';
import { startTcpProxy, type TcpProxy } from '#tests/support/tcp-proxy.ts';
import { until } from '#tests/support/until.ts';

const graphFile = (name: string): string => fileURLToPath(new URL(`../support/graphs/${name}.ts`, import.meta.url));
const graphs = {
  chat: `${fileURLToPath(new URL('../../src/graphs/chat.ts', import.meta.url))}:graph`,
  flood: `${graphFile('flood')}:flood`,
  agent: `${graphFile('agents')}:agent`,
};
const words = (count: number): string => Array.from({ length: count }, (_, index) => `w${index}`).join(' ');

type Said = { readonly frames: readonly Pick<Frame, 'event' | 'id' | 'data'>[] };
const numbersOf = (stream: Said): number[] =>
  dataOf<{ data: { at: number } }>(stream as SseStream, 'custom').map(({ data }) => data.at);
const idsOf = ({ frames }: Said): number[] => frames.flatMap(({ id }) => (id === undefined ? [] : [Number(id)]));
function expectIncreasing(stream: Said): void {
  const ids = idsOf(stream);
  expect(ids).toEqual([...new Set(ids)].sort((x, y) => x - y));
}

/** By the last message: how many words, how large a tool's result in MB, or a plain answer. */
function script({ messages }: ChatRequest) {
  const [what, count] = lastText({ messages } as ChatRequest).split(' ');
  if (messages.at(-1)?.role === 'tool') return say(words(500));
  if (what === 'words') return say(words(Number(count)), { delayMs: 8 });
  if (what === 'slow') return say(words(Number(count)), { delayMs: 40 });
  return what === 'big' ? callTools([{ id: 'c0', name: 'big', args: { n: Number(count) } }]) : say('fine');
}

let cluster: Cluster;
let a: TestServer;
let b: TestServer;
let service: SlowService;
let redis: Redis;
let proxy: TcpProxy;

beforeAll(async () => {
  const redisUrl = inject('redisUrl');
  service = await startSlowService();
  redis = new Redis(redisUrl, { protocol: 2 });
  proxy = await startTcpProxy({ host: new URL(redisUrl).hostname, port: Number(new URL(redisUrl).port || 6379) });
  cluster = await startCluster({ size: 0, model: { script, strict: true }, server: { config: { graphs } } });
  // `a` executes; `b` only reads, and reaches Redis directly.
  a = await cluster.add({ env: { REDIS_URL: proxy.through(redisUrl) } });
  b = await cluster.add({ config: { roles: ['http'] } });
});
afterAll(async () => {
  redis?.disconnect();
  await Promise.all([cluster?.stop(), service?.close()]);
  await proxy?.close();
});

describe('a log that has lost its beginning', () => {
  const COUNT = 5_000;
  const small = (more: Record<string, unknown> = {}) => ({
    graph: 'flood',
    config: { configurable: { count: COUNT, bytes: 30, ...more } },
  });

  test('says so to whoever comes with an id it lacks, before it shows anything; others are not told', async () => {
    const sent = await send(a, 'flood', small());
    expect(await ended(a, sent.run_id, 40_000)).toMatchObject({ status: 'succeeded' });
    const whole = await follow(b, sent);
    await whole.closed;
    expect(numbersOf(whole)).toEqual(Array.from({ length: COUNT }, (_, at) => at));
    const ids = idsOf(whole);
    const kept = ids[3_000] as number;
    await redis.xtrim(logKey(sent.run_id), 'MINID', `0-0`);
    await redis.xtrim(logKey(sent.run_id), 'MINID', `1-${kept}`);
    for (const server of [a, b]) {
      for (const cursor of [undefined, ids[0], ids[1_500]]) {
        const rest = await follow(server, sent, cursor);
        await rest.closed;
        const events = rest.frames.map(({ event }) => event).filter((event) => event !== 'metadata');
        expect(events[0], `after ${cursor}`).toBe('resync_required');
        expect(events.filter((event) => event === 'resync_required')).toHaveLength(1);
        expect(idsOf(rest)).toEqual(ids.slice(3_000));
      }
      const after = await follow(server, sent, kept);
      await after.closed;
      expect(after.frames.map(({ event }) => event)).not.toContain('resync_required');
      expect(idsOf(after)).toEqual(ids.slice(3_001));
    }
  });

  test('a live reader that has fallen behind it is told, and goes on with what there is', async () => {
    const config = { configurable: { count: 900, bytes: 32 * 1024, url: `${service.url}/behind` } };
    const sent = await send(a, 'flood', { graph: 'flood', config });
    const response = await fetch(`${b.url}${sent.stream_url}`, { headers: { accept: 'text/event-stream' } });
    // It reads nothing, until all has been said and most of it is gone.
    await until(async () => (await redis.xlen(logKey(sent.run_id))) >= 900, {
      timeoutMs: 40_000,
      message: 'all to be in the log',
    });
    await redis.xtrim(logKey(sent.run_id), 'MAXLEN', 20);
    service.release('/behind');
    const raw = await response.text();
    const stream = { frames: parseWithUnicodeLines(raw) };
    const numbers = numbersOf(stream);
    const jump = numbers.findIndex((at, n) => n > 0 && at !== (numbers[n - 1] as number) + 1);
    expect(jump).toBeGreaterThan(0);
    const next = numbers[jump] as number;
    expect(numbers.slice(jump)).toEqual(Array.from({ length: 900 - next }, (_, n) => next + n));
    const told = stream.frames.findIndex(({ event }) => event === 'resync_required');
    const before = numbersOf({ frames: stream.frames.slice(0, told) });
    expect(before).toEqual(numbers.slice(0, jump));
    expect(stream.frames.at(-1)?.event).toBe('run_end');
  });
});

describe('answers of Redis that get lost', () => {
  test('again and again in one run: every event is there once, in order, for readers on both processes', async () => {
    const sent = await send(a, 'words 1000', { graph: 'chat' });
    const readers = await Promise.all([follow(a, sent), follow(b, sent)]);
    await until(() => textOf(readers[1]).length > 0, { timeoutMs: 30_000, message: 'some text' });
    let losses = 0;
    for (let n = 0; n < 20 && dataOf(readers[1], 'run_end').length === 0; n += 1) {
      const before = readers[1].frames.length;
      const lost = proxy.lostReplies;
      proxy.set({ kind: 'swallow-replies' });
      await until(() => proxy.lostReplies > lost, { timeoutMs: 20_000, message: 'a reply to be lost' });
      await delay((n * 37) % 50);
      // Connections that lost a reply are reset now.
      proxy.set({ kind: 'pass' });
      await until(() => readers[1].frames.length > before, { timeoutMs: 20_000, message: 'the run to go on' });
      losses += 1;
    }
    await Promise.all(readers.map(({ closed }) => closed));
    expect(losses).toBeGreaterThan(3);
    const whole = await follow(b, sent);
    await whole.closed;
    for (const reader of [...readers, whole]) {
      expectIncreasing(reader);
      expect(textOf(reader)).toBe(words(1_000));
      expect(dataOf(reader, 'resync_required')).toEqual([]);
      expect(dataOf(reader, 'run_end')).toMatchObject([{ status: 'succeeded' }]);
    }
    const entries = await redis.xrange(logKey(sent.run_id), '-', '+');
    expect(entries.map(([id]) => id)).toEqual(entries.map((_, n) => `1-${n}`));
    const { body } = await call<{ turns: unknown[] }>(b, 'GET', `/api/v1/threads/${sent.thread_id}/turns`);
    expect(body.turns).toMatchObject([{ answer: { content: words(1_000) } }]);
  });
});

/** What is really in use; null where the system does not say. */
function residentMb({ pid }: TestServer): number | null {
  try {
    return Number(/VmRSS:\s+(\d+) kB/.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1]) / 1024;
  } catch {
    return null;
  }
}

describe('a tool that returns 10 MB', () => {
  const MB = 1024 ** 2;
  const big = { graph: 'agent', config: { configurable: {} } };

  test('costs Redis no more than three times as much, and five readers at once little memory', async () => {
    const sent = await send(a, 'big 10', big);
    expect(await ended(a, sent.run_id, 40_000)).toMatchObject({ status: 'succeeded', error: null });
    const used = Number(await redis.call('MEMORY', 'USAGE', logKey(sent.run_id), 'SAMPLES', '0'));
    expect(used).toBeGreaterThan(5 * MB);
    expect(used).toBeLessThan(30 * MB);
    const before = residentMb(b);
    const readers = await Promise.all(Array.from({ length: 5 }, () => follow(b, sent)));
    let most = before ?? 0;
    const watch = setInterval(() => {
      most = Math.max(most, residentMb(b) ?? 0);
    }, 20);
    await Promise.all(readers.map(({ closed }) => closed));
    clearInterval(watch);
    for (const reader of readers) {
      expect(textOf(reader)).toBe(words(500));
      expect(dataOf<{ content: string }>(reader, 'tool_call_result')[0]?.content).toHaveLength(10 * MB);
    }
    // Shared by all readers: the text, its JSON, what is inflated and what is on its way to each socket.
    if (before !== null) expect(most - before).toBeLessThan(400);
  });

  test('beyond the limit of the log: the run goes on and succeeds, its readers are told to read the state', async () => {
    // Held still, so that it is this one that executes.
    a.kill('SIGSTOP');
    const tight = await cluster.add({ config: { events: { max_bytes: '4MB' } } });
    const sent = await send(tight, 'big 10', big);
    expect(await ended(tight, sent.run_id, 40_000)).toMatchObject({ status: 'succeeded', error: null });
    a.kill('SIGCONT');
    for (const server of [tight, b]) {
      const reader = await follow(server, sent);
      await reader.closed;
      expect(reader.frames.map(({ event }) => event).slice(-2)).toEqual(['resync_required', 'run_end']);
      expect(dataOf(reader, 'run_end')).toMatchObject([{ status: 'succeeded' }]);
    }
    const { body } = await call<{ turns: unknown[] }>(b, 'GET', `/api/v1/threads/${sent.thread_id}/turns`);
    expect(body.turns).toMatchObject([{ status: 'succeeded', answer: { content: words(500) } }]);
    await tight.stop();
  });
});

describe('Redis on a port of its own, with 20 readers on two processes', () => {
  let own: Cluster;
  let lonely: TestRedis;
  let cable: TcpProxy;

  beforeAll(async () => {
    lonely = await startRedis();
    cable = await startTcpProxy({ port: lonely.port });
    own = await startCluster({ size: 2, redisUrl: cable.through(lonely.url), model: { script, strict: true } });
  });
  afterAll(async () => {
    await own?.stop();
    await cable?.close();
    await lonely?.stop();
  });

  const FAULTS: [string, () => Promise<void>][] = [
    ['killed and started again, empty', () => lonely.restart()],
    [
      'ends every connection',
      async () => {
        const admin = new Redis(lonely.url, { protocol: 2 });
        await admin.call('CLIENT', 'KILL', 'TYPE', 'pubsub');
        await admin.call('CLIENT', 'KILL', 'TYPE', 'normal', 'SKIPME', 'yes');
        admin.disconnect();
      },
    ],
    [
      'not reachable for 5 s',
      async () => {
        cable.set({ kind: 'black-hole' });
        await delay(5_000);
        cable.set({ kind: 'pass' });
      },
    ],
  ];

  test('a run that ends while it is away: its log is whole when it is back, whoever reads it', async () => {
    const [x, y] = own.servers as [TestServer, TestServer];
    const sent = await send(x, 'slow 40');
    const reader = await follow(x, sent);
    await until(() => textOf(reader).includes('w5'), { message: 'some text' });
    cable.set({ kind: 'black-hole' });
    expect(await ended(x, sent.run_id)).toMatchObject({ status: 'succeeded' });
    await reader.closed;
    expect(dataOf(reader, 'run_end')).toMatchObject([{ status: 'succeeded' }]);
    cable.set({ kind: 'pass' });
    for (const server of [x, y]) {
      await until(
        async () => {
          const again = await follow(server, sent);
          await again.closed;
          expect(dataOf(again, 'run_end')).toMatchObject([{ status: 'succeeded' }]);
          if (dataOf(again, 'resync_required').length > 0) return false;
          expect(textOf(again)).toBe(words(40));
          return true;
        },
        { timeoutMs: 30_000, message: 'a replay without a hole' },
      );
    }
  });

  test.each(FAULTS)(
    '%s: readers go on, nothing is shown twice, what is missing is said, new runs start',
    async (_name, fault) => {
      const [x, y] = own.servers as [TestServer, TestServer];
      const sent: Sent = await send(x, 'slow 400');
      const readers = await Promise.all(Array.from({ length: 20 }, (_, n) => follow(n % 2 === 0 ? x : y, sent)));
      await until(() => readers.every((reader) => textOf(reader).includes('w10')), { message: 'all to be served' });
      await fault();
      const seenBefore = readers.map(({ frames }) => frames.length);
      await until(() => readers.every(({ frames }, n) => frames.length > (seenBefore[n] as number)), {
        timeoutMs: 20_000,
        message: 'all to be served again',
      });
      const another = await send(y, 'short');
      expect(await ended(x, another.run_id)).toMatchObject({ status: 'succeeded' });
      const other = await follow(x, another);
      await other.closed;
      expect(textOf(other)).toBe('fine');
      await Promise.all(readers.map(({ closed }) => closed));
      for (const reader of readers) {
        expectIncreasing(reader);
        expect(dataOf(reader, 'run_end')).toMatchObject([{ status: 'succeeded' }]);
        if (dataOf(reader, 'resync_required').length === 0) expect(textOf(reader)).toBe(words(400));
      }
      // Those on the process that executes miss nothing, whatever becomes of Redis.
      const complete = readers.filter((reader) => textOf(reader) === words(400));
      expect(complete.length).toBeGreaterThanOrEqual(10);
      for (const server of [x, y]) expect((await call(server, 'GET', '/readyz')).status).toBe(200);
    },
  );
});
