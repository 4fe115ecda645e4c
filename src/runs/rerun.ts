/** Admission of a rerun: the latest turn is tried again from where it began. */
import { randomUUID } from 'node:crypto';
import { RunledgerError } from '#src/errors.ts';
import type { Tx } from '#src/postgres/pool.ts';
import { inTransaction } from '#src/postgres/transaction.ts';
import { closeInterrupts, lockThread, moveTip } from '#src/threads/open.ts';
import {
  type Admission,
  type AdmitDeps,
  firstWithKey,
  insertRun,
  optionsOf,
  refuseWhileLive,
  threadNotFound,
  withUser,
} from './admission.ts';
import { requestHash } from './hash.ts';
import { type RunRow, toRun } from './queries.ts';
import type { RerunRequest } from './run.ts';

/**
 * Tries the thread's latest turn again, after it failed or was cancelled: -> queued, with the first run's input, from the
 * checkpoint the turn began at. What the failed try left stays in the checkpoints, off the tip.
 * Guard: request key, thread row, one live run per thread. Lost race of two: RUN_IN_PROGRESS.
 * @throws THREAD_NOT_FOUND, RUN_IN_PROGRESS, NOT_RERUNNABLE, IDEMPOTENCY_KEY_REUSED
 */
export function admitRerun(deps: AdmitDeps, request: RerunRequest): Promise<Admission> {
  const { owner, thread_id: threadId, request_key: key } = request;
  const hash = requestHash(key, {
    kind: 'rerun',
    thread_id: threadId,
    config: request.config ?? null,
    on_disconnect: request.on_disconnect ?? null,
    webhook: request.webhook ?? null,
  });
  return inTransaction(deps.pool, async (tx) => {
    const first = await firstWithKey(tx, owner, key, hash);
    if (first !== null) return first;
    if ((await lockThread(tx, owner, threadId)) === null) throw threadNotFound();
    await refuseWhileLive(tx, threadId);
    const { opened, latest, base } = await latestTurn(tx, threadId);
    if (latest.status !== 'failed' && latest.status !== 'cancelled') {
      throw new RunledgerError('NOT_RERUNNABLE', 'Only a turn that failed or was cancelled can be tried again.', {
        details: { run_id: latest.id, status: latest.status },
      });
    }
    if (base !== null) await moveTip(tx, opened.lineage_id, base);
    await closeInterrupts(tx, opened.lineage_id);
    const options = optionsOf(deps, request);
    const row = await insertRun(tx, {
      id: randomUUID(),
      owner,
      threadId,
      turnId: opened.turn_id,
      lineageId: opened.lineage_id,
      graphId: opened.graph_id,
      kind: 'rerun',
      input: opened.input,
      command: null,
      messageId: opened.message_id,
      hash,
      ...options,
      config: withUser(request.config ?? opened.config, request.user),
      streamModes: opened.stream_modes,
    });
    return { run: toRun(row), message_id: opened.message_id, replayed: false, superseded: row.superseded };
  });
}

// A turn all of whose runs were rolled back is none.
const OF_LATEST_TURN = `
  select r.* from runs r
  where not r.hidden and r.turn_id = (
    select u.id from turns u
    where u.thread_id = $1::uuid and exists (select 1 from runs x where x.turn_id = u.id and not x.hidden)
    order by u.ordinal desc limit 1)
  order by r.ordinal`;

/**
 * The run that opened the thread's latest turn, the turn's latest run, and the checkpoint the turn began at: that of the
 * first run that was claimed, as the one that opened the turn may have been cancelled before. null: none was.
 * @throws NOT_RERUNNABLE without a turn
 */
async function latestTurn(tx: Tx, threadId: string): Promise<{ opened: RunRow; latest: RunRow; base: string | null }> {
  const { rows } = await tx.query<RunRow>(OF_LATEST_TURN, [threadId]);
  const [opened] = rows;
  const latest = rows.at(-1);
  if (opened === undefined || latest === undefined) {
    throw new RunledgerError('NOT_RERUNNABLE', 'The thread has no turn that could be tried again.');
  }
  const base = rows.find((row) => row.base_checkpoint_id !== null)?.base_checkpoint_id ?? null;
  return { opened, latest, base };
}
