/** The one door to a run's life. Dialects see this, run.ts, and the refusals in src/errors.ts; nothing else of the room. */
import type { Cursor } from '#src/events/cursor.ts';
import type { EventOf, RunEvent } from '#src/events/event.ts';
import type { Admitted, AnswerRequest, MessageRequest, Run } from './run.ts';

/** One thing a follower is told. Order is by cursor; a cursor is never repeated to one follower. */
export type Followed =
  | {
      kind: 'event';
      cursor: Cursor;
      event: RunEvent;
      /** The message.head that `event.m` names, for message.delta and message.chunk; null for every other event. */
      head: EventOf<'message.head'> | null;
      /** Identity of the stored entry, shared by all followers on this process: a key for caches of rendered frames. */
      entry: object;
    }
  /** What lies between the last cursor and the next event can no longer be replayed; the client must read the state again. */
  | { kind: 'resync' };

export interface CancelResult {
  /** The run that was asked to stop, as it is now; null when there was nothing to stop. */
  run: Run | null;
  /** stopping: the request is stored and the owner will see it; stopped: the run is terminal; idle: nothing was live. */
  outcome: 'stopping' | 'stopped' | 'idle';
}

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

  /** @throws RUN_NOT_FOUND (also when it is another owner's) */
  get(owner: string, runId: string): Promise<Run>;

  /** The thread's run with this id, or its latest when `runId` is undefined. @throws THREAD_NOT_FOUND, RUN_NOT_FOUND */
  find(owner: string, threadId: string, runId: string | undefined): Promise<Run>;

  /**
   * Asks the thread's live run (or the one named) to stop; durable and idempotent. With `wait` the answer comes when the
   * run is terminal (or `signal` aborts).
   * @throws THREAD_NOT_FOUND, RUN_NOT_FOUND
   */
  cancel(
    owner: string,
    threadId: string,
    options: { runId?: string | undefined; wait?: boolean; signal?: AbortSignal },
  ): Promise<CancelResult>;

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

  /** Resolves with the row once the run is terminal; rejects with the signal's reason when it aborts first. */
  wait(owner: string, runId: string, signal: AbortSignal): Promise<Run>;

  /**
   * To be called when the client closed the response that created or started the run. Cancels it when the run was
   * created with `on_disconnect: cancel`; otherwise does nothing. Never throws.
   */
  disconnected(run: Run): Promise<void>;

  /** Deletes a thread. @throws THREAD_NOT_FOUND, RUN_IN_PROGRESS unless `force`, which first stops its runs. */
  deleteThread(owner: string, threadId: string, options: { force: boolean; signal?: AbortSignal }): Promise<void>;
}
