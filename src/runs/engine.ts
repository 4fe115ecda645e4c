import { createDrain, type Drain } from '#src/outbox/drain.ts';
import { countUnsettled } from '#src/outbox/entries.ts';
import { createWebhookHandler, WEBHOOK } from '#src/outbox/webhook.ts';
import type { EngineDeps } from './engine-deps.ts';
import { startWorker, type WorkerParts } from './engine-worker.ts';
import type { FinalizeDeps } from './finalize.ts';
import { createNotifier } from './notify.ts';
import { createRowWatch } from './row-watch.ts';
import { createRunService, type RunService } from './service.ts';
import { createEndings } from './wait.ts';

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

/** @throws LogKindConflict when this process' log does not go with that of a live worker */
export async function createEngine(deps: EngineDeps): Promise<Engine> {
  const { config, pool, log, hub, logger } = deps;
  const notifier = createNotifier(pool, logger);
  const endings = createEndings();
  const ended = new Map<string, number>();
  const drain = createOutboxDrain(deps);
  const unsealed = new Set<string>();
  const finalizeDeps: FinalizeDeps = {
    pool,
    log,
    hub,
    streamTtlMs: config.events.streamTtlMs,
    unsent: deps.writer.unsent,
    unsealed,
    logger,
    onEnded(run) {
      endings.ended(run.id);
      ended.set(run.status, (ended.get(run.status) ?? 0) + 1);
      if (run.webhook !== null) drain?.poke();
    },
  };
  const parts = config.roles.includes('worker') ? await startWorker(deps, finalizeDeps, wake) : null;
  let draining = false;
  drain?.start();

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
    admit: { pool, graphs: deps.graphs, defaultGraph: config.defaultGraph, webhooks: config.webhooks },
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
    readings: readingsOf(deps, { ended, unsealed }, parts),
    get draining() {
      return draining;
    },
    beginDraining,
    async close() {
      beginDraining();
      await parts?.sweeps.stop();
      await parts?.recovery.stop();
      await parts?.coordinator.drain(config.runs.drainTimeoutMs);
      await parts?.worker.stop({ toBeBuried: unsealed.size > 0 });
      await parts?.watchdog.stop();
      await drain?.stop();
      await notifier.close();
    },
  };
}

const OUTBOX_POLL_MS = 1_000;
const OUTBOX_CONCURRENCY = 16;
/** Beside what a delivery may take: for its result to be stored, also when Postgres is slow. */
const SETTLE_GRACE_MS = 20_000;
// Names are looked up by four threads: one slow name must not take them all.
const OUTBOX_PER_TARGET = 3;

/** Null without a secret: this process sends no webhooks, and refuses them at admission. */
function createOutboxDrain({ config, pool, ownUrl, logger }: EngineDeps): Drain | null {
  const { secret, allowPrivate, timeoutMs, maxAttempts } = config.webhooks;
  if (secret === null) return null;
  return createDrain({
    pool,
    handlers: { [WEBHOOK]: createWebhookHandler({ secret, allowPrivate, ownUrl, timeoutMs }) },
    intervalMs: OUTBOX_POLL_MS,
    concurrency: OUTBOX_CONCURRENCY,
    perLane: OUTBOX_PER_TARGET,
    leaseMs: timeoutMs + SETTLE_GRACE_MS,
    maxAttempts,
    logger,
  });
}

const QUEUED = `select count(*)::int as count from runs where status = 'queued'`;

interface Counted {
  ended: ReadonlyMap<string, number>;
  unsealed: ReadonlySet<string>;
}

function readingsOf(deps: EngineDeps, { ended, unsealed }: Counted, parts: WorkerParts | null): EngineReading[] {
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
      name: 'runledger_outbox_effects',
      help: 'Effects of ended runs that wait to be delivered (pending) or were given up (dead), in the whole system.',
      kind: 'gauge',
      labels: ['status'],
      async read() {
        const counts = await countUnsettled(deps.pool);
        return Object.entries(counts).map(([status, value]) => ({ value, labels: { status } }));
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
      name: 'runledger_runs_unsealed',
      help: 'Runs whose end this process stored and the event log has not taken yet.',
      kind: 'gauge',
      read: () => [{ value: unsealed.size }],
    },
    {
      name: 'runledger_viewers',
      help: 'Readers of runs on this process.',
      kind: 'gauge',
      read: () => [{ value: deps.hub.viewers }],
    },
  ];
}
