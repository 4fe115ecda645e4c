/** The room as one thing: wires the steps of a run's life, and is started and stopped as a whole. */
import type { Logger } from 'pino';
import type { Hub } from '#src/events/hub.ts';
import type { EventLog } from '#src/events/log.ts';
import type { LogWriter } from '#src/events/writer.ts';
import type { GraphRegistry } from '#src/graphs/graph.ts';
import type { ConnectionLimits, Pool } from '#src/postgres/pool.ts';
import { type Coordinator, createCoordinator } from './coordinator.ts';
import type { ExecuteDeps } from './execute.ts';
import type { FinalizeDeps } from './finalize.ts';
import { createNotifier } from './notify.ts';
import type { PutBackDeps } from './put-back.ts';
import { createRecovery, type Recovery } from './recover.ts';
import { createRowWatch } from './row-watch.ts';
import { createRunService, type RunService } from './service.ts';
import { createEndings } from './wait.ts';
import { startWatchdog, type Watchdog } from './watchdog.ts';
import { createWorker, LEASE_MS, type Worker } from './worker.ts';

export interface EngineConfig {
  roles: readonly string[];
  defaultGraph: string;
  runs: {
    concurrency: number;
    timeoutMs: number;
    recursionLimit: number;
    maxRetries: number;
    maxTakeovers: number;
    drainTimeoutMs: number;
  };
  events: { streamTtlMs: number };
  postgres: ConnectionLimits;
}

export interface EngineDeps {
  config: EngineConfig;
  /** For the liveness connection: direct, never through a pooler. */
  databaseUrl: string;
  pool: Pool;
  checkpointPool: Pool;
  log: EventLog;
  hub: Hub;
  writer: LogWriter;
  graphs: GraphRegistry;
  logger: Logger;
}

/** One number for /metrics; the shape http/metrics.ts observes. */
export interface EngineReading {
  name: string;
  help: string;
  kind: 'gauge' | 'counter';
  labels?: string[];
  read():
    | { value: number; labels?: { [name: string]: string } }[]
    | Promise<{ value: number; labels?: { [name: string]: string } }[]>;
}

export interface Engine {
  readonly runs: RunService;
  readonly readings: EngineReading[];
  readonly draining: boolean;
  /** Readiness goes off and nothing more is claimed; runs go on. */
  beginDraining(): void;
  /** Drains, hands the rest back, and gives up the worker's presence. */
  close(): Promise<void>;
}

interface WorkerParts {
  worker: Worker;
  coordinator: Coordinator;
  recovery: Recovery;
  watchdog: Watchdog;
}

/** @throws LogKindConflict when this process' log does not go with that of a live worker */
export async function createEngine(deps: EngineDeps): Promise<Engine> {
  const { config, pool, log, hub, logger } = deps;
  const notifier = createNotifier(pool, logger);
  const endings = createEndings();
  const ended = new Map<string, number>();
  const finalizeDeps: FinalizeDeps = {
    pool,
    log,
    hub,
    streamTtlMs: config.events.streamTtlMs,
    logger,
    onEnded(run) {
      endings.ended(run.id);
      ended.set(run.status, (ended.get(run.status) ?? 0) + 1);
    },
  };
  const parts = config.roles.includes('worker') ? await startWorker(deps, finalizeDeps, wake) : null;
  let draining = false;

  /** The local coordinator is poked directly; others get a hint only when it cannot take the run itself. */
  function wake(): void {
    if (parts?.coordinator.hasRoom() === true) parts.coordinator.poke();
    else notifier.wake();
  }

  function beginDraining(): void {
    draining = true;
    parts?.coordinator.stopClaiming();
  }

  const runs = createRunService({
    pool,
    log,
    admit: { pool, graphs: deps.graphs, defaultGraph: config.defaultGraph },
    cancel: {
      ...finalizeDeps,
      hintOwner() {
        parts?.worker.renewSoon();
        notifier.cancelRequested();
      },
    },
    follow: { log, hub, rows: createRowWatch(pool), logger },
    endings,
    wake,
    logger,
  });

  return {
    runs,
    readings: readingsOf(deps, ended, parts),
    get draining() {
      return draining;
    },
    beginDraining,
    async close() {
      beginDraining();
      await parts?.recovery.stop();
      await parts?.coordinator.drain(config.runs.drainTimeoutMs);
      await parts?.worker.stop();
      await parts?.watchdog.stop();
      await notifier.close();
    },
  };
}

async function startWorker(deps: EngineDeps, finalizeDeps: FinalizeDeps, wake: () => void): Promise<WorkerParts> {
  const { config, pool, log, logger } = deps;
  const putBack: PutBackDeps = { pool, log, logger };
  const worker = createWorker({
    databaseUrl: deps.databaseUrl,
    limits: config.postgres,
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
    maxRetries: config.runs.maxRetries,
    lease: worker.lease,
    logger,
  };
  const coordinator = createCoordinator({
    workerId: worker.id,
    pool,
    concurrency: config.runs.concurrency,
    runTimeoutMs: config.runs.timeoutMs,
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
  return { worker, coordinator, recovery, watchdog };
}

const QUEUED = `select count(*)::int as count from runs where status = 'queued'`;

function readingsOf(deps: EngineDeps, ended: ReadonlyMap<string, number>, parts: WorkerParts | null): EngineReading[] {
  return [
    {
      name: 'runledger_event_loop_longest_stall_seconds',
      help: 'The longest time the event loop of this worker was blocked.',
      kind: 'gauge',
      read: () => [{ value: (parts?.watchdog.longestStallMs() ?? 0) / 1_000 }],
    },
    {
      name: 'runledger_runs_running',
      help: 'Runs this process executes now.',
      kind: 'gauge',
      read: () => [{ value: parts?.coordinator.running ?? 0 }],
    },
    {
      name: 'runledger_runs_queued',
      help: 'Runs that wait for a worker, in the whole system.',
      kind: 'gauge',
      async read() {
        const { rows } = await deps.pool.query<{ count: number }>(QUEUED);
        return [{ value: rows[0]?.count ?? 0 }];
      },
    },
    {
      name: 'runledger_runs_ended_total',
      help: 'Runs whose end this process stored, by status.',
      kind: 'counter',
      labels: ['status'],
      read: () => [...ended].map(([status, value]) => ({ value, labels: { status } })),
    },
    {
      name: 'runledger_viewers',
      help: 'Readers of runs on this process.',
      kind: 'gauge',
      read: () => [{ value: deps.hub.viewers }],
    },
  ];
}
