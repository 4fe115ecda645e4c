/** The start of a prepared run: from now on it waits for a worker like any other. */
import { RunledgerError } from '#src/errors.ts';
import type { Pool } from '#src/postgres/pool.ts';
import { inTransaction } from '#src/postgres/transaction.ts';
import { lockThread } from '#src/threads/open.ts';
import { threadNotFound } from './admission.ts';
import { type RunRow, runColumns, toRun } from './queries.ts';
import type { Run } from './run.ts';

/** SQL: something has come after the prepared run `run`, so it is to be cancelled, and must not be started any more. */
export function isSuperseded(run: string): string {
  return `exists (
    select 1 from runs later
    where later.thread_id = ${run}.thread_id and later.ordinal > ${run}.ordinal and later.kind <> 'edit')`;
}

const START = `
  update runs r set status = 'queued', available_at = clock_timestamp()
  where r.id = $1::uuid and r.thread_id = $2::uuid
    -- guard: prepared, nobody has asked it to stop, and nothing has come after it
    and r.status = 'prepared' and r.cancel_requested_at is null and not ${isSuperseded('r')}
  returning ${runColumns('r')}`;
const TOUCH = `update threads set active_at = clock_timestamp() where id = $1::uuid`;
const STATUS = `select status from runs where id = $1::uuid and thread_id = $2::uuid and kind <> 'edit' and not hidden`;

/**
 * prepared -> queued.
 * Guard: the thread's row, then the run's status. Lost race, and a second start: NOT_PREPARED.
 * After a crash before COMMIT: it is still prepared; after it: any worker's poll finds it.
 * @throws THREAD_NOT_FOUND, RUN_NOT_FOUND, NOT_PREPARED {run_id, status}
 */
export function startPrepared(pool: Pool, owner: string, threadId: string, runId: string): Promise<Run> {
  return inTransaction(pool, async (tx) => {
    if ((await lockThread(tx, owner, threadId)) === null) throw threadNotFound();
    const { rows } = await tx.query<RunRow>({ name: 'start', text: START, values: [runId, threadId] });
    const [row] = rows;
    if (row !== undefined) {
      await tx.query(TOUCH, [threadId]);
      return toRun(row);
    }
    const found = await tx.query<Pick<RunRow, 'status'>>(STATUS, [runId, threadId]);
    const [other] = found.rows;
    if (other === undefined) throw new RunledgerError('RUN_NOT_FOUND', 'The thread has no such run.');
    throw new RunledgerError('NOT_PREPARED', 'The run does not wait to be started.', {
      details: { run_id: runId, status: other.status },
    });
  });
}
