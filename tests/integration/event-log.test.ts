import { randomBytes, randomUUID } from 'node:crypto';
import { pino } from 'pino';
import { afterEach, describe, expect, inject, test } from 'vitest';
import { BEFORE_START } from '#src/events/cursor.ts';
import { logKey } from '#src/events/keys.ts';
import { type EventLog, LogUnavailable } from '#src/events/log.ts';
import { createMemoryLog } from '#src/events/memory-log.ts';
import { createRedisLog } from '#src/events/redis-log.ts';
import { createRedis, type RedisClients } from '#src/redis/clients.ts';
import { RedisUnavailable } from '#src/redis/deadline.ts';
import { startRedis } from '#tests/support/redis.ts';
import { startTcpProxy } from '#tests/support/tcp-proxy.ts';
import { until } from '#tests/support/until.ts';
import { eventLogContract } from './event-log.contract.ts';

const logger = pino({ level: 'silent' });
const cleanup: (() => Promise<unknown>)[] = [];
afterEach(async () => {
  for (const close of cleanup.splice(0).reverse()) await close();
});

async function openRedisLog(url: string): Promise<{ log: EventLog; redis: RedisClients }> {
  const redis = createRedis({ url, logger });
  const log = createRedisLog({ redis, logger });
  await until(() => log.ping().then(() => true), { message: 'Redis to answer' });
  return { log, redis };
}

async function privateRedis(settings: string[] = []) {
  const server = await startRedis(settings);
  cleanup.push(() => server.stop());
  return server;
}

async function opened(url: string) {
  const pair = await openRedisLog(url);
  cleanup.push(() => pair.redis.close());
  return pair;
}

const part = (n: number, text = 'x') => ({ cursor: n, payload: JSON.stringify({ type: 'graph.part', text, n }) });

eventLogContract('redis', async () => {
  const [one, two] = await Promise.all([openRedisLog(inject('redisUrl')), openRedisLog(inject('redisUrl'))]);
  return {
    log: one.log,
    other: two.log,
    async close() {
      for (const { log, redis } of [one, two]) {
        await log.close();
        await redis.close();
      }
    },
  };
});

eventLogContract('in-process', async () => {
  const log = createMemoryLog({ memoryLimitBytes: 64 * 1024 ** 2 });
  return { log, other: log, close: () => log.close() };
});

describe('in-process event log, full', () => {
  test('drops the logs of ended runs, the one that ended first goes first, then refuses', async () => {
    const log = createMemoryLog({ memoryLimitBytes: 100_000 });
    cleanup.push(() => log.close());
    const text = 'y'.repeat(20_000);
    const ids = ['live', 'second', 'first', 'third'];
    for (const runId of ids) await log.append([{ runId, entries: [part(0, text)] }]);
    for (const runId of ['first', 'second', 'third']) await log.expireAfter(runId, 60_000);
    const existing = async () => {
      const found = await Promise.all(ids.map(async (id) => ((await log.last(id)) === null ? [] : [id])));
      return found.flat();
    };
    await log.append([{ runId: 'live', entries: [part(1, text)] }]);
    expect(await existing()).toEqual(['live', 'second', 'third']);
    await log.append([{ runId: 'live', entries: [part(2, text)] }]);
    expect(await existing()).toEqual(['live', 'third']);
    await log.append([{ runId: 'live', entries: [part(3, text)] }]);
    expect(await existing()).toEqual(['live']);
    await expect(log.append([{ runId: 'live', entries: [part(4, text)] }])).rejects.toBeInstanceOf(LogUnavailable);
    expect((await log.read('live', BEFORE_START, 10)).entries).toHaveLength(4);
    await log.remove('live');
    expect(await log.append([{ runId: 'live', entries: [part(4, text)] }])).toEqual(['appended']);
  });
});

test('a time longer than a timer can wait is waited for all the same', async () => {
  const log = createMemoryLog({ memoryLimitBytes: 1e6 });
  cleanup.push(() => log.close());
  const warnings: string[] = [];
  const onWarning = (warning: Error) => warnings.push(warning.name);
  process.on('warning', onWarning);
  await log.append([{ runId: 'r', entries: [part(0)] }]);
  await log.expireAfter('r', 60 * 24 * 3600 * 1000);
  await new Promise((resolve) => setTimeout(resolve, 20));
  process.off('warning', onWarning);
  expect(warnings).toEqual([]);
  expect(await log.last('r')).not.toBeNull();
});

