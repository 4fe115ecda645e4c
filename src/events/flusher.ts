/** Carries what all runs of this process have written to the log: one pipeline in flight, every run's entries in the next. */
import {
  type FlusherDeps,
  type FlusherState,
  forgetIfDone,
  hasRoom,
  type OpenRun,
  release,
  settle,
} from './flusher-state.ts';
import { type AppendBatch, type AppendResult, LogUnavailable } from './log.ts';
import { back, goAway, serveDetached } from './outage.ts';
import { acknowledge, isEmpty, nothingWaits, show, stopQueue, take, takeBack } from './run-queue.ts';

export interface Flusher {
  readonly shared: { bytes: number };
  /** True while the log does not answer. */
  readonly away: boolean;
  add(run: OpenRun): void;
  /** Forgets the run; what it has not sent is given up. Nothing happens to one that was left. */
  remove(run: OpenRun): void;
  /** The run writes nothing more; what it has not sent is sent, and then it is forgotten. */
  leave(run: OpenRun): void;
  /** Whether a run that was left has something to send. */
  unsent(runId: string): boolean;
  /** The run has written something. `urgent`: it is not text that more text may be added to. */
  wake(run: OpenRun, urgent: boolean): void;
  hasRoom(run: OpenRun): boolean;
  close(): Promise<void>;
}

/** What one run may put into one pipeline, so that a flood of one does not hold up the others. */
const RUN_ENTRIES = 256;
const RUN_BYTES = 256 * 1024;
const FLIGHT_BYTES = 2 * 1024 * 1024;
/**
 * The busier, the fewer pipelines: text waits after a pipeline began, half a millisecond per event it was preceded by,
 * up to this, and is merged meanwhile. A pipeline per token costs far more than the token; below some 2,000 events/s
 * nothing waits. The wait shrinks by half at a time, so that one small pipeline amid a flood does not undo it.
 */
const MAX_PACE_MS = 8;
const PACE_MS_PER_EVENT = 0.5;
const FIRST_RETRY_MS = 50;
const MAX_RETRY_MS = 1_000;

export function createFlusher(deps: FlusherDeps): Flusher {
  const state: FlusherState = {
    ...deps,
    shared: { bytes: 0 },
    runs: new Set(),
    dirty: new Set(),
    flight: null,
    written: 0,
    paceMs: 0,
    pacedUntilMs: 0,
    ticking: false,
    urgent: false,
    pace: null,
    away: false,
    retries: 0,
    retry: null,
    closed: false,
    silence: null,
  };
  return {
    shared: state.shared,
    get away() {
      return state.away;
    },
    add(run) {
      run.queue.detached = state.away;
      state.runs.add(run);
    },
    remove(run) {
      if (run.left) return;
      stopQueue(run.queue);
      state.runs.delete(run);
      state.dirty.delete(run);
      release(state, run);
    },
    leave(run) {
      if (!state.runs.has(run)) return;
      run.left = true;
      // What is there stays; nothing is added.
      run.queue.stopped = true;
      release(state, run);
      forgetIfDone(state, run);
      if (!state.runs.has(run)) return;
      // The end is told to the viewers of this process without waiting for the log; so is what comes before it.
      run.queue.detached = true;
      const news = show(run.queue);
      if (news.length > 0) state.deliver(run.queue.runId, news);
      state.dirty.add(run);
      state.urgent = true;
      if (state.flight === null) schedule(state);
    },
    unsent(runId) {
      for (const { queue, left } of state.runs) if (left && queue.runId === runId && !isEmpty(queue)) return true;
      return false;
    },
    wake(run, urgent) {
      state.dirty.add(run);
      state.written += 1;
      // A graph that does not let the event loop turn must not outgrow the bound meanwhile.
      if (state.away && state.shared.bytes > state.unacknowledgedBytes) serveDetached(state);
      if (urgent || state.shared.bytes > state.unacknowledgedBytes) state.urgent = true;
      if (state.flight === null || run.queue.detached) schedule(state);
    },
    hasRoom: (run) => hasRoom(state, run),
    close: () => close(state),
  };
}

/** The next pipeline: now, or for text alone when the last one began long enough ago. */
function schedule(state: FlusherState): void {
  if (state.ticking || state.closed) return;
  const waitMs = state.pacedUntilMs - performance.now();
  if (state.urgent || state.away || waitMs <= 0) {
    if (state.pace !== null) clearTimeout(state.pace);
    state.pace = null;
    tickSoon(state);
    return;
  }
  state.pace ??= setTimeout(() => {
    state.pace = null;
    tickSoon(state);
  }, waitMs);
}

