/** Redis stops, dies, comes back empty, or loses an answer, in the middle of a run. */
import { randomUUID } from 'node:crypto';
import { setTimeout as delay } from 'node:timers/promises';
import { afterEach, expect, test } from 'vitest';
import { BEFORE_START } from '#src/events/cursor.ts';
import type { SeenEntry } from '#src/events/hub.ts';
import type { RunWriter } from '#src/events/writer.ts';
import { heldBytes } from '#tests/support/held-bytes.ts';
import { startRedis, type TestRedis } from '#tests/support/redis.ts';
import { startTcpProxy } from '#tests/support/tcp-proxy.ts';
import { until } from '#tests/support/until.ts';
import {
  type EventNode,
  type NodeOptions,
  noFence,
  openNode,
  type Reading,
  startReading,
  textOf,
  turn,
  writeHead,
  writeText,
} from './event-node.ts';

const cleanup: (() => Promise<unknown>)[] = [];
afterEach(async () => {
  for (const close of cleanup.splice(0).reverse()) await close();
});

async function redisServer(settings: string[] = []): Promise<TestRedis> {
  const server = await startRedis(settings);
  cleanup.push(() => server.stop());
  return server;
}

async function node(url: string, options: NodeOptions = {}): Promise<EventNode> {
  const opened = await openNode(url, options);
  cleanup.push(() => opened.close());
  return opened;
}

async function read(from: EventNode, runId: string, after = BEFORE_START): Promise<Reading> {
  const reading = startReading(await from.hub.attach(runId, after), after);
  cleanup.push(() => reading.stop());
  return reading;
}

const atEnd = (reading: Reading, run: RunWriter) =>
  until(() => reading.last === run.given - 1, { timeoutMs: 15_000, message: 'the reader to be at the end' });

/** Writes a token about every 5 ms until stopped, as a model does. Returns all the text. */
function startModel(run: RunWriter): { stop(): Promise<string> } {
  let stopped = false;
  const m = writeHead(run);
  const written = (async () => {
    let text = '';
    for (let n = 0; !stopped; n += 1) {
      const token = `<${n}>`;
      text += token;
      writeText(run, m, token);
      await run.room();
      await delay(5);
    }
    return text;
  })();
  return {
    stop() {
      stopped = true;
      return written;
    },
  };
}

/** The longest time between two arrivals. */
function watchPauses(entries: readonly SeenEntry[]): { readonly longestMs: number; stop(): void } {
  let longestMs = 0;
  let count = entries.length;
  let sinceMs = performance.now();
  const timer = setInterval(() => {
    if (entries.length > count) sinceMs = performance.now();
    count = entries.length;
    longestMs = Math.max(longestMs, performance.now() - sinceMs);
  }, 5);
  return {
    get longestMs() {
      return longestMs;
    },
    stop: () => clearInterval(timer),
  };
}

test('Redis stopped for 2 s: local viewers pause half a second, then go on; remote ones get all later', async () => {
  const server = await redisServer();
  const [one, two] = [await node(server.url), await node(server.url)];
  const runId = randomUUID();
  const run = one.writer.open(runId, 1, noFence);
  const [local, remote] = [await read(one, runId), await read(two, runId)];
  const model = startModel(run);
  await until(() => remote.entries.length > 20, { message: 'the run to be under way' });
  const pauses = watchPauses(local.entries);
  await server.signal('SIGSTOP');
  await delay(2_000);
  const duringOutage = local.entries.length;
  const remoteDuring = remote.entries.length;
  await server.signal('SIGCONT');
  await until(() => remote.entries.length > duringOutage, { message: 'the remote viewer to catch up' });
  pauses.stop();
  const text = await model.stop();
  await run.flush(5_000);
  expect(duringOutage).toBeGreaterThan(remoteDuring + 50);
  expect(pauses.longestMs).toBeGreaterThan(400);
  expect(pauses.longestMs).toBeLessThan(1_200);
  for (const reading of [local, remote]) {
    await atEnd(reading, run);
    expect(reading.gaps).toBe(0);
    expect(textOf(reading.entries)).toBe(text);
  }
  const { entries } = await two.log.read(runId, BEFORE_START, 10_000);
  expect(entries.map(({ cursor }) => cursor)).toEqual(Array.from({ length: run.given }, (_, n) => n));
});

