/** The contract of the hub; made by createHub in live-hub.ts. */
import type { Cursor } from './cursor.ts';
import type { EventOf, RunEvent } from './event.ts';
import type { LogEntry } from './log.ts';

/** A stored entry, parsed once for all viewers of the process. */
export interface SeenEntry {
  cursor: Cursor;
  event: RunEvent;
  /** For message.delta and message.chunk: the head `m` names, null if it cannot be found any more. */
  head: EventOf<'message.head'> | null;
}

/**
 * gap: ids between the last item and the next were not found in the log. lost: the log is gone, or is another one that
 * ends before the viewer's cursor; the viewer goes on after what that log holds, so cursors may repeat after it.
 */
export type ViewItem = { kind: 'entry'; entry: SeenEntry } | { kind: 'gap' } | { kind: 'lost' };

export interface Viewer {
  /**
   * What comes after the viewer's cursor, at most 500 items, oldest first. Waits until there is something, `waitMs`
   * passes (answers []), or `signal` aborts (answers []). A viewer that does not call it costs no memory but its cursor.
   * Never rejects. One call at a time.
   */
  next(waitMs: number, signal: AbortSignal): Promise<ViewItem[]>;
  close(): void;
}

export interface Hub {
  /** Entries of a run that this process produced and may show its own viewers now (acknowledged, or the run is detached). */
  deliver(runId: string, entries: LogEntry[]): void;
  /**
   * A viewer of the run from `after` (exclusive). Subscribes (once per run and process) before anything is read. Never
   * rejects: while the log is away the viewer waits, and entries delivered here reach it all the same.
   * @param options.floorEpoch the run's epoch as the caller knows it: live entries of an older one are dropped
   */
  attach(runId: string, after: Cursor, options?: { floorEpoch?: number }): Promise<Viewer>;
  /** Runs with at least one viewer here. */
  readonly watched: number;
  readonly viewers: number;
  /** Ends every wait; viewers are given nothing more, nor are those that attach later. */
  close(): Promise<void>;
}
