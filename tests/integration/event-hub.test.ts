import { randomUUID } from 'node:crypto';
import { afterAll, afterEach, beforeAll, describe, expect, inject, test, vi } from 'vitest';
import { BEFORE_START, type Cursor, cursorOf, toEntryId } from '#src/events/cursor.ts';
import type { RunEvent } from '#src/events/event.ts';
import type { SeenEntry, Viewer, ViewItem } from '#src/events/hub.ts';
import { liveChannel, logKey } from '#src/events/keys.ts';
import { createHub } from '#src/events/live-hub.ts';
import type { EventLog, LogEntry } from '#src/events/log.ts';
import { createMemoryLog } from '#src/events/memory-log.ts';
import { appendEnd } from '#src/events/seal.ts';
import { until } from '#tests/support/until.ts';
import {
  type EventNode,
  logger,
  noFence,
  openNode,
  type Reading,
  startReading,
  textOf,
  turn,
  writeHead,
  writeText,
} from './event-node.ts';

let one: EventNode;
let two: EventNode;
const readings: Reading[] = [];
const runIds: string[] = [];
beforeAll(async () => {
  [one, two] = await Promise.all([openNode(inject('redisUrl')), openNode(inject('redisUrl'))]);
});
afterEach(async () => {
  const stopped = await Promise.allSettled(readings.splice(0).map((reading) => reading.stop()));
  for (const result of stopped) if (result.status === 'rejected') throw result.reason;
  // A channel that outlives its last viewer would leak a subscription.
  expect([one.hub.watched, one.hub.viewers, two.hub.watched, two.hub.viewers]).toEqual([0, 0, 0, 0]);
  for (const runId of runIds.splice(0)) await one.log.remove(runId);
});
afterAll(async () => {
  await one.close();
  await two.close();
});

function newRun(): string {
  const runId = randomUUID();
  runIds.push(runId);
  return runId;
}

async function read(node: EventNode, runId: string, after: Cursor = BEFORE_START, floorEpoch = 0): Promise<Reading> {
  const reading = startReading(await node.hub.attach(runId, after, { floorEpoch }), after);
  readings.push(reading);
  return reading;
}

function part(cursor: Cursor, data = `part ${cursor}`): LogEntry {
  return { cursor, payload: JSON.stringify({ type: 'graph.part', mode: 'custom', ns: [], data }) };
}

function entry(cursor: Cursor, event: RunEvent): LogEntry {
  return { cursor, payload: JSON.stringify(event) };
}

function parts(from: Cursor, count: number): LogEntry[] {
  return Array.from({ length: count }, (_, index) => part(from + index));
}

const cursors = (reading: Reading) => reading.received.map((got) => (typeof got === 'string' ? got : got.cursor));
const once = (reading: Reading, count: number) =>
  until(() => reading.received.length >= count, { message: `${count} items, has ${reading.received.length}` });
const takenOver = (after: Cursor): RunEvent => ({
  type: 'run.taken_over',
  run_id: 'r',
  thread_id: 't',
  turn_id: null,
  takeover: 1,
  checkpoint_id: null,
  after,
  dropped: [],
});

/** Published without being stored, as a writer does whose epoch is over. */
const publish = (runId: string, { cursor, payload }: LogEntry) =>
  two.redis.commands.publish(liveChannel(runId), `${toEntryId(cursor)} ${payload}`);

test('every reader, here and elsewhere, from every cursor, gets exactly the rest, replayed and live', async () => {
  const runId = newRun();
  const run = one.writer.open(runId, 1, noFence);
  const m = writeHead(run);
  const total = 60;
  const write = async (from: number, to: number) => {
    for (let n = from; n < to; n += 1) {
      writeText(run, m, `<${n}>`);
      await turn();
    }
  };
  await write(0, total / 2);
  await run.flush(2_000);
  const known = run.given;
  const early = await Promise.all(
    Array.from({ length: known }, async (_, index) => {
      const after = index - 1;
      return { after, here: await read(one, runId, after), there: await read(two, runId, after) };
    }),
  );
  await write(total / 2, total);
  await run.flush(2_000);
  run.close();
  const { entries } = await one.log.read(runId, BEFORE_START, 1_000);
  const whole = entries.map(({ payload }) => JSON.parse(payload));
  for (const { after, here, there } of early) {
    for (const reading of [here, there]) {
      await once(reading, entries.length - after - 1);
      expect(reading.entries.map(({ event }) => event)).toEqual(whole.slice(after + 1));
      expect(reading.gaps).toBe(0);
    }
  }
  expect(textOf(early[0]?.there.entries ?? [])).toBe(Array.from({ length: total }, (_, n) => `<${n}>`).join(''));
});