test('an append that is not answered detaches the run, also while the log itself still waits for the answer', async () => {
  const server = await redisServer();
  const one = await node(server.url, { appendDeadlineMs: 60_000, detachAfterMs: 200 });
  const runId = randomUUID();
  const run = one.writer.open(runId, 1, noFence);
  const local = await read(one, runId);
  await server.signal('SIGSTOP');
  const beganMs = performance.now();
  writeHead(run);
  // Long before the connection itself is given up.
  await until(() => local.entries.length === 1, { timeoutMs: 2_000, message: 'the local viewer to be served' });
  expect(performance.now() - beganMs).toBeGreaterThan(150);
  writeHead(run);
  await until(() => local.entries.length === 2, { timeoutMs: 150, message: 'the next one at once' });
  await server.signal('SIGCONT');
  await run.flush(5_000);
  expect((await one.log.read(runId, BEFORE_START, 10)).entries).toHaveLength(2);
});

test('Redis killed and started empty: the run goes on, local viewers miss nothing, remote ones nothing unsaid', async () => {
  const server = await redisServer();
  const [one, two] = [await node(server.url), await node(server.url)];
  const runId = randomUUID();
  const run = one.writer.open(runId, 1, noFence);
  const [local, remote] = [await read(one, runId), await read(two, runId)];
  const model = startModel(run);
  await until(() => remote.entries.length > 20, { message: 'the run to be under way' });
  await server.signal('SIGKILL');
  await delay(300);
  const during = local.entries.length;
  await until(() => local.entries.length > during + 20, { message: 'the local viewer to go on' });
  await server.start();
  await until(() => remote.last >= during, { message: 'the remote viewer to go on' });
  const text = await model.stop();
  await run.flush(5_000);
  await atEnd(local, run);
  await atEnd(remote, run);
  expect(local.gaps).toBe(0);
  expect(textOf(local.entries)).toBe(text);
  // What the dead Redis had acknowledged may be gone for the remote viewer; then a gap was said (startReading checks).
  if (remote.gaps === 0) expect(textOf(remote.entries)).toBe(text);
  expect(text.endsWith(textOf(remote.entries.slice(-10)))).toBe(true);
  // A reader from the start is told that the beginning is gone.
  const late = await read(await node(server.url), runId);
  await atEnd(late, run);
  expect(late.received[0]).toBe('gap');
  expect(late.gaps).toBe(1);
});

test('flushed in the middle: viewers that follow miss nothing, one from the start is told', async () => {
  const server = await redisServer();
  const [one, two] = [await node(server.url), await node(server.url)];
  const runId = randomUUID();
  const run = one.writer.open(runId, 1, noFence);
  const remote = await read(two, runId);
  const model = startModel(run);
  await until(() => remote.entries.length > 20, { message: 'the run to be under way' });
  await two.redis.commands.flushall();
  const flushedAt = remote.entries.length;
  await until(() => remote.entries.length > flushedAt + 20, { message: 'the viewer to go on' });
  const text = await model.stop();
  await run.flush(2_000);
  await atEnd(remote, run);
  expect(remote.gaps).toBe(0);
  expect(textOf(remote.entries)).toBe(text);
  const late = await read(one, runId);
  await atEnd(late, run);
  expect(late.received[0]).toBe('gap');
});

test('a log that is gone is lost for those who follow from elsewhere, not for viewers of a run executed here', async () => {
  const server = await redisServer();
  const options = { tailCheckMs: 100 };
  const [one, two] = [await node(server.url, options), await node(server.url, options)];
  const [here, elsewhere] = [randomUUID(), randomUUID()];
  const [run, foreign] = [one.writer.open(here, 1, noFence), two.writer.open(elsewhere, 1, noFence)];
  const [local, remote] = [await read(one, here), await read(one, elsewhere)];
  for (const writer of [run, foreign]) {
    writeHead(writer);
    await writer.flush(2_000);
  }
  await until(() => local.entries.length === 1 && remote.entries.length === 1, { message: 'both to be read' });
  await two.redis.commands.flushall();
  // Both are checked by the same process, the local one first.
  await until(() => remote.received.includes('lost'), { message: 'the remote log to be found lost' });
  expect(local.received).toHaveLength(1);
  writeHead(run);
  await run.flush(2_000);
  await atEnd(local, run);
  expect(local.gaps).toBe(0);
});

