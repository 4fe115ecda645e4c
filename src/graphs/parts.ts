/** Reading what a graph yields, part by part, to its end or until it is stopped. */
import type { DrivenGraph } from './graph.ts';

/**
 * Runs the graph and gives every part to `onPart`, waiting for the promise it may return.
 * Rejects with what the graph or `onPart` threw; or at once with the signal's reason when that aborts, whatever the graph
 * is doing. What the graph still does after a rejection sees an aborted signal.
 *
 * It reads the iterator below `graph.stream`, which would put two streams around it and configure callbacks anew for
 * every part: 30 of LangGraph's 100 µs a token, more than the whole way into the event log.
 * @param options of graph.stream, `recursionLimit` among them; without `signal`
 */
export async function eachPart(
  graph: Pick<DrivenGraph, '_streamIterator'>,
  input: unknown,
  options: object,
  signal: AbortSignal,
  onPart: (part: unknown) => Promise<void> | undefined,
): Promise<void> {
  const unread = new AbortController();
  const parts = graph._streamIterator(input, { ...options, signal: AbortSignal.any([signal, unread.signal]) });
  return readAll(parts, { signal, unread }, onPart);
}

/**
 * The same with LangChain's events around the parts: every event that is no part of the graph's own stream is given as a
 * part of mode `events`. Slower, so only for runs that asked for it.
 * @param options as for `eachPart`, with `runId`
 */
export async function eachEvent(
  graph: Pick<DrivenGraph, 'streamEvents'>,
  input: unknown,
  options: { runId: string },
  signal: AbortSignal,
  onPart: (part: unknown) => Promise<void> | undefined,
): Promise<void> {
  const unread = new AbortController();
  const events = graph.streamEvents(input, {
    ...options,
    version: 'v2',
    signal: AbortSignal.any([signal, unread.signal]),
  });
  return readAll(events[Symbol.asyncIterator](), { signal, unread }, (event) => {
    const { event: name, run_id, tags, data } = event as StreamEvent;
    if (tags?.includes('langsmith:hidden')) return undefined;
    if (name === 'on_chain_stream' && run_id === options.runId) return onPart(data?.chunk);
    return onPart([[], 'events', event]);
  });
}

interface StreamEvent {
  event: string;
  run_id: string;
  tags?: string[];
  data?: { chunk?: unknown };
}

async function readAll(
  parts: AsyncIterator<unknown>,
  { signal, unread }: { signal: AbortSignal; unread: AbortController },
  onPart: (part: unknown) => Promise<void> | undefined,
): Promise<void> {
  const stop = createStop(signal);
  try {
    for (;;) {
      const { done, value } = await stop.or(parts.next());
      if (done === true) return;
      const pause = onPart(value);
      if (pause !== undefined) await stop.or(pause);
    }
  } catch (error) {
    unread.abort(error);
    throw error;
  } finally {
    stop.release();
  }
}

/** Waits for one promise at a time, or for the signal; one listener for all of them. */
function createStop(signal: AbortSignal) {
  let reject: (reason: unknown) => void = () => undefined;
  const onAbort = (): void => reject(signal.reason);
  signal.addEventListener('abort', onAbort);
  return {
    or<T>(promise: Promise<T>): Promise<T> {
      return new Promise<T>((resolve, rejectThis) => {
        reject = rejectThis;
        promise.then(resolve, rejectThis);
        if (signal.aborted) rejectThis(signal.reason);
      });
    },
    release: () => signal.removeEventListener('abort', onAbort),
  };
}
