import type { Pool } from '#src/postgres/pool.ts';
import { getRun } from './queries.ts';
import { isTerminal, type Run } from './run.ts';

/** Another process may end the run without a word to this one (its log may be away): the row is read this often. */
const POLL_MS = 250;

/** Runs that end on this process tell those who wait for them at once. */
export interface Endings {
  /** Called by finalize after the commit. */
  ended(runId: string): void;
  /** Resolves when the run ends here, or after `timeoutMs`, or when the signal aborts. */
  next(runId: string, timeoutMs: number, signal: AbortSignal): Promise<void>;
}

export function createEndings(): Endings {
  const waiting = new Map<string, Set<() => void>>();
  return {
    ended(runId) {
      for (const wake of waiting.get(runId) ?? []) wake();
    },
    next(runId, timeoutMs, signal) {
      return new Promise((resolve) => {
        const wakers = waiting.get(runId) ?? new Set();
        const wake = (): void => {
          clearTimeout(timer);
          signal.removeEventListener('abort', wake);
          wakers.delete(wake);
          if (wakers.size === 0) waiting.delete(runId);
          resolve();
        };
        const timer = setTimeout(wake, timeoutMs);
        signal.addEventListener('abort', wake, { once: true });
        wakers.add(wake);
        waiting.set(runId, wakers);
        if (signal.aborted) wake();
      });
    },
  };
}

/**
 * Resolves with the run's row once it is terminal, on whichever worker it ended.
 * @throws RUN_NOT_FOUND (also when it is deleted meanwhile); the signal's reason when it aborts first
 */
export async function waitUntilEnded(
  pool: Pool,
  endings: Endings,
  owner: string,
  runId: string,
  signal: AbortSignal,
): Promise<Run> {
  for (;;) {
    const ended = endings.next(runId, POLL_MS, signal);
    const run = await getRun(pool, owner, runId);
    if (isTerminal(run.status)) return run;
    await ended;
    signal.throwIfAborted();
  }
}
