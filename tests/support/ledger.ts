/** Rows of the ledger that tests of single rooms stand on. */
import { randomUUID } from 'node:crypto';
import type { Pool } from '#src/postgres/pool.ts';
import { insertThread } from '#src/threads/open.ts';

export interface LedgerRun {
  runId: string;
  threadId: string;
  epoch: number;
}

const RUN = `
  insert into runs (id, owner, thread_id, lineage_id, graph_id, kind, status, epoch, ordinal, worker_id)
  values ($1::uuid, 'tester', $2::uuid, $2::uuid, 'test', 'plain', 'running', $3, $4, $5::uuid)`;

/** A running run at the given epoch on a new thread, or on `threadId`. */
export async function insertRunningRun(
  pool: Pool,
  options: { epoch?: number; threadId?: string; ordinal?: number } = {},
): Promise<LedgerRun> {
  const threadId = options.threadId ?? randomUUID();
  if (options.threadId === undefined) await insertThread(pool, { id: threadId, owner: 'tester' });
  const epoch = options.epoch ?? 1;
  const runId = randomUUID();
  await pool.query(RUN, [runId, threadId, epoch, options.ordinal ?? 1, randomUUID()]);
  return { runId, threadId, epoch };
}

/** Gives the run to another owner, as a put-back and the next claim would. */
export async function takeOver(pool: Pool, run: LedgerRun): Promise<LedgerRun> {
  await pool.query('update runs set epoch = epoch + 1, worker_id = $2::uuid where id = $1::uuid', [
    run.runId,
    randomUUID(),
  ]);
  return { ...run, epoch: run.epoch + 1 };
}

/** Ends the run, so that the next may run on its thread. */
export async function endRun(pool: Pool, run: LedgerRun): Promise<void> {
  await pool.query(
    `update runs set status = 'succeeded', ended_at = clock_timestamp(), log_end = 0 where id = $1::uuid and epoch = $2`,
    [run.runId, run.epoch],
  );
}
