/** The one door to a run's life. Dialects see this, run.ts, and the refusals in src/errors.ts; nothing else of the room. */
import type { Logger } from 'pino';
import { RunledgerError } from '#src/errors.ts';
import type { Cursor } from '#src/events/cursor.ts';
import type { EventLog } from '#src/events/log.ts';
import { deleteCheckpoints } from '#src/graphs/checkpoint-rows.ts';
import type { Pool, Tx } from '#src/postgres/pool.ts';
import { inTransaction } from '#src/postgres/transaction.ts';
import { deleteThread, lockForDeletion } from '#src/threads/queries.ts';
import type { Admission, AdmitDeps } from './admission.ts';
import { admitMessage } from './admit.ts';
import { admitAnswer } from './answer.ts';
import { type CancelDeps, cancel } from './cancel.ts';
import { deleteRun } from './delete-run.ts';
import { assertReplayable, type FollowDeps, follow } from './follow.ts';
import { createThreadWatch, followThread, type ThreadFollowed, type ThreadFrom } from './follow-thread.ts';
import { listRuns, liveRunsOf, type RunFilter } from './list.ts';
import { findRunOfThread, getRun, liveRuns } from './queries.ts';
import { admitRerun } from './rerun.ts';
import type {
  Admitted,
  AnswerRequest,
  CancelResult,
  Followed,
  MessageRequest,
  RerunRequest,
  Run,
  RunStatus,
  StartRequest,
  WebhookDelivery,
} from './run.ts';
import { isTerminal } from './run.ts';
import { startPrepared } from './start.ts';
import { startRun, startRunWith } from './start-run.ts';
import { supersede } from './supersede.ts';
import { type Endings, waitUntilEnded } from './wait.ts';
import { listDeliveries, requeueDelivery } from './webhooks.ts';

export type { ThreadFrom } from './follow-thread.ts';
export type { CancelResult, Followed } from './run.ts';
export { withoutUserFacts } from './user-facts.ts';

export interface RunService {
  /**
   * Admits a message as a new turn and its run, in one transaction, and wakes a worker.
   * @throws THREAD_NOT_FOUND, GRAPH_NOT_FOUND, RUN_IN_PROGRESS, TURN_WAITING_APPROVAL, IDEMPOTENCY_KEY_REUSED, INVALID_CHARACTER
   */
  send(request: MessageRequest): Promise<Admitted>;

  /**
   * Admits a run that answers open interrupts, in the turn that asked.
   * @throws THREAD_NOT_FOUND, INTERRUPT_NOT_FOUND, INTERRUPT_ANSWERED, RUN_IN_PROGRESS, IDEMPOTENCY_KEY_REUSED
   */
  answer(request: AnswerRequest): Promise<Admitted>;

  /**
   * Admits the latest turn again, after it failed or was cancelled.
   * @throws THREAD_NOT_FOUND, RUN_IN_PROGRESS, NOT_RERUNNABLE, IDEMPOTENCY_KEY_REUSED
   */
  rerun(request: RerunRequest): Promise<Admitted>;

  /**
   * Admits a run of a graph with any input or command, for LangGraph clients.
   * @throws THREAD_NOT_FOUND, GRAPH_NOT_FOUND, RUN_IN_PROGRESS, INTERRUPT_AMBIGUOUS, INVALID_REQUEST
   */
  start(request: StartRequest): Promise<Run>;

  /**
   * The same in one transaction with `first`, which comes before it; after a conflict both are done again.
   * @returns null when `first` said no: then nothing is admitted
   */
  startWith(request: StartRequest, first: (tx: Tx) => Promise<boolean>): Promise<Run | null>;

  /** Newest first; empty for a thread that is not the owner's. */
  list(owner: string, threadId: string, filter: RunFilter): Promise<Run[]>;

  /**
   * Starts a run that was admitted as prepared, and wakes a worker.
   * @throws THREAD_NOT_FOUND, RUN_NOT_FOUND, NOT_PREPARED {run_id, status} also for the second start of a run
   */
  startPrepared(owner: string, threadId: string, runId: string): Promise<Run>;

  /** @throws RUN_NOT_FOUND (also when it is another owner's) */
  get(owner: string, runId: string): Promise<Run>;

  /** The thread's run with this id, or its latest when `runId` is undefined. @throws THREAD_NOT_FOUND, RUN_NOT_FOUND */
  find(owner: string, threadId: string, runId: string | undefined): Promise<Run>;

