import fc from 'fast-check';
import { expect, test } from 'vitest';
import { encodeEvent } from '#src/events/codec.ts';
import type { RunEvent } from '#src/events/event.ts';
import type { LogEntry } from '#src/events/log.ts';
import { canMerge, type Delta } from '#src/events/merge.ts';
import {
  acknowledge,
  createRunQueue,
  dropOldest,
  isSettled,
  merge,
  push,
  show,
  take,
  takeBack,
} from '#src/events/run-queue.ts';
import type { LiveEvent } from '#src/events/writer.ts';

const base: Delta = { type: 'message.delta', m: 3, kind: 'text', text: 'ab' };

test('only the same message, kind, index and block', () => {
  expect(canMerge(base, { ...base, text: 'c' }, 0)).toBe(true);
  expect(canMerge(base, { ...base, m: 4 }, 0)).toBe(false);
  expect(canMerge(base, { ...base, kind: 'reasoning' }, 0)).toBe(false);
  expect(canMerge(base, { ...base, index: 0 }, 0)).toBe(false);
  expect(canMerge({ ...base, index: 1 }, { ...base, index: 1 }, 0)).toBe(true);
  expect(canMerge({ ...base, index: 1 }, { ...base, index: 0 }, 0)).toBe(false);
  expect(canMerge(base, { ...base, block: { type: 'text' } }, 0)).toBe(false);
  expect(canMerge({ ...base, block: { type: 'text' } }, { ...base, block: { type: 'text' } }, 0)).toBe(true);
  expect(canMerge({ ...base, block: { type: 'text' } }, { ...base, block: { type: 'text', index: 0 } }, 0)).toBe(false);
  expect(canMerge({ ...base, block: { type: 'a', index: 0 } }, { ...base, block: { type: 'b', index: 0 } }, 0)).toBe(
    false,
  );
});

test('where chunks were put together is kept for those who asked', () => {
  const texts = ['ab', 'c', 'de'];
  for (const cuts of [undefined, []]) {
    const queue = createRunQueue('run', 1, { bytes: 0 });
    for (const text of texts) {
      const delta: Delta = { ...base, text, ...(cuts && { cuts: [] }) };
      if (!merge(queue, delta, 0)) push(queue, { delta }, 0);
    }
    expect(queue.waiting.map((entry) => entry.delta)).toEqual([
      { ...base, text: 'abcde', ...(cuts && { cuts: [2, 3] }) },
    ]);
  }
});

test('neither what is old nor beyond 4 KB', () => {
  expect(canMerge(base, base, 10)).toBe(true);
  expect(canMerge(base, base, 10.1)).toBe(false);
  expect(canMerge({ ...base, text: 'x'.repeat(4095) }, { ...base, text: 'y' }, 0)).toBe(true);
  expect(canMerge({ ...base, text: 'x'.repeat(4095) }, { ...base, text: 'yz' }, 0)).toBe(false);
});

const delta = fc.record<Delta>(
  {
    type: fc.constant('message.delta' as const),
    m: fc.integer({ min: 0, max: 1 }),
    kind: fc.constantFrom('text' as const, 'reasoning' as const, 'tool_args' as const),
    text: fc.string({ unit: 'binary', maxLength: 20 }),
    index: fc.integer({ min: 0, max: 1 }),
    block: fc.record({ type: fc.constantFrom('text', 'thinking'), index: fc.integer({ min: 0, max: 1 }) }),
  },
  { requiredKeys: ['type', 'm', 'kind', 'text'] },
);
const event = fc.oneof(
  { weight: 4, arbitrary: delta },
  { weight: 1, arbitrary: fc.constant<LiveEvent>({ type: 'run.requeued', reason: 'drain' }) },
);
const step = fc.oneof(
  { weight: 8, arbitrary: event },
  fc.constantFrom('take' as const, 'acknowledge' as const, 'takeBack' as const, 'show' as const),
);

/** Neighbouring deltas of one kind joined without any bound: equal for two lists that differ only in how they are merged. */
function joined(events: readonly RunEvent[]): RunEvent[] {
  const out: RunEvent[] = [];
  for (const next of events) {
    const last = out.at(-1);
    if (
      last?.type === 'message.delta' &&
      next.type === 'message.delta' &&
      canMerge({ ...last, text: '' }, { ...next, text: '' }, 0)
    ) {
      last.text += next.text;
    } else out.push({ ...next });
  }
  return out;
}

/** What a reader gets at this moment; the queue may not make up for it later. */
const asSeen = (entries: readonly LogEntry[]) => entries.map(({ cursor, payload }) => ({ cursor, payload }));

test('whatever is taken, acknowledged, taken back or shown meanwhile: all is sent once, in order, with ids in order', () => {
  fc.assert(
    fc.property(fc.array(step, { maxLength: 60 }), (steps) => {
      const shared = { bytes: 0 };
      const queue = createRunQueue('r', 1, shared);
      const written: LiveEvent[] = [];
      const arrived: { cursor: number; payload: string }[] = [];
      const shown: { cursor: number; payload: string }[] = [];
      let flying = false;
      const act = (what: (typeof steps)[number]): void => {
        if (typeof what === 'object') {
          written.push(what);
          if (what.type !== 'message.delta') push(queue, { payload: encodeEvent(what) }, 0);
          else if (!merge(queue, what, 0)) push(queue, { delta: what }, 0);
        } else if (what === 'take' && !flying) flying = take(queue, 3, 200).length > 0;
        else if (what === 'acknowledge' && flying) {
          arrived.push(...asSeen(queue.inFlight));
          shown.push(...asSeen(acknowledge(queue)));
          flying = false;
        } else if (what === 'takeBack' && flying) {
          takeBack(queue);
          flying = false;
        } else if (what === 'show') shown.push(...asSeen(show(queue)));
      };
      for (const what of steps) act(what);
      for (let n = 0; n < 200; n += 1) for (const what of ['take', 'acknowledge'] as const) act(what);
      for (const sent of [arrived, shown]) {
        expect(sent.map(({ cursor }) => cursor)).toEqual(sent.map((_, index) => index));
        expect(joined(sent.map(({ payload }) => JSON.parse(payload)))).toEqual(joined(written));
      }
      expect(arrived).toHaveLength(queue.given);
      expect([queue.bytes, shared.bytes]).toEqual([0, 0]);
      expect(queue.writtenBytes).toBe(arrived.reduce((sum, { payload }) => sum + Buffer.byteLength(payload), 0));
    }),
  );
});

test('what is given up counts as settled, and leaves no bytes behind', () => {
  const shared = { bytes: 0 };
  const queue = createRunQueue('r', 2, shared);
  for (let n = 0; n < 5_000; n += 1) push(queue, { payload: `{"n":${n}}` }, 0);
  take(queue, 2, 1_000);
  for (let n = 0; n < 4_000; n += 1) dropOldest(queue);
  expect(isSettled(queue, queue.inFlight[1]?.cursor ?? 0)).toBe(false);
  acknowledge(queue);
  const first = take(queue, 1, 1)[0];
  expect(first?.payload).toBe('{"n":4002}');
  expect(isSettled(queue, (first?.cursor ?? 0) - 1)).toBe(true);
  expect(isSettled(queue, first?.cursor ?? 0)).toBe(false);
  takeBack(queue);
  for (let n = 0; n < 2_000; n += 1) dropOldest(queue);
  expect([queue.bytes, shared.bytes, queue.dropped]).toEqual([0, 0, 4_998]);
});
