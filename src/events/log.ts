/**
 * The contract of an event log: one ordered list of entries per run. Two implementations pass the same suite
 * (tests/integration/event-log.contract.ts): events/redis-log.ts and events/memory-log.ts.
 */
import type { Cursor } from './cursor.ts';

/** One stored entry. `payload` is the JSON of a RunEvent, exactly the bytes every reader gets. */
export interface LogEntry {
  cursor: Cursor;
  payload: string;
}

/**
 * appended: the log holds every given entry. An entry that was already there with the same bytes counts (a lost reply).
 * fenced: the log holds a greater id, or the same id with other bytes: this writer's epoch is over; it must stop.
 */
export type AppendResult = 'appended' | 'fenced';

export interface EventLog {
  readonly kind: 'redis' | 'memory';

  /**
   * Appends entries with ascending cursors, then publishes each with the same bytes to the run's subscribers.
   * Several runs' batches go out in one pipeline; the result is per batch, in the order given.
   * @throws LogUnavailable when the log cannot say what it holds (connection lost, time-out, out of memory): the
   *   entries may or may not be there; appending the same bytes again is safe.
   */
  append(batches: AppendBatch[]): Promise<AppendResult[]>;

  /**
   * Reads up to `limit` entries with a cursor greater than `after`, oldest first.
   * `exists` is false when the run has no log (never begun, expired, removed, or lost with its store).
   * @throws LogUnavailable
   */
  read(runId: string, after: Cursor, limit: number): Promise<{ exists: boolean; entries: LogEntry[] }>;

  /** The entry with exactly this cursor, or null. @throws LogUnavailable */
  readOne(runId: string, cursor: Cursor): Promise<LogEntry | null>;

  /** The last entry, or null when the run has no log. @throws LogUnavailable */
  last(runId: string): Promise<LogEntry | null>;

  /**
   * Calls `onEntry` for everything published for the run from the moment the promise resolves (the subscription is
   * acknowledged). Published entries can be lost, repeated or come from a fenced writer: the reader decides by cursor.
   * Returns a function that ends the subscription. `onEntry` is not called after it.
   * @throws LogUnavailable
   */
  subscribe(runId: string, onEntry: (entry: LogEntry) => void): Promise<() => void>;

  /** Lets the log disappear `ttlMs` from now. Called once the run is sealed. @throws LogUnavailable */
  expireAfter(runId: string, ttlMs: number): Promise<void>;

  /** Removes the log now; where several processes share it, nothing can be appended to it for a day. @throws LogUnavailable */
  remove(runId: string): Promise<void>;

  /** Resolves when the log answers; rejects with LogUnavailable otherwise. For readiness. */
  ping(): Promise<void>;

  close(): Promise<void>;
}

export interface AppendBatch {
  runId: string;
  entries: LogEntry[];
}

/** The log's store did not answer or refused. The cause is for the server's own log, never for a client. */
export class LogUnavailable extends Error {
  override readonly name = 'LogUnavailable';
}