test('an outage longer than the ring: the oldest are given up, that is a gap, and the run never waits', async () => {
  const server = await redisServer();
  const bound = 64 * 1024;
  const one = await node(server.url, { unacknowledgedBytes: bound });
  const two = await node(server.url);
  const runId = randomUUID();
  const run = one.writer.open(runId, 1, noFence);
  const [local, remote] = [await read(one, runId), await read(two, runId)];
  run.write({ type: 'graph.part', mode: 'custom', ns: [], data: 'first' });
  await run.flush(2_000);
  await server.signal('SIGKILL');
  const beganMs = performance.now();
  const flushed = run.flush(60_000);
  for (let n = 0; n < 2_000; n += 1) {
    run.write({ type: 'graph.part', mode: 'custom', ns: [], data: `${n} ${'.'.repeat(500)}` });
    await run.room();
    if (n % 5 === 0) await turn();
  }
  // One Redis that is silent costs 500 ms once; after that nobody waits.
  expect(performance.now() - beganMs).toBeLessThan(10_000);
  await atEnd(local, run);
  expect(local.gaps).toBe(0);
  await flushed;
  await server.start();
  await run.flush(10_000);
  await atEnd(remote, run);
  expect(remote.gaps).toBe(1);
  const { entries } = await two.log.read(runId, BEFORE_START, 10_000);
  const bytes = entries.reduce((sum, { payload }) => sum + payload.length, 0);
  expect(bytes).toBeGreaterThan(bound / 2);
  expect(bytes).toBeLessThan(2 * bound);
  expect(run.fenced).toBe(false);
});

test('a run that is left while Redis is away: what the ring holds is sent when it is back, and then the end has a place', async () => {
  const server = await redisServer();
  const [one, two] = [await node(server.url), await node(server.url)];
  const runId = randomUUID();
  const run = one.writer.open(runId, 1, noFence);
  const [local, remote] = [await read(one, runId), await read(two, runId)];
  const model = startModel(run);
  await until(() => remote.entries.length > 10, { message: 'the run to be under way' });
  expect(one.writer.unsent(runId)).toBe(false);
  await server.signal('SIGSTOP');
  const shown = local.entries.length;
  await until(() => local.entries.length > shown + 20, { message: 'the run to go on without Redis' });
  const text = await model.stop();
  await run.flush(100);
  run.leave();
  const { given } = run;
  expect(one.writer.unsent(runId)).toBe(true);
  // Nothing is taken after that, and closing it too gives up nothing.
  run.write({ type: 'graph.part', mode: 'custom', ns: [], data: 'late' });
  run.close();
  expect(run.given).toBe(given);
  await server.signal('SIGCONT');
  await until(() => !one.writer.unsent(runId), { message: 'all to be sent' });
  for (const reading of [local, remote]) {
    await atEnd(reading, run);
    expect(reading.gaps).toBe(0);
    expect(textOf(reading.entries)).toBe(text);
  }
  const { entries } = await two.log.read(runId, BEFORE_START, 10_000);
  expect(entries.map(({ cursor }) => cursor)).toEqual(Array.from({ length: given }, (_, n) => n));
});

test('a run that is left while Redis is slow: the viewers of its process are shown all that comes before the end', async () => {
  const server = await redisServer();
  // Nothing is taken for an outage.
  const one = await node(server.url, { detachAfterMs: 60_000, appendDeadlineMs: 60_000 });
  const runId = randomUUID();
  const run = one.writer.open(runId, 1, noFence);
  const local = await read(one, runId);
  const m = writeHead(run);
  await run.flush(2_000);
  await atEnd(local, run);
  await server.signal('SIGSTOP');
  writeText(run, m, 'in flight');
  await turn();
  writeText(run, m, ' and behind it');
  await run.flush(100);
  expect(textOf(local.entries)).toBe('');
  run.leave();
  await atEnd(local, run);
  expect(textOf(local.entries)).toBe('in flight and behind it');
  expect(one.writer.unsent(runId)).toBe(true);
  await server.signal('SIGCONT');
  await until(() => !one.writer.unsent(runId), { message: 'all to be sent' });
  expect(local.entries).toHaveLength(run.given);
});

test('the answer to an append is lost: it is repeated, and nobody sees anything twice', async () => {
  const server = await redisServer();
  const proxy = await startTcpProxy({ port: server.port });
  cleanup.push(() => proxy.close());
  const one = await node(proxy.through(server.url));
  const two = await node(server.url);
  const runId = randomUUID();
  const run = one.writer.open(runId, 1, noFence);
  const [local, remote] = [await read(one, runId), await read(two, runId)];
  const model = startModel(run);
  await until(() => remote.entries.length > 10, { message: 'the run to be under way' });
  for (let round = 0; round < 3; round += 1) {
    const before = remote.entries.length;
    proxy.set({ kind: 'swallow-replies' });
    await delay(100);
    proxy.set({ kind: 'pass' });
    await until(() => remote.entries.length > before + 20, { message: 'the run to go on in the log' });
  }
  const text = await model.stop();
  await run.flush(5_000);
  for (const reading of [local, remote]) {
    await atEnd(reading, run);
    expect(reading.gaps).toBe(0);
    expect(textOf(reading.entries)).toBe(text);
  }
  expect(run.fenced).toBe(false);
  const { entries } = await two.log.read(runId, BEFORE_START, 10_000);
  expect(entries.map(({ cursor }) => cursor)).toEqual(Array.from({ length: run.given }, (_, n) => n));
  // Redis had acted on appends whose answer was lost, and refused their repetition.
  const stats = String(await two.redis.commands.info('commandstats'));
  expect(Number(/cmdstat_xadd:.*failed_calls=(\d+)/.exec(stats)?.[1])).toBeGreaterThan(0);
});

