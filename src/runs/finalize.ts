/**
 * The end of a run. In this order, and only here: one transaction (status, outcome, place of the seal, answer,
 * interrupts), COMMIT, then the seal is appended to the log. Nobody can see a terminal frame before Postgres has it.
 */
import type { Logger } from 'pino';
import { type Cursor, cursorOf } from '#src/events/cursor.ts';
import type { Json, RunEvent } from '#src/events/event.ts';
import type { Hub } from '#src/events/hub.ts';
import { type EventLog, type LogEntry, LogUnavailable } from '#src/events/log.ts';
import { appendEnd } from '#src/events/seal.ts';
import { forgetAnswersOf } from '#src/graphs/checkpoint-rows.ts';
import { enqueue } from '#src/outbox/outbox.ts';
import { webhookEffect } from '#src/outbox/webhook.ts';
import type { Pool, Tx } from '#src/postgres/pool.ts';
import { CommitUnknown, inOneStatement, inTransaction } from '#src/postgres/transaction.ts';
import { type Settlement, settleParts, settleTurn, settleValues } from '#src/threads/settle.ts';
import { type Outcome, sealOf } from './outcome.ts';
import { findEndedRun, type RunRow, runColumns, toRun } from './queries.ts';
import { rollBack } from './rollback.ts';
import { isTerminal, type Run } from './run.ts';
import type { RunEnd } from './run-end.ts';
import { progressOf } from './takeover.ts';
import { webhookPayload } from './webhook-payload.ts';

export interface FinalizeDeps {
  pool: Pool;
  log: EventLog;
  hub: Hub;
  streamTtlMs: number;
  /** Whether events of the run still wait to be sent here; the seal comes after them. */
  unsent: (runId: string) => boolean;
  /** Ends whose seal the log has not taken yet, kept here; a worker that goes meanwhile leaves them to its peers. */
  unsealed?: Set<string>;
  logger: Logger;
  /** Called after the commit, before the seal: wakes local waiters and the coordinator. */
  onEnded: (run: Run) => void;
}

/** Who finalizes: the owner, with the ids it has given out in its epoch; or nobody owns the run, which still waits. */
export type Finalizer =
  | { owner: true; epoch: number; given: number }
  | { owner: false; epoch: number; status: 'queued' | 'prepared' };

export type Finalized =
  | { applied: true; run: Run }
  /** Lost: the run changed hands or had ended; nothing was written. `survivor` is the row as it is, null when deleted. */
  | { applied: false; survivor: Run | null };

// Lock order: thread before run, which is the order after `of`. What is returned is the run as it is once both are held.
const LOCK = `
  select r.cancel_requested_at
  from threads t
  join runs r on r.thread_id = t.id
  where r.id = $1::uuid
    -- guard: still in the hands of the finalizer
    and r.epoch = $2 and r.status = $3
  for no key update of t, r`;
const END_FACTS = `
  status = $4, error = $5::json, reason = $6, usage = $7::json, interrupts = $8::json,
  log_end = case when kind = 'edit' then null else $9::bigint end, epoch = $10, ended_at = clock_timestamp()`;
const END = `
  update runs set ${END_FACTS}
  where id = $1::uuid
    -- guard: still in the hands of the finalizer
    and epoch = $2 and status = $3
  returning ${runColumns('runs')}`;
// The whole end in one trip, for a run with nothing beside it. The lock order is that of LOCK.
const END_AT_ONCE = `
  with held as materialized (
    select r.id
    from threads t
    join runs r on r.thread_id = t.id
    where r.id = $1::uuid
      -- guard: still in the hands of the finalizer
      and r.epoch = $2 and r.status = $3
      -- guard: no cancel request to be heeded, no effect to be queued, no answer to be taken back
      and r.cancel_requested_at is null and r.webhook is null and (r.command is null or $11::boolean)
    for no key update of t, r),
  run as (
    update runs set ${END_FACTS} from held where runs.id = held.id
    returning ${runColumns('runs')}),${settleParts(12)}
  select * from run`;

/**
 * queued | prepared | running -> terminal, exactly once.
 * In: `given` = how many ids the owner has given out, all of them flushed or given up; held events come after them.
 * Guard: `id`, `epoch` and the status it is left from. Lost race: nothing is written, the survivor is returned.
 * A cancel request on the row wins over any other outcome. A lost answer to COMMIT is settled by reading the row.
 * After a crash before COMMIT: the run is still live. After COMMIT, before the seal: the row says where the seal
 * belongs; readers end from the row, and the recovery loop appends it.
 * @throws what Postgres throws when the end could not be stored
 */