test('readers that attach while the run writes miss nothing at the seam', async () => {
  const runId = newRun();
  const run = one.writer.open(runId, 1, noFence);
  const m = writeHead(run);
  const attached: Promise<Reading>[] = [];
  for (let n = 0; n < 400; n += 1) {
    run.write({ type: 'graph.part', mode: 'custom', ns: [], data: n });
    writeText(run, m, `<${n}>`);
    if (n % 8 === 0) attached.push(read(n % 16 === 0 ? one : two, runId));
    await turn();
  }
  await run.flush(5_000);
  const all = await Promise.all(attached);
  for (const reading of all) {
    await until(() => reading.last === run.given - 1, { message: 'the reader to be at the end' });
    expect(reading.entries).toHaveLength(run.given);
    expect(reading.gaps).toBe(0);
  }
  run.close();
});

describe('heads', () => {
  test('a delta comes with the head it names, also for a reader that begins after it', async () => {
    const runId = newRun();
    const run = one.writer.open(runId, 1, noFence);
    const heads = Array.from({ length: 300 }, (_, n) => writeHead(run, `message ${n}`));
    writeText(run, heads[0] ?? 0, 'first');
    await turn();
    await run.flush(2_000);
    const fromStart = await read(two, runId);
    const late = await read(two, runId, 299);
    writeText(run, heads[299] ?? 0, 'last');
    run.write({ type: 'message.chunk', m: heads[7] ?? 0, message: { id: 'message 7', type: 'ai', content: '' } });
    await run.flush(2_000);
    run.close();
    await once(fromStart, 303);
    await once(late, 3);
    for (const reading of [fromStart, late]) {
      expect(reading.entries.slice(-3).map(({ head }) => head?.message.id)).toEqual([
        'message 0',
        'message 299',
        'message 7',
      ]);
      expect(reading.entries.at(-1)?.head).toMatchObject({
        type: 'message.head',
        metadata: { langgraph_node: 'model' },
      });
    }
    expect(fromStart.entries[0]?.head).toBeNull();
    expect(fromStart.entries.at(-1)).toBe(late.entries.at(-1));
  });

  test('null when the log does not have it', async () => {
    const runId = newRun();
    await one.log.append([{ runId, entries: [entry(5, { type: 'message.delta', m: 2, kind: 'text', text: 'x' })] }]);
    const reading = await read(one, runId, 4);
    await once(reading, 1);
    expect(reading.entries[0]?.head).toBeNull();
  });
});