/** Everything written in one turn of the event loop goes together. */
function tickSoon(state: FlusherState): void {
  if (state.ticking || state.closed) return;
  state.ticking = true;
  setImmediate(() => {
    state.ticking = false;
    serveDetached(state);
    if (state.flight === null && state.retry === null && !state.closed) launch(state);
  });
}

function launch(state: FlusherState): void {
  const runs: OpenRun[] = [];
  const batches: AppendBatch[] = [];
  let bytes = 0;
  for (const run of state.dirty) {
    if (bytes >= FLIGHT_BYTES) break;
    const entries = take(run.queue, RUN_ENTRIES, RUN_BYTES);
    if (entries.length === 0) {
      state.dirty.delete(run);
      continue;
    }
    for (const entry of run.queue.inFlight) bytes += entry.bytes;
    runs.push(run);
    batches.push({ runId: run.queue.runId, entries });
  }
  for (const run of runs) {
    state.dirty.delete(run);
    if (!nothingWaits(run.queue)) state.dirty.add(run);
  }
  if (batches.length === 0) return;
  state.urgent = state.dirty.size > 0;
  state.paceMs = Math.min(MAX_PACE_MS, Math.max(state.paceMs / 2, state.written * PACE_MS_PER_EVENT));
  state.pacedUntilMs = performance.now() + state.paceMs;
  state.written = 0;
  watchSilence(state);
  state.flight = state.log
    .append(batches)
    .then(
      (results) => arrived(state, runs, results),
      (error: unknown) => failed(state, runs, error),
    )
    .catch((error: unknown) => {
      // Not of the log: a deliver or onFenced that threw. The entries are in the log; only this is to be mended.
      state.logger.error({ err: error }, 'event flusher: a callback failed');
    });
}

function arrived(state: FlusherState, runs: OpenRun[], results: AppendResult[]): void {
  state.flight = null;
  if (state.away) back(state);
  for (const [index, run] of runs.entries()) {
    if (results[index] === 'fenced') {
      fence(state, run);
      continue;
    }
    const news = acknowledge(run.queue);
    if (news.length > 0) state.deliver(run.queue.runId, news);
    settle(run);
    forgetIfDone(state, run);
  }
  for (const run of state.runs) if (run.room !== null && hasRoom(state, run)) release(state, run);
  if (state.dirty.size > 0) schedule(state);
}

function failed(state: FlusherState, runs: OpenRun[], error: unknown): void {
  state.flight = null;
  if (!(error instanceof LogUnavailable)) state.logger.error({ err: error }, 'event log failed unexpectedly');
  for (const run of runs) {
    takeBack(run.queue);
    if (!nothingWaits(run.queue)) state.dirty.add(run);
  }
  goAway(state, error instanceof Error ? error.message : 'unknown');
  const delayMs = Math.min(MAX_RETRY_MS, FIRST_RETRY_MS * 2 ** state.retries);
  state.retries += 1;
  if (state.closed) return;
  state.retry = setTimeout(() => {
    state.retry = null;
    tickSoon(state);
  }, delayMs);
}

/** One timer for all flights: each flight winds it up again. */
function watchSilence(state: FlusherState): void {
  if (state.silence !== null) {
    state.silence.refresh();
    return;
  }
  state.silence = setTimeout(() => {
    const { flight } = state;
    if (flight === null) return;
    // After a blocked event loop timers run first; an answer may already lie in the socket.
    setImmediate(() => {
      if (state.flight === flight) goAway(state, `no answer for ${state.detachAfterMs} ms`);
    });
  }, state.detachAfterMs).unref();
}

function fence(state: FlusherState, run: OpenRun): void {
  run.queue.fenced = true;
  stopQueue(run.queue);
  state.dirty.delete(run);
  release(state, run);
  forgetIfDone(state, run);
  state.logger.warn({ runId: run.queue.runId, epoch: run.queue.epoch }, 'event log fenced the run: its epoch is over');
  run.onFenced();
}

async function close(state: FlusherState): Promise<void> {
  state.closed = true;
  if (state.pace !== null) clearTimeout(state.pace);
  if (state.retry !== null) clearTimeout(state.retry);
  if (state.silence !== null) clearTimeout(state.silence);
  await state.flight;
  for (const run of [...state.runs]) {
    stopQueue(run.queue);
    release(state, run);
  }
  state.runs.clear();
  state.dirty.clear();
}
