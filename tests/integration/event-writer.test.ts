import { randomUUID } from 'node:crypto';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, inject, test, vi } from 'vitest';
import { BEFORE_START, cursorOf } from '#src/events/cursor.ts';
import type { RunEvent } from '#src/events/event.ts';
import type { AppendBatch, EventLog } from '#src/events/log.ts';
import { createLogWriter } from '#src/events/log-writer.ts';
import { createMemoryLog } from '#src/events/memory-log.ts';
import type { LiveEvent } from '#src/events/writer.ts';
import { type EventNode, logger, noFence, openNode, turn, writeHead, writeText } from './event-node.ts';

let node: EventNode;
beforeAll(async () => {
  node = await openNode(inject('redisUrl'));
});
afterAll(() => node.close());

async function stored(runId: string, log: EventLog = node.log): Promise<RunEvent[]> {
  const { entries } = await log.read(runId, BEFORE_START, 1_000_000);
  expect(entries.map(({ cursor }) => cursor)).toEqual(entries.map((_, index) => index));
  return entries.map(({ payload }) => JSON.parse(payload));
}

function part(n: number): LiveEvent {
  return { type: 'graph.part', mode: 'custom', ns: [], data: n };
}

describe('what is merged', () => {
  // The clock stands still: how long this machine takes between two writes is not what is tested.
  beforeEach(() => vi.useFakeTimers({ toFake: ['performance'] }));
  afterEach(() => vi.useRealTimers());

  test('the first delta goes alone, what comes during its flight goes together', async () => {
    const runId = randomUUID();
    const run = node.writer.open(runId, 1, noFence);
    const m = writeHead(run);
    const first = writeText(run, m, 'a');
    expect(first).toBe(1);
    await turn();
    // Taken by the flusher: it can no longer grow.
    expect(writeText(run, m, 'b')).toBe(2);
    expect(writeText(run, m, 'c')).toBe(2);
    expect(run.given).toBe(3);
    await run.flush(2_000);
    run.close();
    expect((await stored(runId)).slice(1)).toEqual([
      { type: 'message.delta', m, kind: 'text', text: 'a' },
      { type: 'message.delta', m, kind: 'text', text: 'bc' },
    ]);
  });

  test('only neighbours of one message, kind, tool call and block; everything stays in order', async () => {
    const runId = randomUUID();
    const run = node.writer.open(runId, 1, noFence);
    const events: LiveEvent[] = [
      { type: 'message.delta', m: 0, kind: 'text', text: '1' },
      { type: 'message.delta', m: 5, kind: 'text', text: '2' },
      { type: 'message.delta', m: 5, kind: 'reasoning', text: '3' },
      { type: 'message.delta', m: 5, kind: 'tool_args', text: '4', index: 0 },
      { type: 'message.delta', m: 5, kind: 'tool_args', text: '5', index: 1 },
      { type: 'message.delta', m: 5, kind: 'text', text: '6', block: { index: 0, type: 'text' } },
      { type: 'message.delta', m: 5, kind: 'text', text: '7', block: { index: 1, type: 'text' } },
      { type: 'message.delta', m: 5, kind: 'text', text: '8', block: { index: 1, type: 'output_text' } },
      part(9),
      { type: 'message.delta', m: 5, kind: 'text', text: '10', block: { index: 1, type: 'output_text' } },
    ];
    const cursors = events.map((event) => run.write(event));
    expect(cursors).toEqual(events.map((_, index) => index));
    expect(
      run.write({ type: 'message.delta', m: 5, kind: 'text', text: '', block: { index: 1, type: 'output_text' } }),
    ).toBe(9);
    await run.flush(2_000);
    run.close();
    expect(await stored(runId)).toEqual(events);
  });

  test('a merged delta holds at most 4 KB of text, and nothing written by the caller afterwards changes it', async () => {
    const runId = randomUUID();
    const run = node.writer.open(runId, 1, noFence);
    const delta: LiveEvent = { type: 'message.delta', m: 0, kind: 'text', text: 'x'.repeat(1_000) };
    const cursors = Array.from({ length: 9 }, () => run.write(delta));
    expect(cursors).toEqual([0, 0, 0, 0, 1, 1, 1, 1, 2]);
    const data = { list: [1] };
    run.write({ type: 'graph.part', mode: 'updates', ns: [], data });
    data.list.push(2);
    delta.text = 'changed';
    await run.flush(2_000);
    run.close();
    const events = await stored(runId);
    expect(events.map((event) => (event.type === 'message.delta' ? event.text.length : event))).toEqual([
      4_000,
      4_000,
      1_000,
      { type: 'graph.part', mode: 'updates', ns: [], data: { list: [1] } },
    ]);
  });

  test('text that is old is not added to: the event loop stood still meanwhile', async () => {
    const run = node.writer.open(randomUUID(), 1, noFence);
    expect(writeText(run, 0, 'a')).toBe(0);
    vi.advanceTimersByTime(10);
    expect(writeText(run, 0, 'a')).toBe(0);
    vi.advanceTimersByTime(1);
    expect(writeText(run, 0, 'b')).toBe(1);
    run.close();
  });
});

