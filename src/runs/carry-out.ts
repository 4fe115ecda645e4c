/** From a claimed run to its stored end, or to its being handed back: what the coordinator does for each run it begins. */
import type { Logger } from 'pino';
import { isUnavailable } from '#src/postgres/sqlstate.ts';
import { type ExecuteDeps, type Execution, execute } from './execute.ts';
import { failure } from './failures.ts';
import { finalValues } from './final-values.ts';
import { type FinalizeDeps, finalize } from './finalize.ts';
import { emptyOutcome, type Outcome } from './outcome.ts';
import { handBack, type PutBackDeps } from './put-back.ts';
import type { Run } from './run.ts';
import { stopOf } from './stop.ts';

export interface CarryOutDeps {
  execute: ExecuteDeps;
  finalize: FinalizeDeps;
  putBack: PutBackDeps;
  /** A run of this worker waits for another one. */
  onHandedBack: () => void;
  logger: Logger;
}

export interface Claimed {
  run: Run;
  /** Stops the execution; its reason is a `Stop`. */
  abort: AbortController;
}

/**
 * Executes the run and stores its end. A run that was lost meanwhile is left to its new owner; one that is stopped by a
 * drain, or that the database's absence interrupted, is handed back.
 * @throws what Postgres throws when the run was lost while its end was stored
 */
export async function carryOut(deps: CarryOutDeps, claimed: Claimed): Promise<void> {
  const { run, abort } = claimed;
  let execution: Execution | null;
  try {
    execution = await execute(deps.execute, run, abort);
  } catch (error) {
    deps.logger.warn({ err: error, runId: run.id }, 'database away while the run was executed; handing it back');
    return giveBack(deps, claimed);
  }
  if (execution !== null) return storeEnd(deps, claimed, execution);
  if (stopOf(abort.signal) === 'drain') return giveBack(deps, claimed);
  deps.logger.warn({ runId: run.id, epoch: run.epoch }, 'run lost to another owner; nothing written');
}

async function storeEnd(deps: CarryOutDeps, claimed: Claimed, { outcome, given }: Execution): Promise<void> {
  const { run } = claimed;
  const by = { owner: true, epoch: run.epoch, given } as const;
  const store = (end: Outcome) => untilKnown(deps, claimed, () => finalize(deps.finalize, run.id, by, end));
  const values = await finalValues(deps.execute, run);
  const result = await store({ ...outcome, values }).catch((error: unknown) => {
    if (stopOf(claimed.abort.signal) === 'lost') throw error;
    // Postgres refuses what the graph made of its end. Executed again it would make the same, for ever.
    deps.logger.error({ err: error, runId: run.id }, 'end cannot be stored as it is; the run fails instead');
    return store(emptyOutcome('failed', { error: failure('INTERNAL') }));
  });
  if (result.applied) return;
  deps.logger.warn({ runId: run.id, epoch: run.epoch }, 'end not stored: the run has changed hands');
}

async function giveBack(deps: CarryOutDeps, claimed: Claimed): Promise<void> {
  const queued = await untilKnown(deps, claimed, () => handBack(deps.putBack, claimed.run));
  if (queued !== null) deps.onHandedBack();
}

/** However long Postgres is away, unless the run is lost meanwhile. */
async function untilKnown<T>(deps: CarryOutDeps, { run, abort }: Claimed, store: () => Promise<T>): Promise<T> {
  for (let delayMs = 50; ; delayMs = Math.min(delayMs * 2, 2_000)) {
    try {
      return await store();
    } catch (error) {
      if (stopOf(abort.signal) === 'lost' || !isUnavailable(error)) throw error;
      deps.logger.warn({ err: error, runId: run.id }, 'not stored, trying again');
      await new Promise((resolve) => setTimeout(resolve, delayMs));
    }
  }
}
