/** How runs go on while the log does not answer. */
import { type FlusherState, forgetIfDone, type OpenRun, release, settle } from './flusher-state.ts';
import { dropOldest, isEmpty, nothingWaits, show } from './run-queue.ts';

/** Runs go on without the log: their local viewers are served at once, nobody waits for room, the ring keeps the newest. */
export function goAway(state: FlusherState, reason: string): void {
  if (!state.away) state.logger.warn({ reason, runs: state.runs.size }, 'event log is away; runs are detached');
  state.away = true;
  for (const run of state.runs) {
    run.queue.detached = true;
    // Its in-flight entries too.
    state.dirty.add(run);
  }
  serveDetached(state);
  for (const run of state.runs) release(state, run);
}

export function back(state: FlusherState): void {
  state.away = false;
  state.retries = 0;
  let dropped = 0;
  for (const { queue } of state.runs) {
    dropped += queue.dropped;
    queue.dropped = 0;
    if (isEmpty(queue)) queue.detached = false;
  }
  state.logger.info({ dropped, waitingBytes: state.shared.bytes }, 'event log is back');
}

/** Shows local viewers what detached runs have written, then gives up the oldest of what does not fit the ring. */
export function serveDetached(state: FlusherState): void {
  for (const { queue } of state.dirty) {
    if (!queue.detached) continue;
    const news = show(queue);
    if (news.length > 0) state.deliver(queue.runId, news);
  }
  if (!state.away) return;
  while (state.shared.bytes > state.unacknowledgedBytes) {
    const largest = largestWaiting(state);
    if (largest === null) return;
    dropOldest(largest.queue);
    settle(largest);
    forgetIfDone(state, largest);
  }
}

function largestWaiting(state: FlusherState): OpenRun | null {
  let largest: OpenRun | null = null;
  for (const run of state.dirty) {
    if (nothingWaits(run.queue)) continue;
    if (largest === null || run.queue.bytes > largest.queue.bytes) largest = run;
  }
  return largest;
}
