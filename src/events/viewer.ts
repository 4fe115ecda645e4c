/** One reader of a run. It holds a cursor and pulls; nothing is kept for it while it does not. */
import { type Channel, isFedHere, readPage } from './channel.ts';
import { type Cursor, follows, positionOf } from './cursor.ts';
import type { Viewer, ViewItem } from './hub.ts';
import { LogUnavailable } from './log.ts';
import { indexAfter, isNext, type Seen } from './ring.ts';

const MAX_ITEMS = 500;
const FIRST_BACKOFF_MS = 50;
const MAX_BACKOFF_MS = 1_000;
/** An owner on this process writes what it kept during an outage within this; until then a hole may still close. */
const HOLE_PATIENCE_MS = 1_500;
/** While the log stays away, a viewer of a run that is executed here waits this long for what it missed, then says gap. */
const AWAY_PATIENCE_MS = 10_000;

interface State {
  readonly channel: Channel;
  cursor: Cursor;
  /** The last entry before the marks of a hand-over; null when it is not known. */
  left: Cursor | null;
  losses: number;
  closed: boolean;
  /** Performance-clock times since when the log has not answered, and since when it lacks what must come next. */
  awaySinceMs: number | null;
  holeSinceMs: number | null;
  backoffMs: number;
  /** The signal whose abort already wakes this viewer. */
  signal: AbortSignal | null;
  resume: (() => void) | null;
}

/** What the viewer is given next. */
interface Step {
  items: ViewItem[];
  upTo: Cursor;
  left: Cursor | null;
  /** Entries among `items` whose head must be looked up. */
  headless: Seen[];
}

/** @param after the viewer begins after this cursor; the channel is open */
export function createViewer(channel: Channel, after: Cursor, onClose: () => void): Viewer {
  const state: State = {
    channel,
    cursor: after,
    left: isMark(after) ? null : after,
    losses: channel.losses,
    closed: false,
    awaySinceMs: null,
    holeSinceMs: null,
    backoffMs: FIRST_BACKOFF_MS,
    signal: null,
    resume: null,
  };
  const onAbort = (): void => state.resume?.();
  return {
    next(waitMs, signal) {
      // One listener per signal, not per call.
      if (state.signal !== signal) {
        state.signal?.removeEventListener('abort', onAbort);
        signal.addEventListener('abort', onAbort);
        state.signal = signal;
      }
      return next(state, performance.now() + waitMs, signal);
    },
    close() {
      if (state.closed) return;
      state.closed = true;
      state.signal?.removeEventListener('abort', onAbort);
      state.resume?.();
      onClose();
    },
  };
}

async function next(state: State, untilMs: number, signal: AbortSignal): Promise<ViewItem[]> {
  const { channel } = state;
  const over = (): boolean => state.closed || channel.closed || signal.aborted;
  while (!over()) {
    if (isLost(state)) return [{ kind: 'lost' }];
    const { tail } = channel;
    let retryMs: number | null = null;
    try {
      const step = fromRing(state) ?? (await fromLog(state));
      if (step !== null) {
        if (step.headless.length > 0) await findHeads(state, step.headless);
        calm(state, step);
        if (step.items.length > 0) return step.items;
        continue;
      }
      if (state.holeSinceMs !== null) retryMs = FIRST_BACKOFF_MS;
    } catch (error) {
      retryMs = backOff(state, error);
    }
    const leftMs = untilMs - performance.now();
    if (leftMs <= 0 || over()) return [];
    // What came while the log was asked woke nobody.
    if (retryMs === null && channel.tail !== tail) continue;
    await wait(state, leftMs, retryMs);
  }
  return [];
}

/** The log was found lost since the last call, and this viewer was ahead of its end: it goes on after that end. */
function isLost(state: State): boolean {
  const { channel } = state;
  if (state.losses === channel.losses) return false;
  state.losses = channel.losses;
  if (state.cursor <= channel.lostAt) return false;
  state.cursor = channel.lostAt;
  state.left = null;
  return true;
}

/** From memory, when what comes next is there and nothing can lie before it. */
function fromRing(state: State): Step | null {
  const { ring } = state.channel;
  const first = indexAfter(ring, state.cursor);
  let end = first;
  for (let previous = state.cursor; end < ring.seen.length && end - first < MAX_ITEMS; end += 1) {
    const seen = ring.seen[end];
    if (seen === undefined || !isNext(previous, seen.cursor)) break;
    previous = seen.cursor;
  }
  return end === first ? null : toStep(state, ring.seen.slice(first, end));
}

