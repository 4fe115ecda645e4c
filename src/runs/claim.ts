import type { Pool } from '#src/postgres/pool.ts';
import { isConflict, isUniqueViolation } from '#src/postgres/sqlstate.ts';
import { type RunRow, runColumns, toRun } from './queries.ts';
import type { Run } from './run.ts';

// The thread row is locked too: without it two runs of one thread, one of which falls due meanwhile, collide on
// runs_one_running and the whole batch fails. The clock is read once, so a run cannot fall due between two rows.
const CLAIM = `
  with clock as materialized (select clock_timestamp() as now),
  pick as (
    select r.id
    from runs r
    join threads t on t.id = r.thread_id
    cross join clock
    where r.status = 'queued'
      and r.kind <> 'edit'
      and r.available_at <= clock.now
      -- guard: one running run per thread; a run that was put back goes on before anything else of its thread, also
      -- before an older one that has fallen due meanwhile: what it left half done is its own; then the oldest due run
      and not exists (select 1 from runs x where x.thread_id = r.thread_id and x.status = 'running')
      and not exists (
        select 1 from runs o
        where o.thread_id = r.thread_id and o.status = 'queued' and o.available_at <= clock.now
          and (o.started_at is null, o.seq) < (r.started_at is null, r.seq))
    order by r.seq
    for no key update of t, r skip locked
    limit $2)
  update runs r
  set status = 'running', epoch = r.epoch + 1, worker_id = $1::uuid, started_at = coalesce(r.started_at, clock_timestamp()),
      base_checkpoint_id = coalesce(
        r.base_checkpoint_id,
        (select l.tip_checkpoint_id from lineages l where l.id = r.lineage_id),
        -- a lineage of the stock saver has no tip yet: its newest counts
        (select c.checkpoint_id from checkpoints c
         where c.thread_id = r.lineage_id::text and c.checkpoint_ns = '' order by c.seq desc limit 1),
        '')
  from pick
  -- guard: still queued (a cancel may have ended it between the pick's snapshot and its lock)
  where r.id = pick.id and r.status = 'queued'
  returning ${runColumns('r')}, extract(epoch from clock_timestamp() - r.started_at)::float8 * 1000 as age_ms`;

export interface ClaimedRun extends Run {
  /** Since its first claim, whoever had it meanwhile. */
  age_ms: number;
}

/**
 * queued -> running, epoch + 1, owner = this worker, for up to `limit` runs that may run now.
 * Lost race: a row another worker holds is skipped. A collision on the one-running index, a deadlock or a serialization
 * failure fails the batch; it is then tried with limit 1, because the larger a batch the likelier it is refused again: workers
 * with room would stand beside a queue that grows. It gives nothing when even that collides (the next wake-up or poll tries
 * again).
 * After a crash here: the transaction is gone, the runs are still queued.
 */
export async function claim(pool: Pool, workerId: string, limit: number): Promise<ClaimedRun[]> {
  try {
    return await claimAtMost(pool, workerId, limit);
  } catch (error) {
    const collided = isUniqueViolation(error, 'runs_one_running');
    if (!collided && !isConflict(error)) throw error;
    if (limit > 1) return claim(pool, workerId, 1);
    if (collided) return [];
    throw error;
  }
}

async function claimAtMost(pool: Pool, workerId: string, limit: number): Promise<ClaimedRun[]> {
  const { rows } = await pool.query<RunRow & { age_ms: number }>({
    name: 'claim',
    text: CLAIM,
    values: [workerId, limit],
  });
  return rows.map((row) => ({ ...toRun(row), age_ms: row.age_ms }));
}
