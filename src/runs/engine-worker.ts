/** The worker half of the engine: presence, coordinator, recovery, watchdog, sweeps. */
import { type Coordinator, createCoordinator } from './coordinator.ts';
import type { EngineDeps } from './engine-deps.ts';
import type { ExecuteDeps } from './execute.ts';
import { failure, failureOf } from './failures.ts';
import { type FinalizeDeps, finalize } from './finalize.ts';
import { emptyOutcome } from './outcome.ts';
import type { PutBackDeps } from './put-back.ts';
import { createRecovery, type Recovery } from './recover.ts';
import { createSweeps, type Sweeps } from './sweeps.ts';
import { startWatchdog, type Watchdog } from './watchdog.ts';
import { createWorker, LEASE_MS, type Worker } from './worker.ts';

export interface WorkerParts {
  worker: Worker;
  coordinator: Coordinator;
  recovery: Recovery;
  watchdog: Watchdog;
  sweeps: Sweeps;
}

/** Starts what a process with the role `worker` does. @throws LogKindConflict */
export async function startWorker(
  deps: EngineDeps,
  finalizeDeps: FinalizeDeps,
  wake: () => void,
): Promise<WorkerParts> {
  const { config, pool, log, logger } = deps;
  const putBack: PutBackDeps = { pool, log, logger };
  const worker = createWorker({
    databaseUrl: deps.databaseUrl,
    logKind: log.kind,
    roles: config.roles,
    logger,
    onOwned: (owned, sentAtMs) => coordinator.reconcile(owned, sentAtMs),
    onWake: () => coordinator.poke(),
  });
  const execute: ExecuteDeps = {
    pool,
    checkpointPool: deps.checkpointPool,
    graphs: deps.graphs,
    writer: deps.writer,
    log,
    recursionLimit: config.runs.recursionLimit,
    trustsUserId: config.auth.mode === 'none',
    storeTtl: config.store,
    failureOf: config.langgraph.showsGraphErrors ? failureOf : failure,
    maxRetries: config.runs.maxRetries,
    maxTakeovers: config.runs.maxTakeovers,
    lease: worker.lease,
    logger,
  };
  const coordinator = createCoordinator({
    workerId: worker.id,
    pool,
    concurrency: config.runs.concurrency,
    runTimeoutMs: config.runs.timeoutMs,
    present: () => worker.present(),
    execute,
    finalize: finalizeDeps,
    putBack,
    onHandedBack: wake,
    logger,
  });
  const recovery = createRecovery({
    pool,
    workerId: worker.id,
    maxTakeovers: config.runs.maxTakeovers,
    putBack,
    finalize: finalizeDeps,
    leaseAgeMs: () => worker.leaseAgeMs(),
    wake,
    logger,
  });
  await worker.start();
  coordinator.start();
  recovery.start();
  const watchdog = startWatchdog({ warnAfterMs: LEASE_MS / 5, logger });
  const sweeps = createSweeps({
    pool,
    log,
    graphs: deps.graphs,
    config,
    cancelPrepared: (run, reason) =>
      finalize(
        finalizeDeps,
        run.id,
        { owner: false, epoch: run.epoch, status: 'prepared' },
        emptyOutcome('cancelled', { reason }),
      ),
    logger,
  });
  sweeps.start();
  return { worker, coordinator, recovery, watchdog, sweeps };
}
