/** What one run has written and the log has not acknowledged: waiting entries, and those in flight. Ground of the writer. */
import { encodeEvent } from './codec.ts';
import { type Cursor, cursorOf } from './cursor.ts';
import type { LogEntry } from './log.ts';
import { canMerge, type Delta } from './merge.ts';

/** An entry on its way. While `delta` is set it is open: it may still grow and has no payload yet. */
interface Waiting extends LogEntry {
  bytes: number;
  delta: Delta | null;
  openedAtMs: number;
}

export interface RunQueue {
  readonly runId: string;
  readonly epoch: number;
  /** Ids given out; the position of the next one. */
  given: number;
  /** Ascending; entries before `first` are gone. */
  waiting: Waiting[];
  first: number;
  inFlight: Waiting[];
  /** Of waiting and in-flight entries; also counted in `shared`. */
  bytes: number;
  /** Of all queues of the process. */
  readonly shared: { bytes: number };
  /** Of all payloads of the run, as far as they are known. */
  writtenBytes: number;
  /** Entries of former epochs. */
  formerEvents: number;
  /** Local viewers were given everything up to here. */
  shown: Cursor;
  /** The log is away: local viewers are served without waiting for it, until the queue is empty again. */
  detached: boolean;
  /** log.torn is written, the log fenced the run, or its owner closed it: nothing more is kept. */
  stopped: boolean;
  fenced: boolean;
  /** Entries given up because the ring was full while the log was away. */
  dropped: number;
}

/** Beside its text, roughly, an open delta's payload. Corrected when the payload is made. */
const DELTA_BYTES = 80;

export function createRunQueue(runId: string, epoch: number, shared: { bytes: number }): RunQueue {
  return {
    runId,
    epoch,
    given: 0,
    waiting: [],
    first: 0,
    inFlight: [],
    bytes: 0,
    shared,
    writtenBytes: 0,
    formerEvents: 0,
    shown: cursorOf(epoch, 0) - 1,
    detached: false,
    stopped: false,
    fenced: false,
    dropped: 0,
  };
}

export function lastCursor(queue: RunQueue): Cursor {
  return cursorOf(queue.epoch, Math.max(0, queue.given - 1));
}

/** Whether nothing waits to be sent; entries may still be in flight. */
export function nothingWaits(queue: RunQueue): boolean {
  return queue.first === queue.waiting.length;
}

/** Whether nothing waits to be sent and nothing is in flight. */
export function isEmpty(queue: RunQueue): boolean {
  return nothingWaits(queue) && queue.inFlight.length === 0;
}

/** Whether everything up to the cursor is acknowledged or given up. */
export function isSettled(queue: RunQueue, upTo: Cursor): boolean {
  const oldest = queue.inFlight[0] ?? queue.waiting[queue.first];
  return oldest === undefined || oldest.cursor > upTo;
}

/** Adds to the open delta if that is allowed; returns whether it was. */
export function merge(queue: RunQueue, delta: Delta, nowMs: number): boolean {
  const open = queue.waiting.at(-1);
  if (!open?.delta || !canMerge(open.delta, delta, nowMs - open.openedAtMs)) return false;
  open.delta.cuts?.push(open.delta.text.length);
  open.delta.text += delta.text;
  grow(queue, open, delta.text.length);
  return true;
}

/** Queues an event: a delta stays open for merging and gets its payload when it leaves; any other comes with it. */
export function push(queue: RunQueue, what: { delta: Delta } | { payload: string }, nowMs: number): void {
  const open = 'delta' in what ? { ...what.delta } : null;
  const payload = 'payload' in what ? what.payload : '';
  const entry: Waiting = {
    cursor: cursorOf(queue.epoch, queue.given),
    payload,
    bytes: 0,
    delta: open,
    openedAtMs: nowMs,
  };
  // Only the newest may be open: what local viewers are shown has its payload.
  const before = queue.waiting.at(-1);
  if (before !== undefined) close(queue, before);
  queue.given += 1;
  queue.waiting.push(entry);
  grow(queue, entry, open === null ? Buffer.byteLength(payload) : open.text.length + DELTA_BYTES);
}

