/** The event log in Redis: one stream per run for what is kept, one channel per run for what is new. */
import type { Logger } from 'pino';
import type { RedisClients } from '#src/redis/clients.ts';
import { type EntryOutcome, verdict } from './append-verdict.ts';
import { BEFORE_START, type Cursor, fromEntryId, toEntryId } from './cursor.ts';
import { liveChannel, logKey } from './keys.ts';
import { type AppendBatch, type AppendResult, type EventLog, type LogEntry, LogUnavailable } from './log.ts';
import { createSubscriptions } from './redis-subscriptions.ts';
import { fromStored, isLong, toStored } from './stored-bytes.ts';
import { createTurnstile } from './turnstile.ts';

interface RedisLogDeps {
  redis: RedisClients;
  logger: Logger;
  /** An append without an answer for this long is reported as unavailable. */
  appendDeadlineMs?: number;
}

const APPEND_DEADLINE_MS = 500;
const READ_DEADLINE_MS = 2_000;
/** Of pages. Appends share their connection and wait behind them: a crowd of readers must not make the log look away. */
const READS_AT_A_TIME = 4;
/** A slow network needs longer for much; else one large entry would be repeated for ever. */
const APPEND_BYTES_PER_MS = 20_000;
/** More is stored only: Redis cuts off a subscriber it owes 32 MB. Readers find it in the log. */
const MAX_PUBLISHED_BYTES = 4 * 1024 * 1024;
/**
 * What is left of a log that is removed: nothing but an id that no other is greater than, so that whoever still had something to
 * append (a worker that stood still while its run was ended and deleted) is refused, and does not make the log anew.
 */
const REMOVED_ID = '18446744073709551615-0';
const REMOVED_FOR_MS = 24 * 3_600_000;
/** The one field of a stream entry. */
const FIELD = 'e';

type StreamRow = [id: Buffer, fields: Buffer[]];
type Reply = [error: Error | null, result: unknown];

/** The log does not own the connections: `close` ends its subscriptions only. */
export function createRedisLog(deps: RedisLogDeps): EventLog {
  const { redis, logger } = deps;
  const appendDeadlineMs = deps.appendDeadlineMs ?? APPEND_DEADLINE_MS;
  const turnstile = createTurnstile(READS_AT_A_TIME);
  const subscriptions = createSubscriptions({ subscriber: redis.subscriber, logger });
  return {
    kind: 'redis',
    append: (batches) => append(redis, batches, appendDeadlineMs),
    async read(runId, after, limit) {
      const from = after === BEFORE_START ? '-' : `(${toEntryId(after)}`;
      const [range, length] = await turnstile(() =>
        send(redis, READ_DEADLINE_MS, (pipeline) =>
          pipeline.xrangeBuffer(logKey(runId), from, '+', 'COUNT', limit).xlen(logKey(runId)),
        ),
      );
      return { exists: Number(length) > 0, entries: await decodeRows(range, runId, logger) };
    },
    async readOne(runId, cursor) {
      const id = toEntryId(cursor);
      const [range] = await send(redis, READ_DEADLINE_MS, (pipeline) => pipeline.xrangeBuffer(logKey(runId), id, id));
      return (await decodeRows(range, runId, logger))[0] ?? null;
    },
    async last(runId) {
      const [range] = await send(redis, READ_DEADLINE_MS, (pipeline) =>
        pipeline.xrevrangeBuffer(logKey(runId), '+', '-', 'COUNT', 1),
      );
      return (await decodeRows(range, runId, logger))[0] ?? null;
    },
    subscribe: (runId, onEntry) => subscriptions.add(runId, onEntry),
    async expireAfter(runId, ttlMs) {
      await send(redis, READ_DEADLINE_MS, (pipeline) => pipeline.pexpire(logKey(runId), ttlMs));
    },
    async remove(runId) {
      const key = logKey(runId);
      await send(redis, READ_DEADLINE_MS, (pipeline) =>
        pipeline.del(key).xadd(key, 'MAXLEN', 0, REMOVED_ID, FIELD, '').pexpire(key, REMOVED_FOR_MS),
      );
    },
    async ping() {
      await redis.ping().catch(throwUnavailable);
    },
    async close() {
      subscriptions.close();
    },
  };
}

/** One pipeline for all batches: XADD, then PUBLISH of the same bytes, entry by entry. */
async function append(redis: RedisClients, batches: AppendBatch[], deadlineMs: number): Promise<AppendResult[]> {
  const long = await compressLong(batches);
  let bytes = 0;
  for (const stored of long?.values() ?? []) bytes += 2 * stored.length;
  const replies = await exec(redis, deadlineMs + bytes / APPEND_BYTES_PER_MS, (pipeline) => {
    for (const { runId, entries } of batches) {
      const key = logKey(runId);
      const channel = liveChannel(runId);
      for (const entry of entries) {
        const id = toEntryId(entry.cursor);
        const stored = long?.get(entry);
        pipeline.xadd(key, id, FIELD, stored ?? entry.payload);
        pipeline.publish(channel, stored ? publication(id, stored) : `${id} ${entry.payload}`);
      }
    }
    return pipeline;
  });
  return judge(redis, batches, replies);
}

