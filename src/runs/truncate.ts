/** Empties the server, for test suites that want to begin with nothing. Behind `--test-mode` only. */
import { deleteCheckpoints } from '#src/graphs/checkpoint-rows.ts';
import type { Pool } from '#src/postgres/pool.ts';
import { inTransaction } from '#src/postgres/transaction.ts';

/** What is deleted; a thread takes its runs and checkpoints with it, and with the runs go the crons that ask for them. */
export interface Truncated {
  runs: boolean;
  threads: boolean;
  assistants: boolean;
  checkpointer: boolean;
  store: boolean;
}

/** Everything of every owner, live runs included: their workers find that they have lost them. */
export function truncate(pool: Pool, what: Truncated): Promise<void> {
  return inTransaction(pool, async (tx) => {
    if (what.threads || what.checkpointer) {
      const { rows } = await tx.query<{ id: string }>('select id from lineages');
      await deleteCheckpoints(
        tx,
        rows.map(({ id }) => id),
      );
    }
    if (what.threads) await tx.query('delete from threads');
    else if (what.checkpointer) await tx.query('update lineages set tip_checkpoint_id = null');
    if (what.runs) await tx.query('delete from crons');
    if (what.runs && !what.threads) await tx.query('delete from runs');
    if (what.store) await tx.query('delete from store_items');
    if (what.assistants) await tx.query('delete from assistants where owner is not null');
  });
}
