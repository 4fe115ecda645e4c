/** Hand-overs, as readers see them: what the former owner left in the log, and what of it never got there. */
import { randomUUID } from 'node:crypto';
import { afterAll, afterEach, beforeAll, expect, inject, test } from 'vitest';
import { BEFORE_START, type Cursor, cursorOf } from '#src/events/cursor.ts';
import type { RunEvent } from '#src/events/event.ts';
import type { LogEntry } from '#src/events/log.ts';
import { until } from '#tests/support/until.ts';
import { type EventNode, openNode, type Reading, startReading } from './event-node.ts';

let one: EventNode;
let two: EventNode;
const readings: Reading[] = [];
const runIds: string[] = [];
beforeAll(async () => {
  [one, two] = await Promise.all([openNode(inject('redisUrl')), openNode(inject('redisUrl'))]);
});
afterEach(async () => {
  await Promise.all(readings.splice(0).map((reading) => reading.stop()));
  for (const runId of runIds.splice(0)) await one.log.remove(runId);
});
afterAll(async () => {
  await one.close();
  await two.close();
});

async function logged(entries: LogEntry[]): Promise<string> {
  const runId = randomUUID();
  runIds.push(runId);
  await one.log.append([{ runId, entries }]);
  return runId;
}

/** The cursors of the first `count` things a reader is given, gaps by name. */
async function given(reading: Reading, count: number): Promise<(Cursor | string)[]> {
  await until(() => reading.received.length >= count, { message: `${count} items, has ${reading.received.length}` });
  return reading.received.map((got) => (typeof got === 'string' ? got : got.cursor));
}

async function read(node: EventNode, runId: string, after: Cursor = BEFORE_START): Promise<Reading> {
  const reading = startReading(await node.hub.attach(runId, after, { floorEpoch: 0 }), after);
  readings.push(reading);
  return reading;
}

const entry = (cursor: Cursor, event: RunEvent): LogEntry => ({ cursor, payload: JSON.stringify(event) });
const threeParts = [0, 1, 2].map((cursor) =>
  entry(cursor, { type: 'graph.part', mode: 'custom', ns: [], data: cursor }),
);
const handedOver = (after: Cursor): LogEntry[] => [
  entry(cursorOf(2, 0), { type: 'run.requeued', reason: 'owner_dead' }),
  entry(cursorOf(3, 0), {
    type: 'run.taken_over',
    run_id: 'r',
    thread_id: 't',
    turn_id: null,
    takeover: 1,
    checkpoint_id: null,
    after,
    dropped: [],
  }),
];

test('a reader that has it all is told nothing, live or later', async () => {
  const runId = await logged(threeParts);
  const live = await read(two, runId);
  await given(live, 3);
  await one.log.append([{ runId, entries: handedOver(2) }]);
  expect(await given(live, 5)).toEqual([0, 1, 2, cursorOf(2, 0), cursorOf(3, 0)]);
  const later = await read(one, runId, 1);
  expect(await given(later, 3)).toEqual([2, cursorOf(2, 0), cursorOf(3, 0)]);
  const after = await read(one, runId, cursorOf(2, 0));
  expect(await given(after, 1)).toEqual([cursorOf(3, 0)]);
});

test('a reader is told of steps whose events the log lacks', async () => {
  const runId = await logged([...threeParts, ...handedOver(5)]);
  const reading = await read(two, runId);
  expect(await given(reading, 6)).toEqual([0, 1, 2, cursorOf(2, 0), 'gap', cursorOf(3, 0)]);
});

test('a reader that was shown more than reached the log is told so', async () => {
  const runId = await logged([...threeParts, ...handedOver(2)]);
  const reading = await read(two, runId, 4);
  expect(await given(reading, 3)).toEqual([cursorOf(2, 0), 'gap', cursorOf(3, 0)]);
});
