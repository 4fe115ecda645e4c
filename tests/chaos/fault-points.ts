/**
 * The named fault points, and how each is recognised from outside: the product has no hooks for tests. Every durable
 * effect is an I/O, so a point is a pg statement, a Redis command or an HTTP request. `before`: it has not left the
 * process; `after`: the other side has applied it and answered, and the program has not seen the answer.
 */

export type Recognised =
  /** A statement by its prepared name. */
  | { via: 'postgres'; statement: string }
  /** A statement by a piece of its text. */
  | { via: 'postgres'; text: string }
  /** The COMMIT of a transaction in which that statement was sent. */
  | { via: 'postgres'; commitOf: string }
  /** An XADD whose payload is an event of this type; null: any. */
  | { via: 'redis'; event: string | null }
  | { via: 'http'; request: 'webhook' | 'model' };

export const FAULT_POINTS = {
  /** A message that opens a turn on a new thread, and the COMMIT of the transaction that does so with a request key. */
  admit: { via: 'postgres', statement: 'admit_thread' },
  admit_commit: { via: 'postgres', commitOf: 'admit_thread' },
  /** `after` counts only claims that got a run; `before` cannot know. */
  claim: { via: 'postgres', statement: 'claim' },
  renew: { via: 'postgres', statement: 'renew' },
  dead_workers: { via: 'postgres', statement: 'dead_workers' },
  put_back: { via: 'postgres', text: "set status = 'queued', epoch = r.epoch + 1" },
  checkpoint_put: { via: 'postgres', statement: 'checkpoint_put' },
  writes_put: { via: 'postgres', statement: 'writes_put' },
  /** The end of a run without a webhook: one statement. */
  end_at_once: { via: 'postgres', statement: 'end_at_once' },
  /** Finalize's transaction, of a run with a webhook or a cancel request: the locks are taken, the end is written, the commit. */
  end_lock: { via: 'postgres', statement: 'end_lock' },
  end_store: { via: 'postgres', statement: 'end_store' },
  end_commit: { via: 'postgres', commitOf: 'end_store' },
  /** `after` counts only looks that took something. */
  outbox_take: { via: 'postgres', statement: 'outbox_take' },
  outbox_settle: { via: 'postgres', statement: 'outbox_settle' },
  append: { via: 'redis', event: null },
  started: { via: 'redis', event: 'run.started' },
  token: { via: 'redis', event: 'message.delta' },
  taken_over: { via: 'redis', event: 'run.taken_over' },
  requeued: { via: 'redis', event: 'run.requeued' },
  seal: { via: 'redis', event: 'run.sealed' },
  webhook: { via: 'http', request: 'webhook' },
  model: { via: 'http', request: 'model' },
} as const satisfies Record<string, Recognised>;

export type FaultPoint = keyof typeof FAULT_POINTS;

export type FaultAction =
  /** SIGKILL to itself. */
  | { action: 'kill' }
  /** SIGSTOP to itself; whoever armed it sends SIGCONT. */
  | { action: 'stop' }
  /** The connection is destroyed and the answer never seen. `after` only. */
  | { action: 'lose-reply' }
  | { action: 'delay'; ms: number }
  /** Until the faults are armed anew (an empty list lets it go on). `before` only. */
  | { action: 'hold' }
  /** The event loop is busy. */
  | { action: 'block'; ms: number }
  /** The process' wall clock is this far off from now on. */
  | { action: 'skew'; ms: number }
  /** No fault: the garbage is collected, so that what is left of the heap can be measured. */
  | { action: 'collect' };

export type Fault = FaultAction & {
  /** `now`: as soon as it is armed. */
  point: FaultPoint | 'now';
  when?: 'before' | 'after';
  /** Only from the nth hit on (from 1, the default), counted since it was armed. */
  nth?: number;
  /** At every later hit too; else once. */
  every?: boolean;
};

/** What the preload writes to stderr when a point was reached; a scenario waits for it. */
export function reachedLine(fault: Pick<Fault, 'point' | 'when' | 'action'>): string {
  return `chaos: reached ${fault.point} ${fault.when ?? 'before'} ${fault.action}`;
}
