/**
 * Reads a source ahead, within a bound, and hands out everything that is ready as one piece: one write per turn of the
 * event loop instead of one per event.
 */

/** A piece is closed at this many bytes or items, and the source is not read further until it is taken. */
const MAX_BATCH_BYTES = 64 * 1024;
const MAX_BATCH_ITEMS = 500;

export interface Batch {
  /** What is ready, never empty; null when nothing is (time passed, `wake` was called, or the source is over). */
  bytes: Buffer | null;
  /** The source has ended and everything it gave has been handed out. */
  over: boolean;
  /** The bound was met: more is probably ready, and others should have their turn first. */
  full: boolean;
}

export interface Batcher {
  /** Waits for something to hand out, for `wake`, or for the idle time. @throws what the source or `encode` threw */
  next(): Promise<Batch>;
  wake(): void;
  /** Ends the source (its `return` is awaited). The source must stop waiting by itself: by the signal it was given. */
  close(): Promise<void>;
}

/** @param deps.idleMs after so long without anything to hand out, `next` answers with nothing */
export function createBatcher<T>(deps: {
  source: AsyncIterator<T>;
  encode: (item: T) => Buffer;
  idleMs: number;
}): Batcher {
  const { source, encode } = deps;
  let parts: Buffer[] = [];
  let bytes = 0;
  let items = 0;
  let reading = false;
  let over = false;
  let failure: { error: unknown } | null = null;
  let waiting: (() => void) | null = null;
  let scheduled = false;
  const idle = setTimeout(wake, deps.idleMs);

  function wake(): void {
    scheduled = false;
    const resume = waiting;
    waiting = null;
    resume?.();
  }

  // nextTick runs when the microtasks are drained, so items that are ready one after the other arrive together.
  function wakeSoon(): void {
    if (scheduled || waiting === null) return;
    scheduled = true;
    process.nextTick(wake);
  }

  function isFull(): boolean {
    return bytes >= MAX_BATCH_BYTES || items >= MAX_BATCH_ITEMS;
  }

  function read(): void {
    if (reading || over || isFull()) return;
    reading = true;
    source.next().then(onItem, fail);
  }

  function onItem(result: IteratorResult<T>): void {
    reading = false;
    if (result.done === true) {
      over = true;
      wakeSoon();
      return;
    }
    try {
      const part = encode(result.value);
      items += 1;
      bytes += part.length;
      if (part.length > 0) parts.push(part);
    } catch (error) {
      fail(error);
      return;
    }
    if (parts.length > 0 || isFull()) wakeSoon();
    read();
  }

  function fail(error: unknown): void {
    reading = false;
    over = true;
    failure = { error };
    wakeSoon();
  }

  function take(): Batch {
    const [only] = parts;
    const joined = parts.length > 1 ? Buffer.concat(parts, bytes) : (only ?? null);
    const full = isFull();
    parts = [];
    bytes = 0;
    items = 0;
    if (joined === null && failure !== null) throw failure.error;
    return { bytes: joined, over: over && failure === null, full };
  }

  return {
    async next() {
      read();
      if (parts.length === 0 && !over && !isFull()) {
        idle.refresh();
        await new Promise<void>((resolve) => {
          waiting = resolve;
        });
      }
      return take();
    },
    wake,
    async close() {
      clearTimeout(idle);
      over = true;
      await source.return?.();
    },
  };
}
