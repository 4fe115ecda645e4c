import fc from 'fast-check';
import { expect, test } from 'vitest';
import {
  BEFORE_START,
  cursorOf,
  epochOf,
  follows,
  fromEntryId,
  parseCursor,
  positionOf,
  toEntryId,
} from '#src/events/cursor.ts';

const place = fc.record({ epoch: fc.integer({ min: 1, max: 900_000_000 }), n: fc.integer({ min: 0, max: 999_999 }) });

test('a cursor, its epoch and position, and its entry id say the same', () => {
  fc.assert(
    fc.property(place, ({ epoch, n }) => {
      const cursor = cursorOf(epoch, n);
      expect(Number.isSafeInteger(cursor)).toBe(true);
      expect([epochOf(cursor), positionOf(cursor)]).toEqual([epoch, n]);
      expect(toEntryId(cursor)).toBe(`${epoch}-${n}`);
      expect(fromEntryId(toEntryId(cursor))).toBe(cursor);
      expect(parseCursor(String(cursor))).toBe(cursor);
    }),
  );
});

test('cursors are in the order of epoch, then position', () => {
  fc.assert(
    fc.property(place, place, (a, b) => {
      const order = a.epoch - b.epoch || a.n - b.n;
      expect(Math.sign(cursorOf(a.epoch, a.n) - cursorOf(b.epoch, b.n))).toBe(Math.sign(order));
    }),
  );
});

test('one entry follows another when it has the next position, or is the first of a later epoch', () => {
  fc.assert(
    fc.property(place, place, (a, b) => {
      const expected = (a.epoch === b.epoch && b.n === a.n + 1) || (b.epoch > a.epoch && b.n === 0);
      const lastOfEpoch = a.n === 999_999 && b.epoch === a.epoch + 1 && b.n === 0;
      expect(follows(cursorOf(a.epoch, a.n), cursorOf(b.epoch, b.n))).toBe(expected || lastOfEpoch);
    }),
  );
  for (const epoch of [1, 2, 7]) {
    expect(follows(BEFORE_START, cursorOf(epoch, 0))).toBe(true);
    expect(follows(BEFORE_START, cursorOf(epoch, 1))).toBe(false);
    expect(follows(cursorOf(epoch, 4), cursorOf(epoch, 5))).toBe(true);
    expect(follows(cursorOf(epoch, 4), cursorOf(epoch, 6))).toBe(false);
    expect(follows(cursorOf(epoch, 4), cursorOf(epoch + 2, 0))).toBe(true);
    expect(follows(cursorOf(epoch + 1, 4), cursorOf(epoch, 0))).toBe(false);
  }
});

test('what a client sends is a cursor only when it is a plain number', () => {
  for (const text of ['', ' 1', '1 ', '+1', '-1', '1.0', '1e3', '0x1', 'abc', '1-0', '9'.repeat(16), '१', '1\n']) {
    expect(parseCursor(text)).toBeNull();
  }
  expect(parseCursor('0')).toBe(0);
  expect(parseCursor('9'.repeat(15))).toBe(999_999_999_999_999);
});