describe('what is not shown', () => {
  test('an entry of a type this version does not know is passed over; one that is no event is a gap', async () => {
    const runId = newRun();
    const strange = { cursor: 1, payload: '{"type":"run.from_the_future","x":1}' };
    const broken = { cursor: 2, payload: '{"no":"type"}' };
    await one.log.append([{ runId, entries: [part(0), strange, part(2), part(3)] }]);
    const reading = startReading(await one.hub.attach(runId, BEFORE_START), BEFORE_START, true);
    readings.push(reading);
    await once(reading, 3);
    expect(cursors(reading)).toEqual([0, 2, 3]);
    await one.log.append([{ runId, entries: [{ ...strange, cursor: 4 }, part(5), { ...broken, cursor: 6 }, part(7)] }]);
    await once(reading, 6);
    expect(cursors(reading)).toEqual([0, 2, 3, 5, 'gap', 7]);
    const replay = startReading(await two.hub.attach(runId, BEFORE_START), BEFORE_START, true);
    readings.push(replay);
    await once(replay, 6);
    expect(cursors(replay)).toEqual(cursors(reading));
  });

  test('repetitions, and what a writer publishes whose epoch is over', async () => {
    const runId = newRun();
    await one.log.append([{ runId, entries: [...parts(0, 3), part(cursorOf(2, 0))] }]);
    const reading = await read(one, runId);
    await once(reading, 4);
    await publish(runId, part(2));
    await publish(runId, part(3, 'zombie'));
    await publish(runId, part(cursorOf(2, 0)));
    await two.log.append([{ runId, entries: [part(cursorOf(2, 1))] }]);
    await once(reading, 5);
    expect(cursors(reading)).toEqual([0, 1, 2, cursorOf(2, 0), cursorOf(2, 1)]);
    // Nor does one who comes later, at the place where the zombie would go on.
    const late = await read(one, runId, 2);
    await once(late, 2);
    expect(cursors(late)).toEqual([cursorOf(2, 0), cursorOf(2, 1)]);
  });

  test("a zombie's publication before the new owner's marker is there, when the row's epoch is known", async () => {
    const runId = newRun();
    await one.log.append([{ runId, entries: parts(0, 3) }]);
    const reading = await read(one, runId, BEFORE_START, 2);
    await once(reading, 3);
    await publish(runId, part(3, 'zombie'));
    await two.log.append([{ runId, entries: [part(cursorOf(2, 0))] }]);
    await once(reading, 4);
    expect(cursors(reading)).toEqual([0, 1, 2, cursorOf(2, 0)]);
  });

  test('a zombie is fenced and nobody sees what it writes after the takeover', async () => {
    const runId = newRun();
    const onFenced = vi.fn();
    const zombie = one.writer.open(runId, 1, onFenced);
    zombie.write({ type: 'graph.part', mode: 'custom', ns: [], data: 'before' });
    await zombie.flush(2_000);
    const [here, there] = [await read(one, runId), await read(two, runId)];
    const owner = two.writer.open(runId, 2, noFence);
    owner.write(takenOver(0) as Extract<RunEvent, { type: 'run.taken_over' }>);
    await owner.flush(2_000);
    for (let n = 0; n < 20; n += 1) zombie.write({ type: 'graph.part', mode: 'custom', ns: [], data: 'zombie' });
    await zombie.flush(2_000);
    expect(zombie.fenced).toBe(true);
    expect(onFenced).toHaveBeenCalledTimes(1);
    owner.write({ type: 'graph.part', mode: 'custom', ns: [], data: 'after' });
    await owner.flush(2_000);
    for (const reading of [here, there]) {
      await once(reading, 3);
      expect(cursors(reading)).toEqual([0, cursorOf(2, 0), cursorOf(2, 1)]);
    }
    zombie.close();
    owner.close();
  });
});

describe('holes', () => {
  test('a hole in the log is said once, replayed and live, also across epochs', async () => {
    const runId = newRun();
    await one.log.append([{ runId, entries: [part(0), part(3), part(cursorOf(2, 1))] }]);
    const reading = await read(two, runId);
    await once(reading, 5);
    await one.log.append([{ runId, entries: [part(cursorOf(2, 2)), part(cursorOf(2, 5))] }]);
    await once(reading, 8);
    expect(cursors(reading)).toEqual([0, 'gap', 3, 'gap', cursorOf(2, 1), cursorOf(2, 2), 'gap', cursorOf(2, 5)]);
  });

  test('the log begins late: a gap before the first entry', async () => {
    const runId = newRun();
    await one.log.append([{ runId, entries: parts(7, 2) }]);
    const reading = await read(one, runId);
    await once(reading, 3);
    expect(cursors(reading)).toEqual(['gap', 7, 8]);
  });

  test('a takeover that names the mark of the hand-over, as older versions do, is no gap', async () => {
    const runId = newRun();
    const mark = entry(cursorOf(2, 0), { type: 'run.requeued', reason: 'owner_dead' });
    await one.log.append([{ runId, entries: [...parts(0, 2), mark, entry(cursorOf(3, 0), takenOver(mark.cursor))] }]);
    const reading = await read(two, runId);
    await once(reading, 4);
    expect(cursors(reading)).toEqual([0, 1, cursorOf(2, 0), cursorOf(3, 0)]);
  });

  test('a takeover from further than the reader got is a gap', async () => {
    const runId = newRun();
    await one.log.append([{ runId, entries: [...parts(0, 2), entry(cursorOf(2, 0), takenOver(5))] }]);
    const reading = await read(one, runId);
    await once(reading, 4);
    expect(cursors(reading)).toEqual([0, 1, 'gap', cursorOf(2, 0)]);
    await one.log.append([{ runId, entries: [entry(cursorOf(3, 0), takenOver(cursorOf(2, 0)))] }]);
    await once(reading, 5);
    expect(cursors(reading)).toEqual([0, 1, 'gap', cursorOf(2, 0), cursorOf(3, 0)]);
  });

  test('a publication that was lost is read from the log: in the middle, at an epoch change, and the last one', async () => {
    const runId = newRun();
    const store = (...entries: LogEntry[]) =>
      Promise.all(
        entries.map(({ cursor, payload }) => two.redis.commands.xadd(logKey(runId), toEntryId(cursor), 'e', payload)),
      );
    await one.log.append([{ runId, entries: [part(0)] }]);
    const reading = await read(one, runId);
    await once(reading, 1);
    await store(part(1), part(2));
    await one.log.append([{ runId, entries: [part(3)] }]);
    await once(reading, 4);
    await store(part(4));
    await one.log.append([{ runId, entries: [part(cursorOf(2, 0))] }]);
    await once(reading, 6);
    await store(part(cursorOf(2, 1)), part(cursorOf(2, 2)));
    await once(reading, 8);
    expect(cursors(reading)).toEqual([0, 1, 2, 3, 4, cursorOf(2, 0), cursorOf(2, 1), cursorOf(2, 2)]);
  });

  test('subscribers that are cut off again and again: nothing lost', async () => {
    const runId = newRun();
    const run = one.writer.open(runId, 1, noFence);
    const reading = await read(two, runId);
    for (let n = 0; n < 200; n += 1) {
      run.write({ type: 'graph.part', mode: 'custom', ns: [], data: n });
      await turn();
      if (n % 40 !== 20) continue;
      const id = await until(subscriberId, { message: 'the subscriber to be there' });
      await two.redis.commands.call('CLIENT', 'KILL', 'ID', String(id));
    }
    await run.flush(2_000);
    run.close();
    await once(reading, 200);
    expect(cursors(reading)).toEqual(Array.from({ length: 200 }, (_, n) => n));
  });

  async function subscriberId(): Promise<number> {
    const list = String(await two.redis.commands.call('CLIENT', 'LIST', 'TYPE', 'pubsub'));
    const port = (two.redis.subscriber as unknown as { stream: { localPort: number } }).stream.localPort;
    const line = list.split('\n').find((client) => client.includes(`addr=127.0.0.1:${port} `));
    return Number(/id=(\d+)/.exec(line ?? '')?.[1]);
  }
});