export async function finalize(deps: FinalizeDeps, runId: string, by: Finalizer, outcome: Outcome): Promise<Finalized> {
  const result = await storeEnd(deps.pool, runId, by, outcome);
  if (!result.applied) return result;
  const { run } = result;
  deps.logger.info(
    { runId, threadId: run.thread_id, epoch: run.epoch, status: run.status, code: run.error?.code },
    'run finalized',
  );
  deps.onEnded(run);
  await seal(deps, run, run.status === outcome.status ? outcome.held : []);
  return result;
}

async function storeEnd(pool: Pool, runId: string, by: Finalizer, outcome: Outcome): Promise<Finalized> {
  const result = await tryToStore(pool, runId, by, outcome);
  if (result.applied || result.survivor === null || !by.owner) return result;
  // Only the owner ends a run in the owner's epoch: an earlier try was committed, and Postgres was away when that was asked.
  const { survivor } = result;
  return isTerminal(survivor.status) && survivor.epoch === by.epoch ? { applied: true, run: survivor } : result;
}

async function tryToStore(pool: Pool, runId: string, by: Finalizer, outcome: Outcome): Promise<Finalized> {
  try {
    return await storeOnce(pool, runId, by, outcome);
  } catch (error) {
    if (!(error instanceof CommitUnknown)) throw error;
    const run = await findEndedRun(pool, runId);
    const ours = run !== null && isTerminal(run.status) && run.epoch === endOf(by).epoch;
    if (ours) return { applied: true, run };
    // Not committed after all: the guard still decides, so trying once more is safe.
    return storeOnce(pool, runId, by, outcome);
  }
}

async function storeOnce(pool: Pool, runId: string, by: Finalizer, outcome: Outcome): Promise<Finalized> {
  const atOnce = await storeAtOnce(pool, runId, by, outcome);
  return atOnce ?? inTransaction(pool, (tx) => store(tx, runId, by, outcome));
}

function endOf(by: Finalizer): { epoch: number; at: number } {
  return by.owner ? { epoch: by.epoch, at: by.given } : { epoch: by.epoch + 1, at: 0 };
}

function endValues(runId: string, by: Finalizer, final: Outcome): unknown[] {
  const { epoch, at } = endOf(by);
  return [
    runId,
    by.epoch,
    by.owner ? 'running' : by.status,
    final.status,
    jsonOrNull(final.error),
    final.reason,
    jsonOrNull(final.usage),
    JSON.stringify(final.interrupts),
    cursorOf(epoch, at + final.held.length),
    epoch,
  ];
}

function settlementOf(final: Outcome, taken: boolean): Settlement {
  return {
    // An interrupted turn goes on: its answer comes with the run that answers.
    answer:
      final.answer === null || final.status === 'interrupted'
        ? null
        : { ...final.answer, partial: final.status !== 'succeeded' },
    interrupts: final.status === 'interrupted' ? final.interrupts : [],
    taken,
  };
}

/** Null when the end needs more than one statement, or is lost: the transaction finds out which. */
async function storeAtOnce(pool: Pool, runId: string, by: Finalizer, outcome: Outcome): Promise<Finalized | null> {
  if (!by.owner || outcome.status === 'cancelled') return null;
  const taken = hasTakenAnswers(outcome);
  const values = [...endValues(runId, by, outcome), taken, ...settleValues(settlementOf(outcome, taken))];
  const { rows } = await inOneStatement(() => pool.query<RunRow>({ name: 'end_at_once', text: END_AT_ONCE, values }));
  return rows[0] === undefined ? null : { applied: true, run: toRun(rows[0]) };
}

async function store(tx: Tx, runId: string, by: Finalizer, outcome: Outcome): Promise<Finalized> {
  const { rows } = await tx.query<Pick<RunRow, 'cancel_requested_at'>>({
    name: 'end_lock',
    text: LOCK,
    values: [runId, by.epoch, by.owner ? 'running' : by.status],
  });
  const [row] = rows;
  if (row === undefined) return { applied: false, survivor: await findEndedRun(tx, runId) };
  const final = row.cancel_requested_at === null ? outcome : cancelled(outcome);
  const ended = await tx.query<RunRow>({ name: 'end_store', text: END, values: endValues(runId, by, final) });
  const [endedRow] = ended.rows;
  if (endedRow === undefined) throw new Error(`run ${runId} slipped away under its lock`);
  const run = toRun(endedRow);
  if (row.cancel_requested_at !== null && run.cancel_action === 'rollback') {
    await settleTurn(tx, run, { answer: null, interrupts: [], taken: false });
    await rollBack(tx, endedRow);
    return { applied: true, run };
  }
  await settleTurn(tx, run, settlementOf(final, await takesAnswers(tx, run, by, final)));
  if (run.webhook !== null) await queueWebhook(tx, run, run.webhook, final.values ?? null);
  return { applied: true, run };
}

