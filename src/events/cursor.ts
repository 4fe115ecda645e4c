/**
 * A cursor names one entry of a run's log as an integer: `(epoch - 1) * 1_000_000 + n`, where `n` counts the ids the
 * owner of that epoch has given out, from 0. In Redis the same entry has the id `<epoch>-<n>`, so Redis itself refuses
 * an owner whose epoch is over. `BEFORE_START` (-1) is the cursor of a reader that has seen nothing.
 */
export type Cursor = number;

export const BEFORE_START: Cursor = -1;
const IDS_PER_EPOCH = 1_000_000;

/** The cursor of the `n`-th id of `epoch` (epoch from 1, n from 0). */
export function cursorOf(epoch: number, n: number): Cursor {
  return (epoch - 1) * IDS_PER_EPOCH + n;
}

/** The epoch (from 1) of a cursor that is not `BEFORE_START`. */
export function epochOf(cursor: Cursor): number {
  return Math.floor(cursor / IDS_PER_EPOCH) + 1;
}

/** The position of a cursor within its epoch, from 0. */
export function positionOf(cursor: Cursor): number {
  return cursor % IDS_PER_EPOCH;
}

/** True when no id was skipped between `previous` and `next`: the next position of the epoch, or the first of a later one. */
export function follows(previous: Cursor, next: Cursor): boolean {
  if (previous === BEFORE_START) return positionOf(next) === 0;
  return next === previous + 1 || (epochOf(next) > epochOf(previous) && positionOf(next) === 0);
}

/** `<epoch>-<n>`, the Redis entry id of a cursor. */
export function toEntryId(cursor: Cursor): string {
  return `${epochOf(cursor)}-${positionOf(cursor)}`;
}

/** The cursor of a Redis entry id `<epoch>-<n>`. The id must come from our own log. */
export function fromEntryId(id: string): Cursor {
  const dash = id.indexOf('-');
  return cursorOf(Number(id.slice(0, dash)), Number(id.slice(dash + 1)));
}

/**
 * Parses a cursor that a client sent (`last_event_id` or `Last-Event-ID`).
 * Returns null when it is not a plain non-negative integer that can be a cursor; the caller answers 400.
 */
export function parseCursor(text: string): Cursor | null {
  if (!/^\d{1,15}$/.test(text)) return null;
  return Number(text);
}