describe('a log that is lost', () => {
  test('a reader that has seen entries is told once, when the log is gone; then it goes on', async () => {
    const runId = newRun();
    await one.log.append([{ runId, entries: parts(0, 5) }]);
    const reading = await read(two, runId);
    const unseen = await read(two, runId, 4);
    await once(reading, 5);
    await one.log.remove(runId);
    await once(reading, 6);
    await once(unseen, 1);
    await one.log.append([{ runId, entries: parts(5, 2) }]);
    await once(reading, 9);
    expect(cursors(reading)).toEqual([0, 1, 2, 3, 4, 'lost', 'gap', 5, 6]);
    expect(cursors(unseen)).toEqual(['lost', 'gap', 5, 6]);
  });

  test('a reader whose cursor is ahead of the log is told, and follows the log from its end', async () => {
    const runId = newRun();
    await one.log.append([{ runId, entries: parts(0, 3) }]);
    const ahead = await read(one, runId, 900);
    const normal = await read(one, runId);
    await once(ahead, 1);
    await one.log.append([{ runId, entries: parts(3, 2) }]);
    await once(ahead, 3);
    expect(cursors(ahead)).toEqual(['lost', 3, 4]);
    await once(normal, 5);
    expect(cursors(normal)).toEqual([0, 1, 2, 3, 4]);
  });

  test('a run that has not begun its log is not lost, nor one that ends where the reader is', async () => {
    const [waiting, ended] = [newRun(), newRun()];
    await one.log.append([{ runId: ended, entries: parts(0, 3) }]);
    const notBegun = await read(one, waiting);
    const atEnd = await read(one, ended, 2);
    // Long enough for several checks of the tail.
    const checks = vi.fn();
    const hub = createHub({
      log: { ...one.log, last: (id) => one.log.last(id).finally(checks) },
      logger,
      tailCheckMs: 300,
    });
    const clock = startReading(await hub.attach(waiting, BEFORE_START));
    await until(() => checks.mock.calls.length >= 6, { message: 'several checks' });
    await clock.stop();
    await hub.close();
    expect([notBegun.received, atEnd.received]).toEqual([[], []]);
    await one.log.append([{ runId: waiting, entries: [part(0)] }]);
    await once(notBegun, 1);
    expect(cursors(notBegun)).toEqual([0]);
  });
});