test('a flood: 200,000 deltas on 10 runs, nothing lost, nothing out of order, memory bounded by room()', async () => {
  const bound = 256 * 1024;
  let peakBytes = 0;
  let unacknowledged = 0;
  const counted = (batches: AppendBatch[]) =>
    batches.reduce((sum, { entries }) => sum + entries.reduce((bytes, { payload }) => bytes + payload.length, 0), 0);
  const log: EventLog = {
    ...node.log,
    async append(batches) {
      const bytes = counted(batches);
      unacknowledged += bytes;
      peakBytes = Math.max(peakBytes, unacknowledged);
      const results = await node.log.append(batches);
      unacknowledged -= bytes;
      return results;
    },
  };
  const delivered = new Map<string, number>();
  const writer = createLogWriter({
    log,
    deliver: (runId, entries) => delivered.set(runId, (delivered.get(runId) ?? 0) + entries.length),
    limits: { maxEvents: 900_000, maxBytes: 1024 ** 3, unacknowledgedBytes: bound },
    logger,
  });
  const perRun = 20_000;
  const runs = await Promise.all(
    Array.from({ length: 10 }, async (_, index) => {
      const runId = randomUUID();
      const run = writer.open(runId, 3, noFence);
      const m = writeHead(run);
      let waits = 0;
      for (let n = 0; n < perRun; n += 1) {
        writeText(run, m, `${index}:${n} ${'.'.repeat(40)}`);
        if (n % 1_000 === 999) run.write(part(n));
        const room = run.room();
        if (room === undefined) continue;
        waits += 1;
        await room;
      }
      await run.flush(10_000);
      expect(run.given).toBeLessThan(perRun);
      run.close();
      return { runId, index, waits, given: run.given };
    }),
  );
  await writer.close();
  expect(peakBytes).toBeLessThan(3 * bound);
  expect(runs.some(({ waits }) => waits > 0)).toBe(true);
  for (const { runId, index, given } of runs) {
    const { entries } = await node.log.read(runId, BEFORE_START, 100_000);
    expect(entries.map(({ cursor }) => cursor)).toEqual(Array.from({ length: given }, (_, n) => cursorOf(3, n)));
    expect(delivered.get(runId)).toBe(given);
    const events = entries.map(({ payload }) => JSON.parse(payload) as RunEvent);
    const text = events.map((event) => (event.type === 'message.delta' ? event.text : '')).join('');
    expect(text).toBe(Array.from({ length: perRun }, (_, n) => `${index}:${n} ${'.'.repeat(40)}`).join(''));
    // A part comes after exactly the text that was written before it.
    let length = 0;
    for (const event of events) {
      if (event.type === 'message.delta') length += event.text.length;
      if (event.type === 'graph.part') {
        const before = Array.from({ length: Number(event.data) + 1 }, (_, n) => `${index}:${n} ${'.'.repeat(40)}`);
        expect(length).toBe(before.join('').length);
      }
    }
    await node.log.remove(runId);
  }
});

