/** The newest entries of one watched run, parsed, for all viewers of the process. */
import { type Cursor, positionOf } from './cursor.ts';
import type { SeenEntry, ViewItem } from './hub.ts';

/** A parsed entry. `item` is null when its type is unknown here: its id counts, nobody is told. */
export interface Seen {
  readonly cursor: Cursor;
  readonly bytes: number;
  readonly item: (ViewItem & { kind: 'entry' }) | null;
  /** The head this entry names and that has not been looked up yet; null when there is none. */
  missingHead: Cursor | null;
}

export interface Ring {
  readonly seen: Seen[];
  bytes: number;
}

const MAX_ENTRIES = 512;
const MAX_BYTES = 1024 * 1024;

/** Adds an entry that is newer than all; the oldest leave when there are too many. One always stays. */
export function pushSeen(ring: Ring, seen: Seen): void {
  ring.seen.push(seen);
  ring.bytes += seen.bytes;
  if (ring.seen.length <= MAX_ENTRIES && ring.bytes <= MAX_BYTES) return;
  // A quarter at a time, so that a full ring is not moved for every entry.
  let drop = ring.seen.length > MAX_ENTRIES ? MAX_ENTRIES / 4 : 0;
  let bytes = ring.seen.slice(0, drop).reduce((sum, entry) => sum + entry.bytes, 0);
  while (drop < ring.seen.length - 1 && ring.bytes - bytes > MAX_BYTES) {
    bytes += ring.seen[drop]?.bytes ?? 0;
    drop += 1;
  }
  ring.seen.splice(0, drop);
  ring.bytes -= bytes;
}

/** Index of the first entry after the cursor; the ring's length when there is none. */
export function indexAfter(ring: Ring, cursor: Cursor): number {
  let low = 0;
  let high = ring.seen.length;
  while (low < high) {
    const middle = (low + high) >>> 1;
    if ((ring.seen[middle]?.cursor ?? 0) > cursor) high = middle;
    else low = middle + 1;
  }
  return low;
}

/**
 * Whether nothing can lie between the two, which only the next position of the same epoch proves. The first entry of an
 * epoch proves nothing: the end of the epoch before it may not have been published here.
 */
export function isNext(previous: Cursor, next: Cursor): boolean {
  return next === previous + 1 && (positionOf(next) > 0 || next === 0);
}

export function entryItem(entry: SeenEntry): ViewItem & { kind: 'entry' } {
  return { kind: 'entry', entry };
}