/** From the log: history, and whatever memory has a hole before. null: there is nothing, or not yet. */
async function fromLog(state: State): Promise<Step | null> {
  const { channel, cursor } = state;
  if (cursor >= channel.tail) return null;
  // Looked up before the log is read: what precedes it there was stored before it came here.
  const known = channel.ring.seen[indexAfter(channel.ring, cursor)];
  let page: Seen[];
  try {
    page = await readPage(channel, cursor);
  } catch (error) {
    if (known === undefined || !isAwayTooLong(state)) throw error;
    page = [];
  }
  const first = page[0];
  if (first !== undefined && (known === undefined || first.cursor <= known.cursor)) return toStep(state, page);
  if (known === undefined) return null;
  if (isFedHere(channel)) {
    state.holeSinceMs ??= performance.now();
    if (performance.now() - state.holeSinceMs < HOLE_PATIENCE_MS) return null;
  }
  return toStep(state, [known]);
}

/** `seen` in the order of the log, after the viewer's cursor. */
function toStep({ cursor, left: leftBefore }: State, seen: Seen[]): Step {
  const items: ViewItem[] = [];
  const headless: Seen[] = [];
  let previous = cursor;
  let left = leftBefore;
  for (const entry of seen) {
    if (items.length >= MAX_ITEMS - 1) break;
    const event = entry.item?.entry.event;
    const missed = event?.type === 'run.taken_over' && isElsewhere(event.after, previous, left);
    if (missed || !follows(previous, entry.cursor)) items.push({ kind: 'gap' });
    if (event?.type !== 'run.requeued') left = entry.cursor;
    if (entry.item !== null) items.push(entry.item);
    if (entry.missingHead !== null) headless.push(entry);
    previous = entry.cursor;
  }
  return { items, upTo: previous, left, headless };
}

/** The first of a later epoch: the mark of a hand-over, or of what came after it. */
function isMark(cursor: Cursor): boolean {
  return cursor > 0 && positionOf(cursor) === 0;
}

/**
 * Whether what the former owner left ends elsewhere than what the viewer saw of it: it missed something, or was shown what
 * never reached the log. Older versions name the mark of the hand-over itself, which is the last the viewer was given.
 */
function isElsewhere(after: Cursor, previous: Cursor, left: Cursor | null): boolean {
  if (after === previous) return false;
  return left === null ? after > previous : after !== left;
}

async function findHeads(state: State, headless: Seen[]): Promise<void> {
  const { heads } = state.channel;
  for (const seen of headless) {
    if (seen.item === null || seen.missingHead === null) continue;
    const known = heads.known(seen.missingHead);
    try {
      seen.item.entry.head = known === undefined ? await heads.fetch(seen.missingHead) : known;
      seen.missingHead = null;
    } catch (error) {
      if (!isAwayTooLong(state)) throw error;
    }
  }
}

function isAwayTooLong(state: State): boolean {
  if (state.awaySinceMs === null || !isFedHere(state.channel)) return false;
  return performance.now() - state.awaySinceMs > AWAY_PATIENCE_MS;
}

function calm(state: State, { upTo, left }: Step): void {
  state.cursor = upTo;
  state.left = left;
  state.awaySinceMs = null;
  state.holeSinceMs = null;
  state.backoffMs = FIRST_BACKOFF_MS;
}

function backOff(state: State, error: unknown): number {
  if (!(error instanceof LogUnavailable)) {
    state.channel.logger.error({ err: error, runId: state.channel.runId }, 'run not readable');
  }
  state.awaySinceMs ??= performance.now();
  const retryMs = state.backoffMs;
  state.backoffMs = Math.min(MAX_BACKOFF_MS, retryMs * 2);
  return retryMs;
}

/** Until the time is over, the viewer is closed or aborted, or the channel has news. With `retryMs` news cannot help. */
function wait(state: State, leftMs: number, retryMs: number | null): Promise<void> {
  const { channel } = state;
  return new Promise((resolve) => {
    const done = (): void => {
      clearTimeout(timer);
      channel.waiting.delete(done);
      state.resume = null;
      resolve();
    };
    const timer = setTimeout(done, Math.min(leftMs, retryMs ?? leftMs));
    state.resume = done;
    if (retryMs === null) channel.waiting.add(done);
  });
}
