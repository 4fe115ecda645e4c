/**
 * Sees a blocked event loop from a thread of its own. The main thread stamps a shared number; the watchdog says in the log
 * when the stamp is old, which the blocked thread cannot. Nothing is decided here: a worker that cannot renew is taken
 * over by its peers, and is fenced when it wakes.
 */
import { Worker } from 'node:worker_threads';
import type { Logger } from 'pino';

const STAMP_EVERY_MS = 250;

export interface Watchdog {
  /** The longest time the loop has been blocked so far, in ms. */
  longestStallMs(): number;
  stop(): Promise<void>;
}

/** @param warnAfterMs a loop blocked for longer is reported, once per stall */
export function startWatchdog(options: { warnAfterMs: number; logger: Logger }): Watchdog {
  const shared = new SharedArrayBuffer(2 * Float64Array.BYTES_PER_ELEMENT);
  // [last stamp, longest stall]; only the main thread writes the first, only the watchdog the second
  const cells = new Float64Array(shared);
  const stamp = (): void => {
    cells[0] = performance.timeOrigin + performance.now();
  };
  stamp();
  const timer = setInterval(stamp, STAMP_EVERY_MS).unref();
  const thread = new Worker(new URL('./watchdog-thread.ts', import.meta.url), {
    workerData: { shared, warnAfterMs: options.warnAfterMs },
  });
  thread.unref();
  thread.on('error', (error) => options.logger.error({ err: error }, 'watchdog ended'));
  return {
    longestStallMs: () => cells[1] ?? 0,
    async stop() {
      clearInterval(timer);
      await thread.terminate();
    },
  };
}
