/** A channel's life: it subscribes, looks at the end of the log now and then, and ends. */
import { accept, type Channel, isFedHere, wake, wakeSoon } from './channel.ts';
import { BEFORE_START, type Cursor } from './cursor.ts';
import { type LogEntry, LogUnavailable } from './log.ts';

/** Looks in a row, so that a log that is being written again after an outage is not taken for lost. */
const CHECKS_BEFORE_LOST = 3;
const FIRST_BACKOFF_MS = 100;
const MAX_BACKOFF_MS = 1_000;

/**
 * Subscribes, and looks where the log ends; repeated until it succeeds. Resolves after the first try, so that a viewer
 * attached while the log is away is served with what this process delivers.
 */
export async function openChannel(channel: Channel, tailCheckMs: number): Promise<void> {
  if (await connect(channel, tailCheckMs)) return;
  let backoffMs = FIRST_BACKOFF_MS;
  const again = (): void => {
    channel.timer = setTimeout(async () => {
      if (channel.closed || (await connect(channel, tailCheckMs))) return;
      backoffMs = Math.min(MAX_BACKOFF_MS, backoffMs * 2);
      again();
    }, backoffMs).unref();
  };
  if (!channel.closed) again();
}

async function connect(channel: Channel, tailCheckMs: number): Promise<boolean> {
  try {
    const unsubscribe = await channel.log.subscribe(channel.runId, (entry) => accept(channel, entry, 'published'));
    if (channel.closed) {
      unsubscribe();
      return true;
    }
    channel.unsubscribe = unsubscribe;
  } catch (error) {
    logFailure(channel, error, 'run not subscribed yet');
    return false;
  }
  await check(channel);
  if (channel.closed) return true;
  // The last publication of a run can be lost, and nothing after it would show the hole.
  const tick = (): void => {
    channel.timer = setTimeout(async () => {
      await check(channel);
      if (!channel.closed) tick();
    }, tailCheckMs).unref();
  };
  tick();
  return true;
}

/** One look at the end of the log: something new, as expected, or less than was seen. */
async function check(channel: Channel): Promise<void> {
  let last: LogEntry | null;
  try {
    last = await channel.log.last(channel.runId);
  } catch (error) {
    logFailure(channel, error, 'end of the log not readable');
    return;
  }
  if (channel.closed) return;
  const end = last?.cursor ?? BEFORE_START;
  if (last !== null) accept(channel, last, 'checked');
  const { heard } = channel;
  channel.end = end;
  channel.heard = false;
  const viewerIsAhead = channel.asked > channel.tail;
  const logIsBehind = end < channel.tail && !heard && !isFedHere(channel);
  if (!viewerIsAhead && !logIsBehind) {
    channel.behind = 0;
    return;
  }
  channel.behind += 1;
  if (channel.behind < CHECKS_BEFORE_LOST) return;
  if (logIsBehind) forgetSeen(channel, end);
  turnBack(channel);
}

/** The log is gone or another one: what was seen beyond its end is none of it. */
function forgetSeen(channel: Channel, end: Cursor): void {
  channel.logger.warn({ runId: channel.runId, end, seen: channel.tail }, 'event log of a watched run is lost');
  channel.tail = end;
  channel.ring.seen.length = 0;
  channel.ring.bytes = 0;
}

/** Viewers that are ahead of what is known are told, and go on after it; a client may come with any cursor. */
function turnBack(channel: Channel): void {
  channel.losses += 1;
  channel.lostAt = channel.tail;
  channel.asked = channel.tail;
  channel.behind = 0;
  wakeSoon(channel);
}

export function closeChannel(channel: Channel): void {
  channel.closed = true;
  if (channel.timer !== null) clearTimeout(channel.timer);
  channel.unsubscribe?.();
  wake(channel);
}

function logFailure(channel: Channel, error: unknown, message: string): void {
  const { runId, logger } = channel;
  if (error instanceof LogUnavailable) logger.debug({ runId, reason: error.message }, message);
  else logger.error({ err: error, runId }, message);
}