test('one run in full flood does not hold up another', async () => {
  const [floodId, quietId] = [randomUUID(), randomUUID()];
  const flood = node.writer.open(floodId, 1, noFence);
  const quiet = node.writer.open(quietId, 1, noFence);
  for (let n = 0; n < 50_000; n += 1) flood.write(part(n));
  quiet.write(part(0));
  await quiet.flush(5_000);
  expect(await stored(quietId)).toEqual([part(0)]);
  expect((await node.log.last(floodId))?.cursor ?? 0).toBeLessThan(5_000);
  flood.close();
  quiet.close();
  for (const runId of [floodId, quietId]) await node.log.remove(runId);
});

test('what is written in one turn of the event loop goes out in one append, all runs together', async () => {
  const append = vi.fn(node.log.append);
  const writer = createLogWriter({
    log: { ...node.log, append },
    deliver: () => undefined,
    limits: { maxEvents: 100, maxBytes: 1e6, unacknowledgedBytes: 1e6 },
    logger,
  });
  const runs = Array.from({ length: 20 }, () => writer.open(randomUUID(), 1, noFence));
  for (const run of runs) for (let n = 0; n < 3; n += 1) run.write(part(n));
  await Promise.all(runs.map((run) => run.flush(2_000)));
  expect(append.mock.calls.map(([batches]) => batches.map(({ entries }) => entries.length))).toEqual([
    Array(20).fill(3),
  ]);
  await writer.close();
});

describe('pace', () => {
  const opened = () => {
    const memory = createMemoryLog({ memoryLimitBytes: 1e8 });
    const append = vi.fn(memory.append);
    const writer = createLogWriter({
      log: { ...memory, append },
      deliver: () => undefined,
      limits: { maxEvents: 900_000, maxBytes: 1e8, unacknowledgedBytes: 1e7 },
      logger,
    });
    return { memory, append, writer };
  };

  test('in a flood of text a pipeline carries the text of many turns; text alone goes at once', async () => {
    const { append, writer } = opened();
    const run = writer.open('r', 1, noFence);
    writeText(run, 0, 'first');
    await turn();
    await turn();
    expect(append).toHaveBeenCalledTimes(1);
    const flood = Array.from({ length: 5 }, (_, index) => writer.open(`flood ${index}`, 1, noFence));
    for (let n = 0; n < 2_000; n += 1) {
      for (const one of flood) writeText(one, 0, 'x');
      await turn();
    }
    expect(append.mock.calls.length).toBeLessThan(500);
    await writer.close();
  });

  test('what is not text is not held back, nor is what somebody waits for', async () => {
    const { memory, writer } = opened();
    const run = writer.open('r', 1, noFence);
    for (let n = 0; n < 100; n += 1) writeText(run, n, 'x');
    await run.flush(2_000);
    // The writer would now hold text back for 8 ms.
    run.write(part(1));
    await turn();
    await turn();
    expect((await memory.last('r'))?.cursor).toBe(100);
    const sinceMs = performance.now();
    let waited = 0;
    for (let n = 0; n < 20; n += 1) {
      for (let m = 0; m < 100; m += 1) writeText(run, m, 'x');
      await run.flush(2_000);
      waited += 1;
    }
    expect((performance.now() - sinceMs) / waited).toBeLessThan(8);
    expect((await memory.last('r'))?.cursor).toBe(2_100);
    await writer.close();
  });
});

