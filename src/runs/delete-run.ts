/** Deletes one run that has ended, with what it wrote when nothing is built on that. */
import { RunledgerError } from '#src/errors.ts';
import { isHead, removeCheckpointsOf } from '#src/graphs/checkpoint-rows.ts';
import type { Pool } from '#src/postgres/pool.ts';
import { inTransaction } from '#src/postgres/transaction.ts';
import { lockThread, moveTip } from '#src/threads/open.ts';
import { threadNotFound } from './admission.ts';
import { liveRuns, type RunRow } from './queries.ts';
import { isTerminal } from './run.ts';

const LOCK = `
  select * from runs
  where id = $1::uuid and thread_id = $2::uuid and kind <> 'edit' and not hidden
  for no key update`;
const DELETE = `delete from runs where id = $1::uuid`;
const DELETE_TURN = `
  delete from turns u where u.id = $1::uuid and not exists (select 1 from runs r where r.turn_id = u.id)`;

// A later run that wrote nothing began where this one had ended; tried again, it would begin at nothing.
const REBASE = `
  update runs set base_checkpoint_id = $3
  where lineage_id = $1::uuid and id <> $2::uuid
    and base_checkpoint_id in (select checkpoint_id from checkpoints
                               where thread_id = $1::uuid::text and checkpoint_ns = '' and run_id = $2::uuid)`;

/**
 * Guard: the thread's row, and the run has ended. Checkpoints of the run go too, and the lineage's tip goes back to where
 * the run began, unless a later run has built on them, or a live one may be about to: then they stay.
 * @throws THREAD_NOT_FOUND, RUN_NOT_FOUND, RUN_IN_PROGRESS
 */
export function deleteRun(pool: Pool, owner: string, threadId: string, runId: string): Promise<void> {
  return inTransaction(pool, async (tx) => {
    if ((await lockThread(tx, owner, threadId)) === null) throw threadNotFound();
    const { rows } = await tx.query<RunRow>(LOCK, [runId, threadId]);
    const [run] = rows;
    if (run === undefined) throw new RunledgerError('RUN_NOT_FOUND', 'The thread has no such run.');
    if (!isTerminal(run.status)) {
      throw new RunledgerError('RUN_IN_PROGRESS', 'The run is still in progress.', { details: { run_id: runId } });
    }
    const base = run.base_checkpoint_id;
    const [live] = await liveRuns(tx, threadId);
    if (base !== null && live === undefined && (await isHead(tx, run.lineage_id, runId))) {
      await tx.query(REBASE, [run.lineage_id, runId, base]);
      await moveTip(tx, run.lineage_id, base);
      await removeCheckpointsOf(tx, run.lineage_id, runId, base);
    }
    await tx.query(DELETE, [runId]);
    if (run.turn_id !== null) await tx.query(DELETE_TURN, [run.turn_id]);
  });
}
