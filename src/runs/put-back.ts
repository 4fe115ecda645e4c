/** running -> queued, epoch + 1: the owner drains, or is dead. From the commit on the old owner can write nothing. */
import type { Logger } from 'pino';
import { cursorOf } from '#src/events/cursor.ts';
import type { EventOf } from '#src/events/event.ts';
import type { EventLog } from '#src/events/log.ts';
import type { Pool } from '#src/postgres/pool.ts';
import { type RunRow, toRun } from './queries.ts';
import type { Run } from './run.ts';
import { LOCK_GRACE_MS } from './worker.ts';

export interface PutBackDeps {
  pool: Pool;
  log: EventLog;
  logger: Logger;
}

// A takeover is forgiven when the run has got further since the last one: its tip is a checkpoint of its own, and another.
const OF_DEAD = `
  update runs r
  set status = 'queued', epoch = r.epoch + 1, worker_id = null,
      takeovers = case when tip.run_id = r.id and tip.checkpoint_id is distinct from r.progress_checkpoint_id
                       then 1 else r.takeovers + 1 end,
      progress_checkpoint_id = case when tip.run_id = r.id then tip.checkpoint_id else r.progress_checkpoint_id end
  from runs seen
  left join lineages l on l.id = seen.lineage_id
  left join checkpoints tip
    on tip.thread_id = l.id::text and tip.checkpoint_ns = '' and tip.checkpoint_id = l.tip_checkpoint_id
  where seen.id = r.id
    -- guard: still in the hands of the dead worker, in the epoch that was looked at
    and r.status = 'running' and r.worker_id = $1::uuid and r.epoch = seen.epoch
    -- guard: nobody claims an edit, so a queued one would hold its thread for ever
    and r.kind <> 'edit'
    -- guard: the worker has not come back since it was judged
    and not exists (
      select 1 from workers w
      where w.id = $1::uuid and w.expires_at > statement_timestamp()
        and w.renewed_at > statement_timestamp() - $2 * interval '1 ms')
  returning r.*`;

const OWN = `
  update runs r
  set status = 'queued', epoch = r.epoch + 1, worker_id = null
  where r.id = $1::uuid
    -- guard: still ours
    and r.epoch = $2 and r.status = 'running'
  returning r.*`;

/** Puts back every run of a dead worker. A takeover is counted. Returns the runs, queued. */
export async function putBackRunsOf(deps: PutBackDeps, workerId: string): Promise<Run[]> {
  const { rows } = await deps.pool.query<RunRow>(OF_DEAD, [workerId, LOCK_GRACE_MS]);
  const runs = rows.map(toRun);
  await markAll(deps, runs, 'owner_dead');
  return runs;
}

/** Hands one's own run back. Counts nothing. Returns null when it was not ours any more. */
export async function handBack(deps: PutBackDeps, run: Pick<Run, 'id' | 'epoch'>): Promise<Run | null> {
  const { rows } = await deps.pool.query<RunRow>(OWN, [run.id, run.epoch]);
  if (rows[0] === undefined) return null;
  const queued = toRun(rows[0]);
  await markAll(deps, [queued], 'drain');
  return queued;
}

/**
 * The first entry of the new epoch, so that the log itself refuses the old owner at once. Without it (the log is away)
 * the checkpoint fence and the row still hold, and the next owner's first entry does the same.
 */
async function markAll(deps: PutBackDeps, runs: Run[], reason: EventOf<'run.requeued'>['reason']): Promise<void> {
  if (runs.length === 0) return;
  const event: EventOf<'run.requeued'> = { type: 'run.requeued', reason };
  const payload = JSON.stringify(event);
  for (const run of runs) {
    deps.logger.warn(
      { runId: run.id, threadId: run.thread_id, epoch: run.epoch, takeovers: run.takeovers, reason },
      'run put back',
    );
  }
  const batches = runs.map((run) => ({ runId: run.id, entries: [{ cursor: cursorOf(run.epoch, 0), payload }] }));
  try {
    await deps.log.append(batches);
  } catch (error) {
    deps.logger.warn({ err: error, runs: runs.length }, 'hand-over not marked in the log');
  }
}
