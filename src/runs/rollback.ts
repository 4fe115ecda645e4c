/** The end of a run that is to be as if it had never been, inside finalize's transaction. */
import { removeCheckpointsOf } from '#src/graphs/checkpoint-rows.ts';
import type { Tx } from '#src/postgres/pool.ts';
import { moveTip } from '#src/threads/open.ts';
import type { RunRow } from './queries.ts';

const HIDE = `update runs set hidden = true where id = $1::uuid`;
const TAKE_BACK = `update messages set replaced = true where run_id = $1::uuid and not replaced`;

/**
 * Hides the run and puts its lineage back to where the run began. Its row stays until its log has expired, because readers
 * may still follow it to its end. A run that was never claimed has written nothing.
 */
export async function rollBack(tx: Tx, run: RunRow): Promise<void> {
  await tx.query(HIDE, [run.id]);
  await tx.query(TAKE_BACK, [run.id]);
  if (run.base_checkpoint_id === null) return;
  await moveTip(tx, run.lineage_id, run.base_checkpoint_id);
  await removeCheckpointsOf(tx, run.lineage_id, run.id, run.base_checkpoint_id);
}
