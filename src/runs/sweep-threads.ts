/** Threads past their time: by the operator's rule, by their own, or made for one run. */
import type { Logger } from 'pino';
import type { EventLog } from '#src/events/log.ts';
import { deleteCheckpoints } from '#src/graphs/checkpoint-rows.ts';
import type { GraphRegistry } from '#src/graphs/graph.ts';
import type { Pool } from '#src/postgres/pool.ts';
import { inTransaction } from '#src/postgres/transaction.ts';
import { deleteThread, lockForDeletion } from '#src/threads/queries.ts';
import { liveRuns } from './queries.ts';
import { pruneThread } from './sweep-checkpoints.ts';
import { eachRow } from './sweep-rows.ts';

export interface SweepThreadsDeps {
  pool: Pool;
  log: EventLog;
  graphs: GraphRegistry;
  logger: Logger;
}

const QUIET = `
  not exists (select 1 from runs r where r.thread_id = t.id and r.status in ('prepared', 'queued', 'running'))`;
const IDLE = `t.active_at < clock_timestamp() - $1 * interval '1 ms' and ${QUIET}`;
/** For how long the thread of a run that named none can be read after the run's end. */
const TEMPORARY_MS = 600_000;
const EXPIRED = `
  t.ttl_minutes is not null and t.active_at < clock_timestamp() - t.ttl_minutes * interval '1 minute'
  and t.ttl_set_at < clock_timestamp() - t.ttl_minutes * interval '1 minute' and ${QUIET}`;

/** Deletes threads without activity for `idleMs` and without a live run, with all that hangs on them. */
export function deleteIdleThreads(deps: SweepThreadsDeps, idleMs: number, limit: number): Promise<number> {
  return deleteWhere(deps, IDLE, [idleMs], limit);
}

/** Deletes threads that were made for one run, some time after it has ended. */
export function deleteTemporary(deps: SweepThreadsDeps, limit: number): Promise<number> {
  return deleteWhere(deps, `t.temporary and ${IDLE}`, [TEMPORARY_MS], limit);
}

/** Deletes threads that are past the time they were given, and were to be deleted then. */
export function deleteExpiredThreads(deps: SweepThreadsDeps, limit: number): Promise<number> {
  return deleteWhere(deps, `t.ttl_strategy = 'delete' and ${EXPIRED}`, [], limit);
}

const PRUNABLE = `
  select t.id, t.active_at::text as active from threads t
  where t.ttl_strategy = 'keep_latest' and ${EXPIRED}
    -- guard: not pruned since its last activity
    and t.ttl_swept is distinct from t.active_at
  limit $1`;
const PRUNED = `update threads set ttl_swept = $2::timestamptz where id = $1::uuid`;

/** Leaves of threads that are past the time they were given their latest state, where that was asked for. Returns how many. */
export async function pruneExpiredThreads(deps: SweepThreadsDeps, limit: number): Promise<number> {
  const { pool, graphs, logger } = deps;
  const { rows } = await pool.query<{ id: string; active: string }>(PRUNABLE, [limit]);
  const prune = async ({ id, active }: { id: string; active: string }): Promise<number> => {
    await pruneThread({ pool, graphs, keep: 1, logger }, id);
    await pool.query(PRUNED, [id, active]);
    return 1;
  };
  return eachRow(rows, prune, logger);
}

/** @param where a condition on `threads t`, of $1 and so on */
async function deleteWhere(deps: SweepThreadsDeps, where: string, values: unknown[], limit: number): Promise<number> {
  const found = `select t.id from threads t where ${where} limit $${values.length + 1}`;
  const { rows } = await deps.pool.query<{ id: string }>(found, [...values, limit]);
  return eachRow(rows, ({ id }) => deleteIf(deps, where, values, id), deps.logger);
}

/** Returns 1 when it was deleted, 0 when it is not to be deleted any more. */
async function deleteIf(deps: SweepThreadsDeps, where: string, values: unknown[], threadId: string): Promise<number> {
  // guard: nothing has happened on it since it was found, and nobody holds it
  const lock = `select t.owner from threads t where t.id = $${values.length + 1}::uuid and ${where} for update skip locked`;
  const runIds = await inTransaction(deps.pool, async (tx) => {
    const { rows } = await tx.query<{ owner: string }>(lock, [...values, threadId]);
    const owner = rows[0]?.owner;
    const found = owner === undefined ? null : await lockForDeletion(tx, owner, threadId);
    // guard: none was admitted between the look and the lock, which sees only what has changed in the thread's own row
    if (found === null || (await liveRuns(tx, threadId)).length > 0) return null;
    await deleteCheckpoints(tx, found.lineageIds);
    await deleteThread(tx, threadId);
    return found.runIds;
  });
  if (runIds === null) return 0;
  for (const runId of runIds) {
    await deps.log.remove(runId).catch((error: unknown) => {
      deps.logger.warn({ err: error, runId }, 'log of a deleted run not removed; it expires');
    });
  }
  return 1;
}