  /**
   * Asks the thread's live run (or the one named) to stop; durable and idempotent. With `wait` the answer comes when the
   * run is terminal (or `signal` aborts). With action `rollback` the run and what it wrote are then as if they had never
   * been: its row cannot be found any more, and `run` is as it was when it was asked to stop.
   * @throws THREAD_NOT_FOUND, RUN_NOT_FOUND
   */
  cancel(
    owner: string,
    threadId: string,
    options: {
      runId?: string | undefined;
      wait?: boolean;
      signal?: AbortSignal;
      action?: 'interrupt' | 'rollback' | undefined;
    },
  ): Promise<CancelResult>;

  /** Asks every live run that matches to stop; at most 1000. Returns how many. */
  cancelMany(
    owner: string,
    which: { threadId?: string | undefined; ids?: string[] | undefined; statuses: readonly RunStatus[] },
    action: 'interrupt' | 'rollback',
  ): Promise<number>;

  /**
   * Decides, before any header is sent, whether the run's stream can be followed from `after`.
   * @throws STREAM_EXPIRED (details: {status}) when the run is terminal and its log is gone
   */
  openStream(run: Run): Promise<void>;

  /**
   * Replays the run's log after the cursor, then follows it live, and ends after `run.sealed`. Ends early, without a
   * terminal event, only when `signal` aborts. Never throws for a lost log: it says `resync` and ends from the row.
   */
  follow(run: Run, after: Cursor, signal: AbortSignal): AsyncGenerator<Followed, void, void>;

  /**
   * The runs of a thread one after the other, and those that come later; ends when the thread is gone or `signal` aborts.
   * The caller has made sure that the thread is the owner's.
   */
  followThread(
    thread: { id: string; owner: string },
    from: ThreadFrom,
    signal: AbortSignal,
  ): AsyncGenerator<ThreadFollowed, void, void>;

  /** Resolves with the row once the run is terminal; rejects with the signal's reason when it aborts first. */
  wait(owner: string, runId: string, signal: AbortSignal): Promise<Run>;

  /**
   * To be called when the client closed the response that created or started the run. Cancels it when the run was
   * created with `on_disconnect: cancel`; otherwise does nothing. Never throws.
   */
  disconnected(run: Run): Promise<void>;

  /** Deliveries of the owner's webhooks, newest first. @throws INVALID_CURSOR */
  deliveries(
    owner: string,
    page: { status?: WebhookDelivery['status'] | undefined; limit: number; cursor?: string | undefined },
  ): Promise<{ deliveries: WebhookDelivery[]; next_cursor: string | null }>;

  /** Tries a delivery again that was given up; any other is left as it is. @throws DELIVERY_NOT_FOUND */
  requeueDelivery(owner: string, id: string): Promise<{ delivery: WebhookDelivery; requeued: boolean }>;

  /**
   * Deletes a run that has ended, with its checkpoints unless a later run was built on them.
   * @throws THREAD_NOT_FOUND, RUN_NOT_FOUND, RUN_IN_PROGRESS
   */
  deleteRun(owner: string, threadId: string, runId: string): Promise<void>;

  /** Deletes a thread. @throws THREAD_NOT_FOUND, RUN_IN_PROGRESS unless `force`, which first stops its runs. */
  deleteThread(owner: string, threadId: string, options: { force: boolean; signal?: AbortSignal }): Promise<void>;
}

export interface RunServiceDeps {
  pool: Pool;
  log: EventLog;
  admit: AdmitDeps;
  cancel: CancelDeps;
  follow: FollowDeps;
  endings: Endings;
  /** After a commit that made a run claimable: pokes the local coordinator or hints others. */
  wake: () => void;
  logger: Logger;
}

