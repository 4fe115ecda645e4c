/** One watched run: its subscription, its newest entries, and whoever waits for the next. Shared by all its viewers here. */
import type { Logger } from 'pino';
import { decodeEvent } from './codec.ts';
import { BEFORE_START, type Cursor, epochOf } from './cursor.ts';
import type { RunEvent } from './event.ts';
import { createHeads, type Heads } from './heads.ts';
import type { EventLog, LogEntry } from './log.ts';
import { entryItem, indexAfter, pushSeen, type Ring, type Seen } from './ring.ts';

export interface Channel {
  readonly runId: string;
  readonly log: EventLog;
  readonly logger: Logger;
  readonly ring: Ring;
  readonly heads: Heads;
  /** The greatest cursor known; its entry is in the ring unless the log was found to be another one. */
  tail: Cursor;
  /** The greatest cursor any viewer came with. */
  asked: Cursor;
  /** Live entries of an older epoch are dropped. */
  floorEpoch: number;
  /** Everything up to here was delivered by this process' own writer. */
  fedThrough: Cursor;
  /** Where the log ended when it was last looked at. */
  end: Cursor;
  /** Since then something was published that lies after that end: its writer lives, and the log may only be full. */
  heard: boolean;
  /** Looks in a row that found the log behind what was seen. */
  behind: number;
  /** How often the log was found to be lost, and where it ended then. */
  losses: number;
  lostAt: Cursor;
  viewers: number;
  waiting: Set<() => void>;
  waking: boolean;
  closed: boolean;
  unsubscribe: (() => void) | null;
  timer: NodeJS.Timeout | null;
  /** Page reads under way, by the cursor they begin after. */
  readonly pages: Map<Cursor, Promise<Seen[]>>;
  pageLimit: number;
}

export type Source = 'published' | 'delivered' | 'checked';

const FIRST_PAGE = 100;
const MAX_PAGE = 500;
/** What a stalled reader holds: the page it is in the middle of, as events and as the frames made of them. */
const PAGE_BYTES = 128 * 1024;

export function createChannel(deps: { runId: string; log: EventLog; logger: Logger }): Channel {
  return {
    ...deps,
    ring: { seen: [], bytes: 0 },
    heads: createHeads(deps.log, deps.runId),
    tail: BEFORE_START,
    asked: BEFORE_START,
    floorEpoch: 0,
    fedThrough: BEFORE_START,
    end: BEFORE_START,
    heard: false,
    behind: 0,
    losses: 0,
    lostAt: BEFORE_START,
    viewers: 0,
    waiting: new Set(),
    waking: false,
    closed: false,
    unsubscribe: null,
    timer: null,
    pages: new Map(),
    pageLimit: FIRST_PAGE,
  };
}

/** Whether this process' own writer feeds the channel to its end: then the log may be behind it for a while. */
export function isFedHere(channel: Channel): boolean {
  return channel.fedThrough !== BEFORE_START && channel.fedThrough >= channel.tail;
}

/** Takes what is new, in order of cursors; everything else is a repetition or comes from a writer whose epoch is over. */
export function accept(channel: Channel, entry: LogEntry, source: Source): void {
  if (source === 'delivered') channel.fedThrough = Math.max(channel.fedThrough, entry.cursor);
  if (source === 'published' && entry.cursor > channel.end) channel.heard = true;
  if (channel.closed || entry.cursor <= channel.tail) return;
  if (source !== 'checked' && epochOf(entry.cursor) < channel.floorEpoch) return;
  const seen = parse(channel, entry);
  if (seen === null) return;
  channel.tail = entry.cursor;
  pushSeen(channel.ring, seen);
  wakeSoon(channel);
}

/** null for an entry that cannot be read: as if it were not there, so that viewers are told of a gap. */
function parse(channel: Channel, entry: LogEntry): Seen | null {
  const { cursor } = entry;
  const bytes = entry.payload.length;
  let event: RunEvent | null;
  try {
    event = decodeEvent(entry.payload);
  } catch (error) {
    channel.logger.error({ reason: String(error), runId: channel.runId, cursor }, 'log entry is no event');
    return null;
  }
  if (event === null) {
    channel.logger.debug({ runId: channel.runId, cursor }, 'log entry of an unknown type passed over');
    return { cursor, bytes, item: null, missingHead: null };
  }
  if (event.type === 'message.head') channel.heads.note(cursor, event);
  const m = event.type === 'message.delta' || event.type === 'message.chunk' ? event.m : null;
  const head = m === null ? null : channel.heads.known(m);
  return {
    cursor,
    bytes,
    item: entryItem({ cursor, event, head: head ?? null }),
    missingHead: head === undefined ? m : null,
  };
}

/** All that arrives in one turn of the event loop wakes the viewers once. */
export function wakeSoon(channel: Channel): void {
  if (channel.waking || channel.waiting.size === 0) return;
  channel.waking = true;
  setImmediate(() => {
    channel.waking = false;
    wake(channel);
  });
}

/** Lets every waiting viewer look again. */
export function wake(channel: Channel): void {
  const waiting = channel.waiting;
  channel.waiting = new Set();
  for (const resume of waiting) resume();
}

/**
 * What the log holds after the cursor, one page. Viewers that ask for the same at the same time share one read.
 * @throws LogUnavailable
 */
export function readPage(channel: Channel, after: Cursor): Promise<Seen[]> {
  const running = channel.pages.get(after) ?? page(channel, after).finally(() => channel.pages.delete(after));
  channel.pages.set(after, running);
  return running;
}

async function page(channel: Channel, after: Cursor): Promise<Seen[]> {
  const { entries } = await channel.log.read(channel.runId, after, channel.pageLimit);
  let bytes = 0;
  const seen: Seen[] = [];
  for (const entry of entries) {
    bytes += entry.payload.length;
    const kept = channel.ring.seen[indexAfter(channel.ring, entry.cursor - 1)];
    const parsed = kept?.cursor === entry.cursor ? kept : parse(channel, entry);
    if (parsed !== null) seen.push(parsed);
  }
  // Pages of large entries become short ones: every run's appends wait behind a read.
  if (bytes > PAGE_BYTES) channel.pageLimit = Math.max(1, Math.floor((entries.length * PAGE_BYTES) / bytes));
  else channel.pageLimit = Math.min(MAX_PAGE, channel.pageLimit * 2);
  return seen;
}
