import { describe, expect, test } from 'vitest';
import { verdict } from '#src/events/append-verdict.ts';
import { decodeEvent, encodeEvent } from '#src/events/codec.ts';
import { REPLAY_HOME, type RunEvent } from '#src/events/event.ts';
import { liveChannel, logKey } from '#src/events/keys.ts';
import { indexAfter, isNext, pushSeen, type Ring, type Seen } from '#src/events/ring.ts';
import { fromStored, isLong, toStored } from '#src/events/stored-bytes.ts';

test('every known type is an event, an unknown one is passed over, anything else is no event', () => {
  for (const type of Object.keys(REPLAY_HOME)) expect(decodeEvent(JSON.stringify({ type }))).toEqual({ type });
  for (const type of ['run.later', 'toString', '__proto__']) expect(decodeEvent(JSON.stringify({ type }))).toBeNull();
  for (const payload of ['', '{', 'null', '[]', '"run.started"', '{}', '{"type":1}']) {
    expect(() => decodeEvent(payload)).toThrow();
  }
  const event: RunEvent = { type: 'message.delta', m: 1, kind: 'text', text: '\uD800 \u0000 \u2028 \u{1F600}' };
  expect(decodeEvent(encodeEvent(event))).toEqual(event);
});

describe('stored bytes', () => {
  test('short payloads are themselves; long ones are marked, deflated, and come back', async () => {
    const short = '{"a":"é"}';
    expect(isLong(short)).toBe(false);
    expect(fromStored(Buffer.from(short))).toBe(short);
    for (const [payload, long] of [
      [`{"a":"${'x'.repeat(65_528)}"}`, false],
      [`{"a":"${'x'.repeat(65_529)}"}`, true],
      [`{"a":"${'中'.repeat(22_000)}"}`, true],
      [`{"a":"${'中'.repeat(21_000)}"}`, false],
    ] as const) {
      expect(isLong(payload)).toBe(long);
      const stored = await toStored(payload);
      expect(stored[0]).toBe(1);
      expect(await fromStored(stored)).toBe(payload);
    }
  });

  test('what is not ours is refused', async () => {
    for (const bytes of [
      Buffer.alloc(0),
      Buffer.from('x'),
      Buffer.from([1]),
      Buffer.from([1, 2, 3]),
      Buffer.from([2, 3]),
    ]) {
      await expect(fromStored(bytes)).rejects.toThrow();
    }
  });
});

test('a batch is fenced by other bytes, or by a refusal after which nothing of ours is held', () => {
  expect(verdict([])).toBe('appended');
  expect(verdict(['held', 'held'])).toBe('appended');
  expect(verdict(['absent', 'held'])).toBe('appended');
  expect(verdict(['held', 'absent'])).toBe('fenced');
  expect(verdict(['absent', 'held', 'absent'])).toBe('fenced');
  expect(verdict(['other', 'held'])).toBe('fenced');
});

describe('ring', () => {
  const seen = (cursor: number, bytes = 10): Seen => ({ cursor, bytes, item: null, missingHead: null });
  const filled = (count: number, bytes?: number): Ring => {
    const ring: Ring = { seen: [], bytes: 0 };
    for (let n = 0; n < count; n += 1) pushSeen(ring, seen(n * 2, bytes));
    return ring;
  };

  test('keeps the newest, at most 512 and 1 MB, and always one', () => {
    const many = filled(5_000);
    expect(many.seen.length).toBeLessThanOrEqual(512);
    expect(many.seen.length).toBeGreaterThan(300);
    expect(many.seen.at(-1)?.cursor).toBe(9_998);
    expect(many.bytes).toBe(many.seen.length * 10);
    const large = filled(50, 300_000);
    expect(large.seen.map(({ cursor }) => cursor)).toEqual([94, 96, 98]);
    expect(large.bytes).toBe(900_000);
    const huge = filled(3, 2_000_000);
    expect(huge.seen.map(({ cursor }) => cursor)).toEqual([4]);
    expect(huge.bytes).toBe(2_000_000);
  });

  test('finds the first entry after a cursor', () => {
    const ring = filled(100);
    expect([-1, 0, 1, 2, 197, 198, 500].map((cursor) => indexAfter(ring, cursor))).toEqual([0, 1, 1, 2, 99, 100, 100]);
  });

  test('only the next position of an epoch proves that nothing lies between', () => {
    expect(isNext(-1, 0)).toBe(true);
    expect(isNext(5, 6)).toBe(true);
    expect(isNext(5, 7)).toBe(false);
    expect(isNext(5, 1_000_000)).toBe(false);
    expect(isNext(999_999, 1_000_000)).toBe(false);
    expect(isNext(-1, 1)).toBe(false);
  });
});

test('names in Redis: one slot per run', () => {
  expect(logKey('r1')).toBe('runledger:{r1}:log');
  expect(liveChannel('r1')).toBe('runledger:{r1}:live');
});