function queueWebhook(tx: Tx, run: Run, url: string, values: Json): Promise<void> {
  const payload = webhookPayload(run, values);
  return enqueue(tx, webhookEffect({ owner: run.owner, runId: run.id, url, payload }));
}

/**
 * Whether the graph got on with what the run brought. If not, the answers it brought are taken out of the checkpoints, so
 * that whoever answers anew is not overruled by them.
 */
async function takesAnswers(tx: Tx, run: Run, by: Finalizer, final: Outcome): Promise<boolean> {
  if (hasTakenAnswers(final)) return true;
  if (run.command === null) return false;
  // Whoever ends a run that nobody owns knows nothing of what its former owners left.
  if (!by.owner && (await progressOf(tx, run)).own) return true;
  await forgetAnswersOf(tx, run.lineage_id, run.id);
  return false;
}

function hasTakenAnswers(final: Outcome): boolean {
  return final.status === 'succeeded' || final.status === 'interrupted' || final.leftCheckpoint;
}

/** A person asked the run to stop before its end was stored: what it has is kept as partial, nothing is asked any more. */
function cancelled(outcome: Outcome): Outcome {
  return { ...outcome, status: 'cancelled', error: null, interrupts: [], held: [] };
}

function jsonOrNull(value: unknown): string | null {
  return value === null ? null : JSON.stringify(value);
}

const SEAL_RETRY_MS = [50, 250, 1_000, 5_000];
const LAST_SEAL_RETRY_MS = 15_000;

/** Appends held events and the seal. While the log is away the end stands in Postgres, and readers end from the row. */
async function seal(deps: FinalizeDeps, run: Run, held: RunEvent[]): Promise<void> {
  if (run.log_end === null) return;
  const entries = endEntries(run.log_end, run, held);
  const request = { log: deps.log, hub: deps.hub, runId: run.id, entries, ttlMs: deps.streamTtlMs };
  try {
    await appendAfterAll(deps, request);
  } catch (error) {
    if (!(error instanceof LogUnavailable)) throw error;
    deps.logger.warn({ runId: run.id, err: error }, 'seal not appended, trying again');
    // The end is committed: the viewers of this process need not wait for the log to come back.
    deps.hub.deliver(run.id, entries);
    deps.unsealed?.add(run.id);
    retrySeal(deps, request, 0);
  }
}

/** @throws LogUnavailable also while events of the run wait to be sent: the log takes none of them after the end */
async function appendAfterAll(deps: FinalizeDeps, request: Parameters<typeof appendEnd>[0]): Promise<void> {
  if (deps.unsent(request.runId)) throw new LogUnavailable('events of the run have not been sent yet');
  await appendEnd(request);
}

function endEntries(logEnd: Cursor, run: RunEnd, held: RunEvent[]): LogEntry[] {
  const first = logEnd - held.length;
  const events: RunEvent[] = [...held, sealOf(run)];
  return events.map((event, index) => ({ cursor: first + index, payload: JSON.stringify(event) }));
}

/** In the background, for as long as the log would be kept: after that nobody looks for it any more. */
function retrySeal(deps: FinalizeDeps, request: Parameters<typeof appendEnd>[0], attempt: number, waitedMs = 0): void {
  const delayMs = SEAL_RETRY_MS[attempt] ?? LAST_SEAL_RETRY_MS;
  if (waitedMs > deps.streamTtlMs) {
    deps.unsealed?.delete(request.runId);
    deps.logger.error({ runId: request.runId }, 'seal given up; readers end from the row');
    return;
  }
  setTimeout(() => {
    appendAfterAll(deps, request).then(
      () => deps.unsealed?.delete(request.runId),
      (error: unknown) => {
        deps.logger.warn({ runId: request.runId, err: error }, 'seal not appended, trying again');
        retrySeal(deps, request, attempt + 1, waitedMs + delayMs);
      },
    );
  }, delayMs).unref();
}

/**
 * Appends the seal of a run that ended, when its owner died between the commit and the seal, and lets the log expire. What
 * it held is gone: a reader finds the hole before the seal and resyncs. For the recovery loop, when the owner is dead.
 * @throws LogUnavailable
 */
export async function sealIfMissing(deps: FinalizeDeps, run: RunEnd): Promise<void> {
  if (run.log_end === null) return;
  const last = await deps.log.last(run.id);
  if (last !== null && last.cursor >= run.log_end) {
    // Its owner may have died between the seal and this, and the log would stay for ever.
    await deps.log.expireAfter(run.id, deps.streamTtlMs);
    return;
  }
  const entries = endEntries(run.log_end, run, []);
  await appendEnd({ log: deps.log, hub: deps.hub, runId: run.id, entries, ttlMs: deps.streamTtlMs });
  deps.logger.warn({ runId: run.id }, 'missing seal appended');
}