/** As `startReading`, without what it costs: `broken` when ids were not given one by one from 0. */
function countEntries(viewer: Viewer, signal: AbortSignal): { next: number; broken: boolean; last: SeenEntry | null } {
  const counted: ReturnType<typeof countEntries> = { next: 0, broken: false, last: null };
  const read = async (): Promise<void> => {
    while (!signal.aborted) {
      for (const item of await viewer.next(60_000, signal)) {
        if (item.kind !== 'entry' || item.entry.cursor !== counted.next) counted.broken = true;
        else counted.last = item.entry;
        counted.next += 1;
      }
    }
  };
  read().catch(() => {
    counted.broken = true;
  });
  return counted;
}

describe('many and slow viewers', () => {
  test('2,000 viewers of one run share one subscription, one check, one read of each page, one parsed entry', async () => {
    const runId = newRun();
    const run = two.writer.open(runId, 1, noFence);
    const m = writeHead(run);
    for (let n = 0; n < 1_200; n += 1) run.write({ type: 'graph.part', mode: 'custom', ns: [], data: n });
    await run.flush(5_000);
    const calls = { read: 0, readOne: 0, last: 0, subscribe: 0 };
    const counting = <K extends keyof typeof calls>(name: K) =>
      ((...args: Parameters<EventLog[K]>) => {
        calls[name] += 1;
        return (one.log[name] as (...all: unknown[]) => unknown)(...args);
      }) as EventLog[K];
    const log: EventLog = {
      ...one.log,
      read: counting('read'),
      readOne: counting('readOne'),
      last: counting('last'),
      subscribe: counting('subscribe'),
    };
    const hub = createHub({ log, logger, tailCheckMs: 60_000 });
    const viewers = await Promise.all(Array.from({ length: 2_000 }, () => hub.attach(runId, BEFORE_START)));
    expect([hub.watched, hub.viewers]).toEqual([1, 2_000]);
    const abort = new AbortController();
    const all = viewers.map((viewer) => countEntries(viewer, abort.signal));
    const atEnd = () => all.every(({ next }) => next === run.given);
    await until(atEnd, { timeoutMs: 20_000, message: 'all viewers to have the history' });
    for (let n = 0; n < 50; n += 1) {
      writeText(run, m, `<${n}>`);
      await turn();
    }
    await run.flush(2_000);
    await until(atEnd, { timeoutMs: 20_000, message: 'all viewers to have the live text' });
    expect(all.every(({ broken }) => !broken)).toBe(true);
    expect(new Set(all.map(({ last }) => last)).size).toBe(1);
    expect(calls.subscribe).toBe(1);
    expect(calls.last).toBe(1);
    expect(calls.readOne).toBe(0);
    expect(calls.read).toBeLessThan(20);
    abort.abort();
    for (const viewer of viewers) viewer.close();
    expect([hub.watched, hub.viewers]).toEqual([0, 0]);
    run.close();
    await hub.close();
  });

  test('a viewer that does not read for long misses nothing', async () => {
    const runId = newRun();
    const run = one.writer.open(runId, 1, noFence);
    const viewer = await one.hub.attach(runId, BEFORE_START);
    for (let n = 0; n < 3_000; n += 1) run.write({ type: 'graph.part', mode: 'custom', ns: [], data: n });
    await run.flush(5_000);
    run.close();
    const reading = startReading(viewer);
    readings.push(reading);
    await once(reading, 3_000);
    expect(cursors(reading)).toEqual(Array.from({ length: 3_000 }, (_, n) => n));
  });

  test('pages of large entries are short', async () => {
    const runId = newRun();
    const text = 'y'.repeat(200_000);
    for (let from = 0; from < 60; from += 20) {
      await one.log.append([{ runId, entries: Array.from({ length: 20 }, (_, n) => part(from + n, text)) }]);
    }
    const limits: number[] = [];
    const log: EventLog = {
      ...one.log,
      read: (id, after, limit) => {
        limits.push(limit);
        return one.log.read(id, after, limit);
      },
    };
    const hub = createHub({ log, logger });
    const reading = startReading(await hub.attach(runId, BEFORE_START));
    await once(reading, 60);
    expect(Math.max(...limits)).toBeLessThanOrEqual(100);
    const small = await hub.attach(runId, 40);
    await small.next(1_000, new AbortController().signal);
    expect(limits.at(-1)).toBeLessThan(5);
    small.close();
    await reading.stop();
    await hub.close();
  });
});

