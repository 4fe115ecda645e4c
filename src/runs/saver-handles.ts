/** The saver handles of one execution: one per attempt, so that what an earlier attempt still does cannot write any more. */
import type { RunSaver } from '#src/graphs/checkpoints.ts';

export interface SaverHandles {
  readonly current: RunSaver;
  /** True once a checkpoint was put through any of them. */
  readonly wrote: boolean;
  /** Closes the current handle, waiting for its calls in flight, and opens the next. */
  renew(): Promise<void>;
  /** Closes the current handle. Can be called again. */
  close(): Promise<void>;
}

export function createSaverHandles(open: () => RunSaver): SaverHandles {
  let current = open();
  let wroteBefore = false;
  return {
    get current() {
      return current;
    },
    get wrote() {
      return wroteBefore || current.wrote;
    },
    async renew() {
      await current.close();
      wroteBefore ||= current.wrote;
      current = open();
    },
    close: () => current.close(),
  };
}
