/** What the flusher knows, and who waits for it. */
import type { Logger } from 'pino';
import type { Cursor } from './cursor.ts';
import type { EventLog, LogEntry } from './log.ts';
import { isEmpty, isSettled, type RunQueue } from './run-queue.ts';

export interface FlusherDeps {
  log: EventLog;
  /** Shows entries to the viewers of this process. Must not throw. */
  deliver: (runId: string, entries: LogEntry[]) => void;
  logger: Logger;
  /** An append that has not been answered for this long counts as unavailable. */
  detachAfterMs: number;
  /** Bound of what all runs together have written and the log has not acknowledged. */
  unacknowledgedBytes: number;
}

/** A run with an open writer. */
export interface OpenRun {
  readonly queue: RunQueue;
  readonly onFenced: () => void;
  /** Resolved when there is room again. */
  room: PromiseWithResolvers<void> | null;
  flushes: { upTo: Cursor; resolve: () => void }[];
  /** Its owner writes nothing more; it is forgotten once all is sent. */
  left: boolean;
}

export interface FlusherState extends FlusherDeps {
  readonly shared: { bytes: number };
  readonly runs: Set<OpenRun>;
  /** Runs with waiting entries, the one that waits longest first. */
  readonly dirty: Set<OpenRun>;
  flight: Promise<void> | null;
  /** Events written since the last pipeline began. */
  written: number;
  paceMs: number;
  /** Text alone waits until then (performance clock). */
  pacedUntilMs: number;
  ticking: boolean;
  /** Something waits that must not be held back for merging. */
  urgent: boolean;
  pace: NodeJS.Timeout | null;
  away: boolean;
  retries: number;
  retry: NodeJS.Timeout | null;
  closed: boolean;
  silence: NodeJS.Timeout | null;
}

export function hasRoom(state: FlusherState, { queue }: OpenRun): boolean {
  if (queue.stopped || state.shared.bytes <= state.unacknowledgedBytes) return true;
  // Over the bound the runs that hold more than their share wait; the others go on.
  return queue.bytes <= state.unacknowledgedBytes / state.runs.size;
}

/** Forgets a run that its owner has left, when it has nothing more to send. */
export function forgetIfDone(state: FlusherState, run: OpenRun): void {
  if (!run.left || !isEmpty(run.queue)) return;
  state.runs.delete(run);
  state.dirty.delete(run);
}

/** Lets go whoever waits for the run and no longer has to. */
export function release(state: FlusherState, run: OpenRun): void {
  if (state.away || hasRoom(state, run)) {
    run.room?.resolve();
    run.room = null;
  }
  settle(run);
}

export function settle(run: OpenRun): void {
  if (run.flushes.length === 0) return;
  run.flushes = run.flushes.filter(({ upTo, resolve }) => {
    if (!isSettled(run.queue, upTo)) return true;
    resolve();
    return false;
  });
}