describe.each(['redis', 'in-process'])('bounds and fences, %s log', (kind) => {
  const log = () => (kind === 'redis' ? node.log : memory);
  const memory = createMemoryLog({ memoryLimitBytes: 64 * 1024 ** 2 });
  afterAll(() => memory.close());
  const openWriter = (limits: { maxEvents?: number; maxBytes?: number }) =>
    createLogWriter({
      log: log(),
      deliver: () => undefined,
      limits: { maxEvents: 900_000, maxBytes: 64 * 1024 ** 2, unacknowledgedBytes: 1024 ** 2, ...limits },
      logger,
    });

  test('log.torn is the last entry when there are too many', async () => {
    const writer = openWriter({ maxEvents: 5 });
    const runId = randomUUID();
    const run = writer.open(runId, 1, noFence);
    const cursors = Array.from({ length: 8 }, (_, n) => run.write(part(n)));
    expect(cursors).toEqual([0, 1, 2, 3, 4, 5, 5, 5]);
    expect(writeText(run, 0, 'more')).toBe(5);
    expect(run.given).toBe(6);
    expect(run.room()).toBeUndefined();
    await run.flush(2_000);
    expect(await stored(runId, log())).toEqual([
      ...[0, 1, 2, 3, 4].map(part),
      { type: 'log.torn', reason: 'max_events' },
    ]);
    await writer.close();
  });

  test('is the limit of the run: what former epochs wrote counts, but for what a new one begins with', async () => {
    for (const [former, kept] of [
      [{ events: 3, bytes: 0, torn: false }, 2],
      [{ events: 0, bytes: 64 * 1024 ** 2, torn: false }, 1],
      [{ events: 3, bytes: 0, torn: true }, 1],
      [{ events: 700, bytes: 0, torn: false }, 1],
    ] as const) {
      const writer = openWriter({ maxEvents: 5 });
      const runId = randomUUID();
      const run = writer.open(runId, 2, noFence);
      run.write(part(0));
      run.count(former);
      for (let n = 1; n < 5; n += 1) run.write(part(n));
      await run.flush(2_000);
      const { entries } = await log().read(runId, BEFORE_START, 10);
      const events = entries.map(({ payload }) => JSON.parse(payload) as RunEvent);
      expect(events.slice(0, -1)).toEqual(Array.from({ length: kept }, (_, n) => part(n)));
      expect(events.at(-1)).toMatchObject({ type: 'log.torn' });
      await writer.close();
    }
  });

  test('log.torn is the last entry when it is too long, merged text included', async () => {
    const writer = openWriter({ maxBytes: 20_000 });
    const [runId, mergedId] = [randomUUID(), randomUUID()];
    const run = writer.open(runId, 1, noFence);
    run.write(part(0));
    run.write({ type: 'graph.part', mode: 'custom', ns: [], data: 'y'.repeat(30_000) });
    run.write(part(1));
    await run.flush(2_000);
    expect(await stored(runId, log())).toEqual([part(0), { type: 'log.torn', reason: 'max_bytes' }]);
    const merged = writer.open(mergedId, 1, noFence);
    for (let n = 0; n < 1_000; n += 1) writeText(merged, 0, 'z'.repeat(100));
    await merged.flush(2_000);
    const events = await stored(mergedId, log());
    expect(events.at(-1)).toEqual({ type: 'log.torn', reason: 'max_bytes' });
    expect(JSON.stringify(events).length).toBeLessThan(21_000);
    await writer.close();
  });

  test('a later epoch fences the writer: told once, nothing more is kept', async () => {
    const writer = openWriter({});
    const runId = randomUUID();
    const onFenced = vi.fn();
    const run = writer.open(runId, 1, onFenced);
    run.write(part(0));
    await run.flush(2_000);
    expect(run.fenced).toBe(false);
    await log().append([
      { runId, entries: [{ cursor: cursorOf(2, 0), payload: '{"type":"run.requeued","reason":"drain"}' }] },
    ]);
    run.write(part(1));
    await run.flush(2_000);
    expect(run.fenced).toBe(true);
    expect(run.write(part(2))).toBe(1);
    expect(run.room()).toBeUndefined();
    await run.flush(2_000);
    expect(onFenced).toHaveBeenCalledTimes(1);
    expect((await log().read(runId, BEFORE_START, 10)).entries.map(({ cursor }) => cursor)).toEqual([
      0,
      cursorOf(2, 0),
    ]);
    await writer.close();
  });

  test('close forgets the run; the others go on', async () => {
    const writer = openWriter({});
    const [closedId, openId] = [randomUUID(), randomUUID()];
    const closed = writer.open(closedId, 1, noFence);
    const open = writer.open(openId, 1, noFence);
    closed.write(part(0));
    open.write(part(0));
    const flushed = closed.flush(60_000);
    closed.close();
    closed.close();
    await flushed;
    expect(closed.write(part(1))).toBe(0);
    await open.flush(2_000);
    expect(await stored(openId, log())).toEqual([part(0)]);
    expect(await log().last(closedId)).toBeNull();
    await writer.close();
  });
});
