import type { Pool } from '#src/postgres/pool.ts';
import { type FinalizeDeps, finalize } from './finalize.ts';
import { emptyOutcome } from './outcome.ts';
import { findRun, type RunRow, toRun } from './queries.ts';
import { isTerminal, type Run } from './run.ts';

const STAMP = `
  update runs
  set cancel_requested_at = coalesce(cancel_requested_at, clock_timestamp()),
      cancel_action = coalesce(cancel_action, $2)
  where id = $1::uuid
    -- guard: a terminal run keeps its end
    and status in ('prepared', 'queued', 'running')
  returning *`;

export interface CancelDeps extends FinalizeDeps {
  pool: Pool;
  /** Hints the run's owner, here or elsewhere, to look at the request now; it would see it at its next renewal anyway. */
  hintOwner: (run: Run) => void;
}

/**
 * Asks a run to stop. Two transactions: the request is stamped on the row and committed, so it outlives everything;
 * then a run without an owner is ended here and now. Idempotent: the first request's time and action stay.
 * Lost race: when the run ended or was claimed meanwhile, the row as it is is returned; a claimed run carries the
 * request and its owner goes straight to closing.
 * @returns the row afterwards; null when there is no such run
 */
export async function cancel(deps: CancelDeps, runId: string, action: 'interrupt' | 'rollback'): Promise<Run | null> {
  const { rows } = await deps.pool.query<RunRow>(STAMP, [runId, action]);
  const [row] = rows;
  if (row === undefined) return findRun(deps.pool, runId);
  const run = toRun(row);
  if (run.status === 'running') {
    deps.hintOwner(run);
    return run;
  }
  if (isTerminal(run.status)) return run;
  const by = { owner: false, epoch: run.epoch, status: run.status } as const;
  const result = await finalize(deps, runId, by, emptyOutcome('cancelled'));
  if (result.applied) return result.run;
  if (result.survivor?.status === 'running') deps.hintOwner(result.survivor);
  return result.survivor;
}
