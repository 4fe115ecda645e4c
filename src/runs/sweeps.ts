/**
 * What time removes: settled effects, workers long dead, prepared runs nobody started, threads past their time, old
 * checkpoints. Every process may sweep at once: each step takes only rows nobody holds, in bounded batches. Event logs
 * expire by themselves.
 */
import type { Logger } from 'pino';
import type { EventLog } from '#src/events/log.ts';
import type { GraphRegistry } from '#src/graphs/graph.ts';
import { forgetSettled } from '#src/outbox/entries.ts';
import type { Pool } from '#src/postgres/pool.ts';
import { isUnavailable } from '#src/postgres/sqlstate.ts';
import { deleteExpired } from '#src/store/queries.ts';
import { type RunRow, toRun } from './queries.ts';
import type { Run } from './run.ts';
import { isSuperseded } from './start.ts';
import { createPruner } from './sweep-checkpoints.ts';
import { eachRow } from './sweep-rows.ts';
import { deleteExpiredThreads, deleteIdleThreads, deleteTemporary, pruneExpiredThreads } from './sweep-threads.ts';

const EVERY_MS = 60_000;
const BATCH = 200;
/** Batches of one step in one sweep; the rest is left to the next, so that no step starves the others. */
const MAX_BATCHES = 50;

export interface SweepConfig {
  runs: { preparedTtlMs: number };
  events: { streamTtlMs: number };
  /** `threadsMs`: null keeps threads for ever. */
  retention: { outboxDeliveredMs: number; outboxDeadMs: number; threadsMs: number | null };
  /** Checkpoints per lineage; null keeps all. */
  checkpoints: { keep: number | null };
}

export interface SweepDeps {
  pool: Pool;
  log: EventLog;
  graphs: GraphRegistry;
  config: SweepConfig;
  /** Ends a run that is prepared, through finalize. A run that was started meanwhile is left alone. */
  cancelPrepared: (run: Run, reason: 'NEVER_STARTED' | 'SUPERSEDED') => Promise<unknown>;
  logger: Logger;
}

/** How many of each were removed or ended; null when the step failed (it is in the log) or is switched off. */
export interface Swept {
  effects: number | null;
  workers: number | null;
  prepared: number | null;
  threads: number | null;
  /** Threads past the time they were given: deleted, and pruned. */
  expired: number | null;
  pruned: number | null;
  checkpoints: number | null;
  rolledBack: number | null;
  temporary: number | null;
  items: number | null;
}

export interface Sweeps {
  /** Sweeps about once a minute, the first time within the first minute. */
  start(): void;
  /** Sweeps once, now. A step that fails is logged and does not keep the others from their work. */
  sweep(): Promise<Swept>;
  /** Waits for the batch in progress. */
  stop(): Promise<void>;
}

export function createSweeps(deps: SweepDeps): Sweeps {
  const { pool, config, logger } = deps;
  const { retention } = config;
  const keep = config.checkpoints.keep;
  const pruner = keep === null ? null : createPruner({ pool, graphs: deps.graphs, keep, logger });
  let timer: NodeJS.Timeout | undefined;
  let sweeping: Promise<unknown> = Promise.resolve();
  let stopped = false;

  /** Repeats a batch while it is full. */
  async function step(name: string, batch: (limit: number) => Promise<number>): Promise<number | null> {
    let total = 0;
    try {
      for (let n = 0; n < MAX_BATCHES && !stopped; n += 1) {
        const count = await batch(BATCH);
        total += count;
        if (count < BATCH) break;
      }
    } catch (error) {
      logger[isUnavailable(error) ? 'debug' : 'error'](
        { err: error, step: name },
        'sweep failed; the next tries again',
      );
      return null;
    }
    if (total > 0) logger.info({ step: name, count: total }, 'swept');
    return total;
  }

  async function sweep(): Promise<Swept> {
    const kept = { deliveredMs: retention.outboxDeliveredMs, deadMs: retention.outboxDeadMs };
    const { threadsMs } = retention;
    return {
      effects: await step('effects', (limit) => forgetSettled(pool, kept, limit)),
      workers: await step('workers', (limit) => forgetWorkers(pool, limit)),
      prepared: await step('prepared', (limit) => cancelNeverStarted(deps, limit)),
      threads: threadsMs === null ? null : await step('threads', (limit) => deleteIdleThreads(deps, threadsMs, limit)),
      expired: await step('expired', (limit) => deleteExpiredThreads(deps, limit)),
      pruned: await step('pruned', (limit) => pruneExpiredThreads(deps, limit)),
      checkpoints: pruner === null ? null : await step('checkpoints', () => pruner.next()),
      rolledBack: await step('rolledBack', (limit) => deleteRolledBack(pool, config.events.streamTtlMs, limit)),
      temporary: await step('temporary', (limit) => deleteTemporary(deps, limit)),
      items: await step('items', (limit) => deleteExpired(pool, limit)),
    };
  }

  function schedule(delayMs: number): void {
    if (stopped) return;
    timer = setTimeout(() => {
      sweeping = sweep().finally(() => schedule(EVERY_MS));
    }, delayMs);
  }

  return {
    start: () => schedule(Math.random() * EVERY_MS),
    sweep,
    async stop() {
      stopped = true;
      clearTimeout(timer);
      await sweeping;
    },
  };
}

// A worker's row is removed by whoever buries it; left are those that had nothing to bury, or died while nobody looked.
const FORGET_WORKERS = `
  delete from workers
  where id in (
    select w.id from workers w
    where w.expires_at < clock_timestamp() - interval '1 hour'
      and not exists (select 1 from runs r where r.worker_id = w.id and r.status = 'running')
    limit $1
    for update skip locked)`;

/** Removes workers that have been dead for an hour and own nothing. One that only slept registers anew. */
async function forgetWorkers(pool: Pool, limit: number): Promise<number> {
  const { rowCount } = await pool.query(FORGET_WORKERS, [limit]);
  return rowCount ?? 0;
}

const NEVER_STARTED = `
  select r.*, ${isSuperseded('r')} as superseded
  from runs r
  where r.status = 'prepared' and (r.created_at < clock_timestamp() - $1 * interval '1 ms' or ${isSuperseded('r')})
  order by r.created_at
  limit $2`;

/**
 * prepared -> cancelled, for runs that nobody started in time or that others have replaced. Two sweeps at once end each
 * once: finalize has the guard.
 */
async function cancelNeverStarted(deps: SweepDeps, limit: number): Promise<number> {
  const { rows } = await deps.pool.query<RunRow & { superseded: boolean }>(NEVER_STARTED, [
    deps.config.runs.preparedTtlMs,
    limit,
  ]);
  const end = async (row: RunRow & { superseded: boolean }): Promise<number> => {
    await deps.cancelPrepared(toRun(row), row.superseded ? 'SUPERSEDED' : 'NEVER_STARTED');
    return 1;
  };
  return eachRow(rows, end, deps.logger);
}

const ROLLED_BACK = `
  with gone as (
    delete from runs where id in (
      select id from runs where hidden and ended_at < clock_timestamp() - $1 * interval '1 ms'
      limit $2
      for update skip locked)
    returning id)
  select id from gone`;

/** Removes runs that were rolled back, once nobody can follow them to their end any more. */
async function deleteRolledBack(pool: Pool, streamTtlMs: number, limit: number): Promise<number> {
  const { rowCount } = await pool.query(ROLLED_BACK, [streamTtlMs, limit]);
  return rowCount ?? 0;
}
