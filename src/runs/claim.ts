import type { Pool } from '#src/postgres/pool.ts';
import { isConflict, isUnavailable, isUniqueViolation } from '#src/postgres/sqlstate.ts';
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
    limit $2 offset $3)
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
 * failure fails the batch; then they are claimed one by one, because the larger a batch the likelier it is refused again: workers
 * with room would stand beside a queue that grows. It gives nothing when even the first collides (the next wake-up or poll tries
 * again). A row that Postgres refuses to change for any other reason is always the first again: those behind it are tried, so
 * that one broken run does not stop every queue.
 * After a crash here: the transaction is gone, the runs are still queued.
 * @param onRefused is told what was refused while others were claimed; when nothing is claimed, it is thrown
 */
export async function claim(
  pool: Pool,
  workerId: string,
  limit: number,
  onRefused: (refusal: unknown) => void = () => undefined,
): Promise<ClaimedRun[]> {
  try {
    return await claimAtMost(pool, workerId, limit);
  } catch (error) {
    if (isUnavailable(error) && !isConflict(error)) throw error;
    return oneByOne(pool, workerId, limit, onRefused);
  }
}

/** What has been claimed is given, whatever befalls the next: it is ours already. @throws when the first cannot be claimed */
async function oneByOne(
  pool: Pool,
  workerId: string,
  limit: number,
  onRefused: (refusal: unknown) => void,
): Promise<ClaimedRun[]> {
  const claimed: ClaimedRun[] = [];
  while (claimed.length < limit) {
    try {
      const next = await claimFirst(pool, workerId, onRefused);
      if (next.length === 0) break;
      claimed.push(...next);
    } catch (error) {
      if (claimed.length === 0) throw error;
      onRefused(error);
      break;
    }
  }
  return claimed;
}

/** How many broken runs at the head of the queue are passed over. */
const MAX_PASSED = 5;

/** The first run that can be claimed. @throws what Postgres said of the first one, when there is none behind those it refuses */
async function claimFirst(pool: Pool, workerId: string, onRefused: (refusal: unknown) => void): Promise<ClaimedRun[]> {
  let refusal: { of: unknown } | null = null;
  for (let passed = 0; passed <= MAX_PASSED; passed += 1) {
    try {
      const claimed = await claimAtMost(pool, workerId, 1, passed);
      if (claimed.length > 0 && refusal !== null) onRefused(refusal.of);
      if (claimed.length > 0 || refusal === null) return claimed;
      break;
    } catch (error) {
      if (isUniqueViolation(error, 'runs_one_running')) return [];
      if (isUnavailable(error)) throw error;
      refusal ??= { of: error };
    }
  }
  throw refusal?.of;
}

async function claimAtMost(pool: Pool, workerId: string, limit: number, passed = 0): Promise<ClaimedRun[]> {
  const { rows } = await pool.query<RunRow & { age_ms: number }>({
    name: 'claim',
    text: CLAIM,
    values: [workerId, limit, passed],
  });
  return rows.map((row) => ({ ...toRun(row), age_ms: row.age_ms }));
}