test('a log that is removed takes nothing more from whoever is late, and goes by itself', async () => {
  const { log, redis } = await opened(inject('redisUrl'));
  const runId = randomUUID();
  for (const _twice of [1, 2]) {
    await log.append([{ runId, entries: [part(0)] }]);
    await log.remove(runId);
    expect(await log.append([{ runId, entries: [part(1), part(2)] }])).toEqual(['fenced']);
    expect(await log.read(runId, BEFORE_START, 10)).toEqual({ exists: false, entries: [] });
    expect(await log.last(runId)).toBeNull();
    expect(await redis.commands.pttl(logKey(runId))).toBeGreaterThan(0);
  }
});

describe('Redis that misbehaves', () => {
  test('long payloads are stored compressed, and entries that are not ours are left out', async () => {
    const { log, redis } = await opened(inject('redisUrl'));
    const runId = randomUUID();
    const text = 'some words '.repeat(20_000);
    await log.append([{ runId, entries: [part(0, text)] }]);
    const [row] = await redis.commands.xrangeBuffer(logKey(runId), '-', '+');
    expect(row?.[1][1]?.length).toBeLessThan(text.length / 10);
    await redis.commands.xadd(logKey(runId), '1-1', 'e', 'neither JSON nor deflate');
    await log.append([{ runId, entries: [part(2)] }]);
    expect((await log.read(runId, BEFORE_START, 10)).entries).toEqual([part(0, text), part(2)]);
    await log.remove(runId);
  });

  test('an entry so large that Redis would cut off its subscribers is stored, not published', async () => {
    const { log, redis } = await opened(inject('redisUrl'));
    const runId = randomUUID();
    const seen: number[] = [];
    await log.subscribe(runId, ({ cursor }) => seen.push(cursor));
    const published: number[] = [];
    redis.subscriber.on('messageBuffer', (_, message: Buffer) => published.push(message.length));
    const noise = part(0, randomBytes(6 * 1024 ** 2).toString('base64'));
    expect(await log.append([{ runId, entries: [noise] }])).toEqual(['appended']);
    expect(await log.append([{ runId, entries: [part(1)] }])).toEqual(['appended']);
    await until(() => seen.length > 0, { message: 'the next entry to be published' });
    expect(seen).toEqual([1]);
    expect(Math.max(...published)).toBeLessThan(1_000);
    expect((await log.readOne(runId, 0))?.payload === noise.payload).toBe(true);
    await log.remove(runId);
  });

  test('out of memory is unavailable; what was refused is appended later, and a hole it left is no fence', async () => {
    const server = await privateRedis(['--maxmemory-policy', 'noeviction']);
    const { log, redis } = await opened(server.url);
    await log.append([{ runId: 'r', entries: [part(0)] }]);
    await redis.commands.call('CONFIG', 'SET', 'maxmemory', '1');
    const later = { runId: 'r', entries: [part(1), part(2)] };
    await expect(log.append([later])).rejects.toBeInstanceOf(LogUnavailable);
    await redis.commands.call('CONFIG', 'SET', 'maxmemory', '0');
    expect(await log.append([later])).toEqual(['appended']);
    // Memory came back in the middle of a pipeline: 3 was refused, 4 was not.
    await log.append([{ runId: 'r', entries: [part(4)] }]);
    expect(await log.append([{ runId: 'r', entries: [part(3), part(4), part(5)] }])).toEqual(['appended']);
  });

  test('a stopped Redis is unavailable within the deadline, others are refused at once, and it comes back', async () => {
    const server = await privateRedis();
    const { log } = await opened(server.url);
    await log.append([{ runId: 'r', entries: [part(0)] }]);
    await server.signal('SIGSTOP');
    const beganMs = performance.now();
    await expect(log.append([{ runId: 'r', entries: [part(1)] }])).rejects.toBeInstanceOf(LogUnavailable);
    expect(performance.now() - beganMs).toBeLessThan(1_000);
    const refusedMs = performance.now();
    await expect(log.read('r', BEFORE_START, 10)).rejects.toBeInstanceOf(LogUnavailable);
    expect(performance.now() - refusedMs).toBeLessThan(50);
    await server.signal('SIGCONT');
    await until(() => log.append([{ runId: 'r', entries: [part(1), part(2)] }]), { message: 'Redis to be back' });
    expect((await log.read('r', BEFORE_START, 10)).entries).toEqual([part(0), part(1), part(2)]);
  });

  test('a blocked event loop is not taken for a silent Redis', async () => {
    const { log } = await opened(inject('redisUrl'));
    const runId = randomUUID();
    const appended = log.append([{ runId, entries: [part(0)] }]);
    const untilMs = performance.now() + 800;
    await new Promise<void>((resolve) => setImmediate(resolve));
    while (performance.now() < untilMs);
    expect(await appended).toEqual(['appended']);
    await log.remove(runId);
  });

  test('a connection that never answers again is given up and made anew, subscriptions included', async () => {
    const proxy = await startTcpProxy({ port: Number(new URL(inject('redisUrl')).port) });
    cleanup.push(() => proxy.close());
    const direct = await opened(inject('redisUrl'));
    const { log } = await opened(proxy.through(inject('redisUrl')));
    const runId = randomUUID();
    const seen: number[] = [];
    await log.subscribe(runId, ({ cursor }) => seen.push(cursor));
    proxy.set({ kind: 'swallow-replies' });
    await expect(log.append([{ runId, entries: [part(0)] }])).rejects.toBeInstanceOf(LogUnavailable);
    proxy.set({ kind: 'pass' });
    await until(() => log.append([{ runId, entries: [part(0), part(1)] }]), { message: 'a new connection' });
    expect((await direct.log.read(runId, BEFORE_START, 10)).entries).toEqual([part(0), part(1)]);
    let n = 2;
    await until(
      async () => {
        await direct.log.append([{ runId, entries: [part(n++)] }]);
        return seen.some((cursor) => cursor >= 2);
      },
      { message: 'live entries on the new subscriber' },
    );
    await direct.log.remove(runId);
  });

  test('a half-open pair of connections is noticed by itself', async () => {
    const proxy = await startTcpProxy({ port: Number(new URL(inject('redisUrl')).port) });
    cleanup.push(() => proxy.close());
    const { log, redis } = await opened(proxy.through(inject('redisUrl')));
    proxy.set({ kind: 'black-hole' });
    const closed = Promise.all(
      [redis.commands, redis.subscriber].map((client) => new Promise((resolve) => client.once('close', resolve))),
    );
    await expect(log.ping()).rejects.toBeInstanceOf(LogUnavailable);
    // The subscriber only listens; its own regular ping finds out.
    await closed;
    proxy.set({ kind: 'pass' });
    await until(() => log.ping().then(() => true), { message: 'both connections to be back' });
  });

  test('Redis that is not there is unavailable, and the process lives', async () => {
    const server = await privateRedis();
    const { log, redis } = await opened(server.url);
    await server.signal('SIGKILL');
    await until(() => redis.commands.status !== 'ready', { message: 'the loss to be noticed' });
    for (const work of [
      () => log.append([{ runId: 'r', entries: [part(0)] }]),
      () => log.read('r', BEFORE_START, 1),
      () => log.readOne('r', 0),
      () => log.last('r'),
      () => log.subscribe('r', () => undefined),
      () => log.expireAfter('r', 1),
      () => log.remove('r'),
      () => log.ping(),
    ]) {
      await expect(work()).rejects.toBeInstanceOf(LogUnavailable);
    }
    await expect(redis.checkEvictionPolicy()).rejects.toBeInstanceOf(RedisUnavailable);
    await server.start();
    await until(() => log.ping().then(() => true), { message: 'Redis to be back' });
  });

  test('names the eviction policy, or says that it may not ask', async () => {
    const server = await privateRedis(['--maxmemory-policy', 'allkeys-lru']);
    const { redis } = await opened(server.url);
    expect(await redis.checkEvictionPolicy()).toBe('allkeys-lru');
    await redis.commands.call('ACL', 'SETUSER', 'plain', 'on', '>secret', '~*', '&*', '+@all', '-config');
    const asPlain = createRedis({ url: server.url.replace('redis://', 'redis://plain:secret@'), logger });
    cleanup.push(() => asPlain.close());
    expect(await asPlain.checkEvictionPolicy()).toBe('unknown');
  });
});

test('an append does not wait behind the pages of a crowd of readers', async () => {
  const { log } = await opened(inject('redisUrl'));
  const runId = randomUUID();
  const text = 'x'.repeat(60_000);
  const entries = Array.from({ length: 20 }, (_, n) => part(n, text));
  await log.append([{ runId, entries }]);
  const done: string[] = [];
  const reads = Array.from({ length: 60 }, async () => {
    expect((await log.read(runId, BEFORE_START, 20)).entries).toHaveLength(20);
    done.push('page');
  });
  const append = log.append([{ runId, entries: [part(20)] }]).then(() => done.push('append'));
  await Promise.all([...reads, append]);
  expect(done.indexOf('append')).toBeLessThan(20);
});