describe('next', () => {
  const never = new AbortController().signal;

  test('waits for news, for its time, or for the signal; answers at most 500 items', async () => {
    const runId = newRun();
    const viewer = await one.hub.attach(runId, BEFORE_START);
    const beganMs = performance.now();
    expect(await viewer.next(60, never)).toEqual([]);
    expect(performance.now() - beganMs).toBeGreaterThanOrEqual(55);
    const abort = new AbortController();
    const waiting = viewer.next(60_000, abort.signal);
    abort.abort();
    expect(await waiting).toEqual([]);
    expect(await viewer.next(60_000, abort.signal)).toEqual([]);
    const news = viewer.next(60_000, never);
    await two.log.append([{ runId, entries: [part(0)] }]);
    expect((await news).map((item: ViewItem) => item.kind === 'entry' && item.entry.cursor)).toEqual([0]);
    await two.log.append([{ runId, entries: parts(1, 1_300) }]);
    let got = 0;
    while (got < 1_300) {
      const items = await viewer.next(5_000, never);
      expect(items.length).toBeLessThanOrEqual(500);
      expect(items.length).toBeGreaterThan(0);
      got += items.length;
    }
    const pending = viewer.next(60_000, never);
    viewer.close();
    expect(await pending).toEqual([]);
    expect(await viewer.next(60_000, never)).toEqual([]);
  });

  test('the subscription ends with the last viewer', async () => {
    const runId = newRun();
    const channel = liveChannel(runId);
    const subscribers = async () => Number((await one.redis.commands.pubsub('NUMSUB', channel))[1]);
    const [a, b] = [await one.hub.attach(runId, BEFORE_START), await one.hub.attach(runId, BEFORE_START)];
    expect(await subscribers()).toBe(1);
    a.close();
    a.close();
    expect([one.hub.viewers, await subscribers()]).toEqual([1, 1]);
    b.close();
    await until(async () => (await subscribers()) === 0, { message: 'the subscription to end' });
  });

  test('closing the hub ends every wait', async () => {
    const hub = createHub({ log: createMemoryLog({ memoryLimitBytes: 1e6 }), logger });
    const viewer = await hub.attach('r', BEFORE_START);
    const waiting = viewer.next(60_000, never);
    await hub.close();
    expect(await waiting).toEqual([]);
    viewer.close();
    const late = await hub.attach('r', BEFORE_START);
    expect(await late.next(60_000, never)).toEqual([]);
    late.close();
    expect([hub.watched, hub.viewers]).toEqual([0, 0]);
  });
});

describe.each(['redis', 'in-process'])('the end, %s log', (kind) => {
  test('is appended, shown, and lets the log expire; a later epoch refuses it', async () => {
    const log = kind === 'redis' ? one.log : createMemoryLog({ memoryLimitBytes: 1e6 });
    const hub = createHub({ log, logger });
    const runId = newRun();
    await log.append([{ runId, entries: [part(0)] }]);
    const reading = startReading(await hub.attach(runId, BEFORE_START));
    const seal = entry(2, {
      type: 'run.sealed',
      status: 'succeeded',
      error: null,
      usage: null,
      interrupts: [],
      reason: null,
    });
    const delivered: LogEntry[] = [];
    const deliver: typeof hub.deliver = (_, entries) => delivered.push(...entries);
    const end = { log, hub: { deliver }, runId, entries: [part(1, 'held'), seal], ttlMs: 60_000 };
    expect(await appendEnd(end)).toBe(true);
    // The publication may be lost; the viewers of this process do not depend on it.
    expect(delivered).toEqual(end.entries);
    expect(await appendEnd(end)).toBe(true);
    await once(reading, 3);
    expect(cursors(reading)).toEqual([0, 1, 2]);
    await reading.stop();
    if (kind === 'redis') expect(await one.redis.commands.pttl(logKey(runId))).toBeGreaterThan(50_000);
    await log.append([{ runId, entries: [part(cursorOf(2, 0))] }]);
    delivered.length = 0;
    expect(await appendEnd({ ...end, entries: [part(3)] })).toBe(false);
    expect(delivered).toEqual([]);
    await appendEnd({ log, hub, runId, entries: [part(cursorOf(2, 1))], ttlMs: 50 });
    await until(async () => (await log.last(runId)) === null, { message: 'the log to expire' });
    await hub.close();
  });
});