export function createRunService(deps: RunServiceDeps): RunService {
  const { pool, logger } = deps;
  const threads = createThreadWatch(pool);

  async function admitted(admission: Promise<Admission>): Promise<Admitted> {
    const { superseded, ...result } = await admission;
    if (!result.replayed && result.run.status === 'queued') deps.wake();
    await supersede(deps.cancel, superseded);
    return result;
  }

  async function cancelRun(
    owner: string,
    threadId: string,
    options: Parameters<RunService['cancel']>[2],
  ): Promise<CancelResult> {
    const target = await targetOf(pool, owner, threadId, options.runId);
    if (target === null) return { run: null, outcome: 'idle' };
    const run = isTerminal(target.status)
      ? target
      : await cancel(deps.cancel, target.id, options.action ?? 'interrupt');
    if (run === null) return { run: null, outcome: 'idle' };
    if (isTerminal(run.status)) return { run, outcome: isTerminal(target.status) ? 'idle' : 'stopped' };
    if (options.wait !== true) return { run, outcome: 'stopping' };
    const signal = options.signal ?? new AbortController().signal;
    return { run: await endOf(deps, run, signal), outcome: 'stopped' };
  }

  function forgetLog(runId: string): void {
    deps.log
      .remove(runId)
      .catch((error: unknown) => logger.warn({ err: error, runId }, 'log of a deleted run not removed; it expires'));
  }

  return {
    start: (request) => startRun(deps, request),
    startWith: (request, first) => startRunWith(deps, request, first),
    list: (owner, threadId, filter) => listRuns(pool, owner, threadId, filter),
    async cancelMany(owner, which, action) {
      const found = await liveRunsOf(pool, owner, which);
      for (const run of found) await cancel(deps.cancel, run.id, action);
      return found.length;
    },
    send: (request) => admitted(admitMessage(deps.admit, request)),
    answer: (request) => admitted(admitAnswer(deps.admit, request)),
    rerun: (request) => admitted(admitRerun(deps.admit, request)),
    async startPrepared(owner, threadId, runId) {
      const run = await startPrepared(pool, owner, threadId, runId);
      deps.wake();
      return run;
    },
    get: (owner, runId) => getRun(pool, owner, runId),
    find: (owner, threadId, runId) => findRunOfThread(pool, owner, threadId, runId),
    cancel: cancelRun,
    openStream: (run) => assertReplayable(deps.follow, run),
    follow: (run, after, signal) => follow(deps.follow, run, after, signal),
    followThread: (thread, from, signal) => followThread({ ...deps.follow, pool, threads }, thread, from, signal),
    wait: (owner, runId, signal) => waitUntilEnded(pool, deps.endings, owner, runId, signal),
    async disconnected(run) {
      if (run.on_disconnect !== 'cancel') return;
      try {
        await cancel(deps.cancel, run.id, 'interrupt');
      } catch (error) {
        logger.error({ err: error, runId: run.id }, 'run not cancelled after its client left');
      }
    },
    deliveries: (owner, page) => listDeliveries(pool, owner, page),
    requeueDelivery: (owner, id) => requeueDelivery(pool, owner, id),
    async deleteThread(owner, threadId, options) {
      await assertThread(pool, owner, threadId);
      const live = await liveRuns(pool, threadId);
      await supersede(
        deps.cancel,
        live.flatMap((run) => (run.status === 'prepared' ? [run.id] : [])),
      );
      if (options.force) await stopAll(deps, owner, threadId, options.signal);
      for (const runId of await removeThread(pool, owner, threadId)) forgetLog(runId);
    },
    async deleteRun(owner, threadId, runId) {
      await deleteRun(pool, owner, threadId, runId);
      forgetLog(runId);
    },
  };
}

/** The run named, or the thread's newest live one; null when nothing lives. */
async function targetOf(pool: Pool, owner: string, threadId: string, runId: string | undefined): Promise<Run | null> {
  if (runId !== undefined) return findRunOfThread(pool, owner, threadId, runId);
  await assertThread(pool, owner, threadId);
  return (await liveRuns(pool, threadId))[0] ?? null;
}

async function assertThread(pool: Pool, owner: string, threadId: string): Promise<void> {
  const { rows } = await pool.query('select 1 from threads where id = $1::uuid and owner = $2', [threadId, owner]);
  if (rows.length === 0) throw threadNotFound();
}

async function stopAll(
  deps: RunServiceDeps,
  owner: string,
  threadId: string,
  signal: AbortSignal | undefined,
): Promise<void> {
  await assertThread(deps.pool, owner, threadId);
  for (const live of await liveRuns(deps.pool, threadId)) {
    await cancel(deps.cancel, live.id, 'interrupt');
    await endOf(deps, live, signal ?? new AbortController().signal);
  }
}

/** The run once it has ended. One that is rolled back is not found any more: then it is as it was given. */
async function endOf(deps: RunServiceDeps, run: Run, signal: AbortSignal): Promise<Run> {
  try {
    return await waitUntilEnded(deps.pool, deps.endings, run.owner, run.id, signal);
  } catch (error) {
    if (error instanceof RunledgerError && error.code === 'RUN_NOT_FOUND') return run;
    throw error;
  }
}

/** Guard: the thread's row is locked and nothing lives on it; a run admitted meanwhile makes this a 409. */
function removeThread(pool: Pool, owner: string, threadId: string): Promise<string[]> {
  return inTransaction(pool, async (tx) => {
    const found = await lockForDeletion(tx, owner, threadId);
    if (found === null) throw threadNotFound();
    const [live] = await liveRuns(tx, threadId);
    if (live !== undefined) {
      throw new RunledgerError('RUN_IN_PROGRESS', 'A run of this thread is still in progress.', {
        details: { run_id: live.id, thread_id: threadId },
      });
    }
    await deleteCheckpoints(tx, found.lineageIds);
    await deleteThread(tx, threadId);
    return found.runIds;
  });
}

function threadNotFound(): RunledgerError {
  return new RunledgerError('THREAD_NOT_FOUND', 'There is no such thread.');
}
