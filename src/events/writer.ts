/** The contract of the writer; made by createLogWriter in log-writer.ts. */
import type { Cursor } from './cursor.ts';
import type { RunEvent } from './event.ts';

/** What an owner may write while its run lives; the seal is written by runs/finalize.ts alone. */
export type LiveEvent = Exclude<RunEvent, { type: 'run.sealed' }>;

/** Writes the events of one run for one epoch. Made by `LogWriter.open`. */
export interface RunWriter {
  /**
   * Queues an event and returns the cursor it has. Never waits. A message.delta may be merged into the one before it,
   * whose cursor it then shares. After `log.torn` or when fenced, nothing is kept and the last cursor is returned.
   */
  write(event: LiveEvent): Cursor;
  /**
   * undefined when there is room; otherwise a promise that resolves when there is, or when the log is found to be away:
   * nobody waits for a log that does not answer. The graph loop awaits it between parts.
   */
  room(): Promise<void> | undefined;
  /**
   * What former epochs of the run have put into its log: its limits are the run's. `torn`: they had reached them. To be
   * called after the events that the new epoch begins with, which are written in any case.
   */
  count(former: { events: number; bytes: number; torn: boolean }): void;
  /** Resolves when everything written so far is acknowledged, given up, or `timeoutMs` has passed. Never rejects. */
  flush(timeoutMs: number): Promise<void>;
  /** Ids given out so far in this epoch = the position of the next one. */
  readonly given: number;
  /** True once the log refused this epoch. */
  readonly fenced: boolean;
  /** Forgets the run, and what it has not sent. No write after it. Does nothing after `leave`. */
  close(): void;
  /**
   * In place of `close`, when the run's end is to be stored: no write after it, but what the log has not got yet is kept,
   * within the bounds of an outage, shown to the viewers of this process, and sent. Until then the log has no place for the end: `LogWriter.unsent`.
   */
  leave(): void;
}

/** One per process: all runs' events go through one flusher and one connection. */
export interface LogWriter {
  /** `onFenced` is called once, when the log says that a later epoch has begun. The first id has position 0. */
  open(runId: string, epoch: number, onFenced: () => void): RunWriter;
  /** Whether events of the run still wait to be sent by a writer that was left. */
  unsent(runId: string): boolean;
  close(): Promise<void>;
}
