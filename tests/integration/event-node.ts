/** One process' share of the event log, with its own two Redis connections, and readers that check what they are given. */
import { pino } from 'pino';
import { expect } from 'vitest';
import { BEFORE_START, type Cursor, follows } from '#src/events/cursor.ts';
import type { Hub, SeenEntry, Viewer } from '#src/events/hub.ts';
import { createHub } from '#src/events/live-hub.ts';
import type { EventLog } from '#src/events/log.ts';
import { createLogWriter } from '#src/events/log-writer.ts';
import { createRedisLog } from '#src/events/redis-log.ts';
import type { LogWriter, RunWriter } from '#src/events/writer.ts';
import { createRedis, type RedisClients } from '#src/redis/clients.ts';
import { until } from '#tests/support/until.ts';

export const logger = pino({ level: process.env.TEST_LOG_LEVEL ?? 'silent' });

export interface EventNode {
  redis: RedisClients;
  log: EventLog;
  hub: Hub;
  writer: LogWriter;
  close(): Promise<void>;
}

export interface NodeOptions {
  unacknowledgedBytes?: number;
  maxEvents?: number;
  maxBytes?: number;
  tailCheckMs?: number;
  detachAfterMs?: number;
  appendDeadlineMs?: number;
}

export async function openNode(url: string, options: NodeOptions = {}): Promise<EventNode> {
  const redis = createRedis({ url, logger });
  const log = createRedisLog({
    redis,
    logger,
    ...(options.appendDeadlineMs === undefined ? {} : { appendDeadlineMs: options.appendDeadlineMs }),
  });
  await until(() => log.ping().then(() => true), { message: 'Redis to answer' });
  const hub = createHub({ log, logger, tailCheckMs: options.tailCheckMs ?? 300 });
  const writer = createLogWriter({
    log,
    deliver: hub.deliver,
    limits: {
      maxEvents: options.maxEvents ?? 900_000,
      maxBytes: options.maxBytes ?? 1024 ** 3,
      unacknowledgedBytes: options.unacknowledgedBytes ?? 16 * 1024 ** 2,
    },
    logger,
    ...(options.detachAfterMs === undefined ? {} : { detachAfterMs: options.detachAfterMs }),
  });
  return {
    redis,
    log,
    hub,
    writer,
    async close() {
      await writer.close();
      await hub.close();
      await log.close();
      await redis.close();
    },
  };
}

export interface Reading {
  /** Entries in the order received; 'gap' and 'lost' where they were said. */
  readonly received: (SeenEntry | 'gap' | 'lost')[];
  readonly entries: SeenEntry[];
  readonly gaps: number;
  readonly last: Cursor;
  stop(): Promise<void>;
}

/**
 * Reads until stopped. Fails when a cursor repeats or goes back, or when ids are skipped and no gap was said (unless
 * `maySkip`: entries of unknown types are passed over).
 */
export function startReading(viewer: Viewer, after: Cursor = BEFORE_START, maySkip = false): Reading {
  const abort = new AbortController();
  const received: Reading['received'] = [];
  const entries: SeenEntry[] = [];
  let last = after;
  let gaps = 0;
  let excused = maySkip;
  const finished = (async () => {
    while (!abort.signal.aborted) {
      for (const item of await viewer.next(1_000, abort.signal)) {
        if (item.kind === 'entry') {
          const { entry } = item;
          if (received.at(-1) !== 'lost') expect(entry.cursor).toBeGreaterThan(last);
          if (!excused)
            expect({ last, next: entry.cursor, follows: follows(last, entry.cursor) }).toMatchObject({ follows: true });
          last = entry.cursor;
          excused = maySkip;
          entries.push(entry);
          received.push(entry);
        } else {
          gaps += 1;
          excused = true;
          received.push(item.kind);
        }
      }
    }
  })();
  finished.catch(() => undefined);
  return {
    received,
    entries,
    get gaps() {
      return gaps;
    },
    get last() {
      return last;
    },
    async stop() {
      abort.abort();
      await finished;
      viewer.close();
    },
  };
}

/** Text of deltas, in order, whatever they were merged into. */
export function textOf(entries: readonly SeenEntry[]): string {
  return entries.map(({ event }) => (event.type === 'message.delta' ? event.text : '')).join('');
}

export function writeHead(run: RunWriter, id = 'message'): Cursor {
  return run.write({
    type: 'message.head',
    ns: [],
    message: { id, type: 'ai', content: '' },
    metadata: { langgraph_node: 'model' },
  });
}

export function writeText(run: RunWriter, m: Cursor, text: string): Cursor {
  return run.write({ type: 'message.delta', m, kind: 'text', text });
}

/** Another turn of the event loop: what was written in the last one cannot be merged with what comes. */
export function turn(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve));
}

export function noFence(): void {
  throw new Error('fenced, against expectation');
}