function publication(id: string, stored: Buffer): Buffer {
  return stored.length > MAX_PUBLISHED_BYTES ? Buffer.alloc(0) : Buffer.concat([Buffer.from(`${id} `), stored]);
}

async function compressLong(batches: AppendBatch[]): Promise<Map<LogEntry, Buffer> | undefined> {
  let compressing: Promise<[LogEntry, Buffer]>[] | undefined;
  for (const { entries } of batches) {
    for (const entry of entries) {
      if (!isLong(entry.payload)) continue;
      compressing ??= [];
      compressing.push(toStored(entry.payload).then((stored) => [entry, stored]));
    }
  }
  return compressing && new Map(await Promise.all(compressing));
}

async function judge(redis: RedisClients, batches: AppendBatch[], replies: Reply[]): Promise<AppendResult[]> {
  const failures = replies.filter(([error]) => error !== null);
  if (failures.length === 0) return batches.map(() => 'appended');
  const failure = failures.find(([error]) => error !== null && !isStale(error))?.[0];
  if (failure) throwUnavailable(failure);
  let at = 0;
  const results: AppendResult[] = [];
  for (const batch of batches) {
    const first = at;
    const refused = batch.entries.filter((_, index) => replies[first + 2 * index]?.[0]);
    at += 2 * batch.entries.length;
    results.push(refused.length === 0 ? 'appended' : await judgeRefused(redis, batch, new Set(refused)));
  }
  return results;
}

/** A refused entry is done when the log holds it with the same bytes: the answer to an earlier try was lost. */
async function judgeRefused(redis: RedisClients, batch: AppendBatch, refused: Set<LogEntry>): Promise<AppendResult> {
  const ids = [...refused].map((entry) => toEntryId(entry.cursor));
  const ranges = await send(redis, READ_DEADLINE_MS, (pipeline) => {
    for (const id of ids) pipeline.xrangeBuffer(logKey(batch.runId), id, id);
    return pipeline;
  });
  const stored = new Map<Cursor, string | null>();
  for (const range of ranges) {
    for (const row of range as StreamRow[]) {
      const payload = await Promise.resolve(payloadOf(row)).catch(() => null);
      stored.set(fromEntryId(row[0].toString('latin1')), payload);
    }
  }
  const outcome = (entry: LogEntry): EntryOutcome => {
    if (!refused.has(entry)) return 'held';
    const there = stored.get(entry.cursor);
    if (there === undefined) return 'absent';
    return there === entry.payload ? 'held' : 'other';
  };
  return verdict(batch.entries.map(outcome));
}

function isStale(error: Error): boolean {
  return error.message.includes('equal or smaller than the target stream top item');
}

function payloadOf([, fields]: StreamRow): string | Promise<string> {
  const bytes = fields[1];
  if (bytes === undefined) throw new Error('a stream entry without a value');
  return fromStored(bytes);
}

/** Entries that cannot be decoded are left out: for a reader they are a gap. */
async function decodeRows(range: unknown, runId: string, logger: Logger): Promise<LogEntry[]> {
  const entries: LogEntry[] = [];
  for (const row of range as StreamRow[]) {
    const id = row[0].toString('latin1');
    try {
      const payload = payloadOf(row);
      entries.push({ cursor: fromEntryId(id), payload: typeof payload === 'string' ? payload : await payload });
    } catch (error) {
      logger.error({ err: error, runId, id }, 'log entry cannot be read');
    }
  }
  return entries;
}

type Pipeline = ReturnType<RedisClients['commands']['pipeline']>;

/** The results of one pipeline. @throws LogUnavailable when any command failed */
async function send(redis: RedisClients, deadlineMs: number, fill: (pipeline: Pipeline) => Pipeline) {
  const replies = await exec(redis, deadlineMs, fill);
  return replies.map(([error, result]) => (error ? throwUnavailable(error) : result));
}

function exec(redis: RedisClients, deadlineMs: number, fill: (pipeline: Pipeline) => Pipeline): Promise<Reply[]> {
  return redis.deadline
    .within(deadlineMs, async () => (await fill(redis.commands.pipeline()).exec()) ?? [])
    .catch(throwUnavailable);
}

/** Only the message goes on: an error of the client carries the command's arguments, which are people's texts. */
function throwUnavailable(error: unknown): never {
  throw new LogUnavailable(error instanceof Error ? error.message : 'Redis failed');
}
