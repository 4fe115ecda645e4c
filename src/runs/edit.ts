/** A checkpoint write by API: a run of kind `edit` that begins, writes and ends in one transaction. */
import { randomUUID } from 'node:crypto';
import type { BaseCheckpointSaver } from '@langchain/langgraph-checkpoint';
import { RunledgerError } from '#src/errors.ts';
import type { JsonObject } from '#src/events/event.ts';
import { createTurnstile } from '#src/events/turnstile.ts';
import { openSaver } from '#src/graphs/checkpoints.ts';
import type { Pool, Tx } from '#src/postgres/pool.ts';
import { inTransaction } from '#src/postgres/transaction.ts';
import { lockThread } from '#src/threads/open.ts';
import { refuseWhileLive, threadNotFound } from './admission.ts';
import { orStopped } from './stop.ts';

export interface EditPlace {
  owner: string;
  threadId: string;
  lineageId: string;
  graphId: string;
  /** What the metadata of the checkpoints says beside LangGraph's own and the run's. */
  metadata: JsonObject;
}

// Nobody sees the row while it runs, so its owner is nobody.
const BEGIN = `
  with counted as (
    update threads set run_count = run_count + 1, active_at = clock_timestamp(), updated_at = clock_timestamp()
    where id = $3::uuid returning run_count)
  insert into runs (id, owner, thread_id, lineage_id, graph_id, kind, status, epoch, ordinal, worker_id, started_at)
  select $1::uuid, $2, $3::uuid, $4::uuid, $5, 'edit', 'running', 1, run_count,
         '00000000-0000-0000-0000-000000000000', clock_timestamp()
  from counted`;
/** Each holds a connection that the runs of this process need too, also while it waits for its thread. */
const turnstile = createTurnstile(4);
const WORK_MS = 10_000;

const END = `update runs set status = 'succeeded', ended_at = clock_timestamp() where id = $1::uuid`;

/**
 * Guard: the thread's row, and no live run on it. Lost race: RUN_IN_PROGRESS, nothing written.
 * After a crash: the transaction is gone, with the run's row and all it wrote.
 * `work` may be called again after a conflict, on another transaction and saver. One that is too late goes on beside a
 * connection that is given back: what it writes, it writes through the saver, which is closed; other writes are `settle`'s.
 * @throws THREAD_NOT_FOUND, RUN_IN_PROGRESS {run_id}, UNAVAILABLE when `work` takes longer than 10 s
 */
export function edit<T>(
  pool: Pool,
  place: EditPlace,
  work: (saver: BaseCheckpointSaver, tx: Tx) => Promise<T>,
  settle: (tx: Tx) => Promise<void> = async () => undefined,
): Promise<T> {
  const { owner, threadId, lineageId, graphId } = place;
  const editIn = async (tx: Tx): Promise<T> => {
    if ((await lockThread(tx, owner, threadId)) === null) throw threadNotFound();
    await refuseWhileLive(tx, threadId);
    const runId = randomUUID();
    await tx.query(BEGIN, [runId, owner, threadId, lineageId, graphId]);
    const metadata = { ...place.metadata, run_id: runId, graph_id: graphId, thread_id: lineageId };
    // The saver asks only for `query`; through it every statement is part of this transaction.
    const saver = openSaver(
      tx as unknown as Pool,
      { runId, epoch: 1, metadata, oneTransaction: true },
      () => undefined,
    );
    const result = await withinTime(work(saver.saver, tx)).finally(() => saver.close());
    await settle(tx);
    await tx.query(END, [runId]);
    return result;
  };
  return turnstile(() => inTransaction(pool, editIn));
}

/** A user's factory or edge that hangs must not keep the connection. @throws UNAVAILABLE */
async function withinTime<T>(work: Promise<T>): Promise<T> {
  const limit = AbortSignal.timeout(WORK_MS);
  try {
    return await orStopped(work, limit);
  } catch (error) {
    if (error !== limit.reason) throw error;
    throw new RunledgerError('UNAVAILABLE', 'The graph took too long to take the update.', { cause: error });
  }
}