test('a run begun while Redis is away: its local viewer is served at once, others when it is there', async () => {
  const server = await redisServer();
  const [one, two] = [await node(server.url), await node(server.url)];
  await server.signal('SIGKILL');
  const runId = randomUUID();
  const run = one.writer.open(runId, 1, noFence);
  const local = await read(one, runId);
  const model = startModel(run);
  await until(() => local.entries.length > 20, { message: 'the local viewer to be served' });
  const remote = await read(two, runId);
  const middle = await read(one, runId, local.last);
  const fromStart = await read(one, runId);
  await until(() => middle.entries.length > 20, { message: 'a viewer at the tail to be served' });
  expect(remote.received).toEqual([]);
  await server.start();
  await until(() => remote.entries.length > 40, { message: 'the remote viewer to be served' });
  const text = await model.stop();
  await run.flush(5_000);
  for (const reading of [local, remote, fromStart]) {
    await atEnd(reading, run);
    expect(reading.gaps).toBe(0);
    expect(textOf(reading.entries)).toBe(text);
  }
  await atEnd(middle, run);
  expect(middle.gaps).toBe(0);
});

test('Redis out of memory: the run is detached, remote viewers go on by publication, all is stored afterwards', async () => {
  const server = await redisServer(['--maxmemory-policy', 'noeviction']);
  const [one, two] = [await node(server.url), await node(server.url)];
  const runId = randomUUID();
  const run = one.writer.open(runId, 1, noFence);
  const [local, remote] = [await read(one, runId), await read(two, runId)];
  const model = startModel(run);
  await until(() => remote.entries.length > 10, { message: 'the run to be under way' });
  await two.redis.commands.call('CONFIG', 'SET', 'maxmemory', '1');
  const during = local.entries.length;
  await until(() => local.entries.length > during + 50, { message: 'the local viewer to go on' });
  await until(() => remote.last >= during + 50, { message: 'the remote viewer to go on' });
  let text = await model.stop();
  // The log is behind what the remote viewer has seen, for several looks at it, and yet not lost.
  const ahead = await read(two, randomUUID(), 900);
  await until(() => ahead.received.includes('lost'), { message: 'several looks at the end of the log' });
  await two.redis.commands.call('CONFIG', 'SET', 'maxmemory', '0');
  const again = startModel(run);
  await until(() => remote.last > during + 70, { message: 'the run to go on in the log' });
  text += await again.stop();
  await run.flush(5_000);
  for (const reading of [local, remote]) {
    await atEnd(reading, run);
    expect(textOf(reading.entries)).toBe(text);
    expect(reading.gaps).toBe(0);
  }
  expect((await two.log.read(runId, BEFORE_START, 10_000)).entries).toHaveLength(run.given);
});

test('a blocked graph does not starve the ring: a loop that never lets the event loop turn stays bounded', async () => {
  const server = await redisServer();
  const bound = 64 * 1024;
  const one = await node(server.url, { unacknowledgedBytes: bound });
  const runId = randomUUID();
  const run = one.writer.open(runId, 1, noFence);
  await server.signal('SIGSTOP');
  run.write({ type: 'graph.part', mode: 'custom', ns: [], data: 'x' });
  const flushed = run.flush(60_000);
  run.write({ type: 'graph.part', mode: 'custom', ns: [], data: 'y'.repeat(2 * bound) });
  // Over the bound and not yet known to be away: the graph waits, and is let go when Redis is found to be silent.
  const beganMs = performance.now();
  await run.room();
  expect(performance.now() - beganMs).toBeGreaterThan(300);
  const before = heldBytes();
  for (let n = 0; n < 20_000; n += 1)
    run.write({ type: 'graph.part', mode: 'custom', ns: [], data: 'z'.repeat(2_000) });
  expect(heldBytes() - before).toBeLessThan(10 * 1024 ** 2);
  await server.signal('SIGCONT');
  await flushed;
});