function grow(queue: RunQueue, entry: Waiting, bytes: number): void {
  entry.bytes += bytes;
  queue.bytes += bytes;
  queue.shared.bytes += bytes;
  queue.writtenBytes += bytes;
}

function shrink(queue: RunQueue, bytes: number): void {
  queue.bytes -= bytes;
  queue.shared.bytes -= bytes;
}

/** Gives an open delta its payload; it cannot grow after that. */
function close(queue: RunQueue, entry: Waiting): void {
  if (entry.delta === null) return;
  entry.payload = encodeEvent(entry.delta);
  entry.delta = null;
  grow(queue, entry, Buffer.byteLength(entry.payload) - entry.bytes);
}

/** Moves entries to the flight, oldest first: at least one, at most `maxEntries` and about `maxBytes`. */
export function take(queue: RunQueue, maxEntries: number, maxBytes: number): LogEntry[] {
  let bytes = 0;
  let end = queue.first;
  while (end < queue.waiting.length && end - queue.first < maxEntries && (bytes < maxBytes || end === queue.first)) {
    const entry = queue.waiting[end];
    if (entry === undefined) break;
    close(queue, entry);
    bytes += entry.bytes;
    end += 1;
  }
  queue.inFlight = queue.waiting.slice(queue.first, end);
  forget(queue, end);
  return queue.inFlight;
}

/** Entries before `end` leave the waiting list. */
function forget(queue: RunQueue, end: number): void {
  if (end === queue.waiting.length) {
    queue.waiting = [];
    queue.first = 0;
    return;
  }
  queue.first = end;
  if (queue.first < 1024 || queue.first * 2 < queue.waiting.length) return;
  queue.waiting = queue.waiting.slice(queue.first);
  queue.first = 0;
}

/** The flight arrived. Returns what local viewers have not been given yet. */
export function acknowledge(queue: RunQueue): LogEntry[] {
  const arrived = queue.inFlight;
  queue.inFlight = [];
  for (const entry of arrived) shrink(queue, entry.bytes);
  if (nothingWaits(queue)) queue.detached = false;
  return unshown(queue, arrived);
}

/** The flight's fate is unknown: its entries are the next to be sent, with the same bytes. */
export function takeBack(queue: RunQueue): void {
  if (queue.inFlight.length === 0) return;
  queue.waiting = [...queue.inFlight, ...queue.waiting.slice(queue.first)];
  queue.first = 0;
  queue.inFlight = [];
}

/** What a detached run has written and local viewers have not been given; closes an open delta. */
export function show(queue: RunQueue): LogEntry[] {
  const open = queue.waiting.at(-1);
  if (open !== undefined) close(queue, open);
  const flying = unshown(queue, queue.inFlight);
  const waiting = unshown(queue, queue.waiting);
  return flying.length === 0 ? waiting : [...flying, ...waiting];
}

/** Looks from the end: while the log is away the list is long and the news is short. */
function unshown(queue: RunQueue, entries: Waiting[]): Waiting[] {
  let from = entries.length;
  while (from > 0 && (entries[from - 1]?.cursor ?? 0) > queue.shown) from -= 1;
  const news = from === 0 ? entries : entries.slice(from);
  queue.shown = news.at(-1)?.cursor ?? queue.shown;
  return news;
}

/** Gives up the oldest waiting entry, if any: readers will see a gap. */
export function dropOldest(queue: RunQueue): void {
  const entry = queue.waiting[queue.first];
  if (entry === undefined) return;
  shrink(queue, entry.bytes);
  queue.dropped += 1;
  forget(queue, queue.first + 1);
}

/** Gives up everything, and keeps nothing more. */
export function stopQueue(queue: RunQueue): void {
  shrink(queue, queue.bytes);
  queue.waiting = [];
  queue.first = 0;
  queue.inFlight = [];
  queue.stopped = true;
}
