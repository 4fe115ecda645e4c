/** A run of a graph with any input: admitted, a worker woken, and those that it replaces stopped. */
import type { Logger } from 'pino';
import type { Tx } from '#src/postgres/pool.ts';
import type { AdmitDeps } from './admission.ts';
import { admitInput, admitInputWith, type Started } from './admit-input.ts';
import { type CancelDeps, cancel } from './cancel.ts';
import type { Run, StartRequest } from './run.ts';

interface StartDeps {
  admit: AdmitDeps;
  cancel: CancelDeps;
  /** After a commit that made a run claimable. */
  wake: () => void;
  logger: Logger;
}

/** @see admitInput */
export async function startRun(deps: StartDeps, request: StartRequest): Promise<Run> {
  return afterCommit(deps, request, await admitInput(deps.admit, request));
}

/** @see admitInputWith */
export async function startRunWith(
  deps: StartDeps,
  request: StartRequest,
  first: (tx: Tx) => Promise<boolean>,
): Promise<Run | null> {
  const started = await admitInputWith(deps.admit, request, first);
  return started === null ? null : afterCommit(deps, request, started);
}

async function afterCommit(deps: StartDeps, request: StartRequest, { run, cancelled }: Started): Promise<Run> {
  deps.wake();
  // Their requests to stop are stored; this is only sooner than the poll behind it.
  const action = request.strategy === 'rollback' ? 'rollback' : 'interrupt';
  const stops = await Promise.allSettled(cancelled.map((other) => cancel(deps.cancel, other.id, action)));
  for (const stop of stops) {
    if (stop.status === 'rejected') {
      deps.logger.warn({ err: stop.reason, runId: run.id }, 'a run was not stopped at once');
    }
  }
  return run;
}
