/** Live entries from Redis: one subscriber connection, one channel per followed run. */
import type { Redis } from 'ioredis';
import type { Logger } from 'pino';
import { createDeadline } from '#src/redis/deadline.ts';
import { type Cursor, fromEntryId } from './cursor.ts';
import { liveChannel } from './keys.ts';
import { type LogEntry, LogUnavailable } from './log.ts';
import { fromStored } from './stored-bytes.ts';

type OnEntry = (entry: LogEntry) => void;

interface Feed {
  readonly listeners: Set<OnEntry>;
  /** Set while an earlier message is being inflated: later ones wait for it, so that order is kept. */
  busy: Promise<void> | null;
}

export interface Subscriptions {
  /** Resolves once Redis has acknowledged the subscription. @throws LogUnavailable */
  add(runId: string, onEntry: OnEntry): Promise<() => void>;
  close(): void;
}

const SUBSCRIBE_DEADLINE_MS = 1_000;
const SPACE = 0x20;

/** Subscriptions outlive the connection: when it is back, every channel is subscribed again. */
export function createSubscriptions(deps: { subscriber: Redis; logger: Logger }): Subscriptions {
  const { subscriber, logger } = deps;
  const feeds = new Map<string, Feed>();
  const deadline = createDeadline();

  const onMessage = (channel: Buffer, message: Buffer): void => {
    const feed = feeds.get(channel.toString('latin1'));
    if (feed !== undefined) receive(feed, message, logger);
  };
  const onReady = (): void => {
    if (feeds.size === 0) return;
    // Fails only when the connection is lost again, and then `ready` comes again.
    subscriber.subscribe(...feeds.keys()).catch((error: Error) => {
      logger.warn({ reason: error.message }, 'channels not subscribed again');
    });
  };
  subscriber.on('messageBuffer', onMessage);
  subscriber.on('ready', onReady);

  function leave(channel: string, feed: Feed, onEntry: OnEntry): void {
    if (!feed.listeners.delete(onEntry) || feed.listeners.size > 0) return;
    feeds.delete(channel);
    // A connection that is away holds no subscription that could be ended.
    subscriber.unsubscribe(channel).catch(() => logger.debug({ channel }, 'channel not unsubscribed'));
  }

  return {
    async add(runId, onEntry) {
      const channel = liveChannel(runId);
      const feed = feeds.get(channel) ?? { listeners: new Set(), busy: null };
      feeds.set(channel, feed);
      feed.listeners.add(onEntry);
      try {
        // Also when the channel is subscribed already: the acknowledgement must come after this call.
        await deadline.within(SUBSCRIBE_DEADLINE_MS, () => subscriber.subscribe(channel));
      } catch (error) {
        leave(channel, feed, onEntry);
        throw new LogUnavailable(error instanceof Error ? error.message : 'not subscribed');
      }
      return () => leave(channel, feed, onEntry);
    },
    close() {
      subscriber.off('messageBuffer', onMessage);
      subscriber.off('ready', onReady);
      for (const [channel, feed] of [...feeds])
        for (const listener of [...feed.listeners]) leave(channel, feed, listener);
    },
  };
}

/** A message is `<entry id> <stored bytes>`, or empty for an entry that is too large to be published. */
function receive(feed: Feed, message: Buffer, logger: Logger): void {
  if (message.length === 0) return;
  const space = message.indexOf(SPACE);
  const cursor = fromEntryId(message.toString('latin1', 0, space));
  const payload = fromStored(message.subarray(space + 1));
  if (typeof payload === 'string' && feed.busy === null) {
    emit(feed, { cursor, payload });
    return;
  }
  const done = inOrder(feed, feed.busy, cursor, payload, logger).finally(() => {
    if (feed.busy === done) feed.busy = null;
  });
  feed.busy = done;
}

async function inOrder(
  feed: Feed,
  before: Promise<void> | null,
  cursor: Cursor,
  payload: string | Promise<string>,
  logger: Logger,
): Promise<void> {
  const [inflated] = await Promise.allSettled([payload, before]);
  if (inflated.status === 'fulfilled') emit(feed, { cursor, payload: inflated.value });
  // The reader finds the hole and reads the log.
  else logger.error({ err: inflated.reason, cursor }, 'published entry cannot be read');
}

function emit(feed: Feed, entry: LogEntry): void {
  for (const listener of feed.listeners) listener(entry);
}
