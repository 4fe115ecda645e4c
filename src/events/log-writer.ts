/** Writes the events of this process' runs to the log. The graph loop never waits for it, except for room. */
import type { Logger } from 'pino';
import { encodeEvent, MAX_PAYLOAD_BYTES } from './codec.ts';
import type { Cursor } from './cursor.ts';
import { createFlusher, type Flusher } from './flusher.ts';
import type { OpenRun } from './flusher-state.ts';
import type { EventLog, LogEntry } from './log.ts';
import { createRunQueue, isSettled, lastCursor, merge, push } from './run-queue.ts';
import type { LiveEvent, LogWriter, RunWriter } from './writer.ts';

interface WriterLimits {
  /** Entries of one run, and bytes of their payloads, beyond which `log.torn` is the last entry. */
  maxEvents: number;
  maxBytes: number;
  /** What all runs together may have written and the log not acknowledged, in bytes. */
  unacknowledgedBytes: number;
}

const DETACH_AFTER_MS = 500;

/**
 * @param deps.deliver shows entries to the viewers of this process (Hub.deliver); must not throw
 * @param deps.detachAfterMs without an answer for this long, runs go on without the log: local viewers are served at once
 */
export function createLogWriter(deps: {
  log: EventLog;
  deliver: (runId: string, entries: LogEntry[]) => void;
  limits: WriterLimits;
  logger: Logger;
  detachAfterMs?: number;
}): LogWriter {
  const { log, deliver, limits, logger } = deps;
  const flusher = createFlusher({
    log,
    deliver,
    logger,
    detachAfterMs: deps.detachAfterMs ?? DETACH_AFTER_MS,
    unacknowledgedBytes: limits.unacknowledgedBytes,
  });
  return {
    open(runId, epoch, onFenced) {
      const queue = createRunQueue(runId, epoch, flusher.shared);
      const run: OpenRun = { queue, onFenced, room: null, flushes: [], left: false };
      flusher.add(run);
      return runWriter(flusher, run, limits);
    },
    unsent: flusher.unsent,
    close: () => flusher.close(),
  };
}

function runWriter(flusher: Flusher, run: OpenRun, limits: WriterLimits): RunWriter {
  const { queue } = run;
  return {
    write: (event) => write(flusher, run, limits, event),
    room: () => room(flusher, run),
    count({ events, bytes, torn }) {
      queue.formerEvents = torn ? limits.maxEvents : events;
      queue.writtenBytes += bytes;
    },
    flush: (timeoutMs) => flush(flusher, run, timeoutMs),
    get given() {
      return queue.given;
    },
    get fenced() {
      return queue.fenced;
    },
    close: () => flusher.remove(run),
    leave: () => flusher.leave(run),
  };
}

function write(flusher: Flusher, run: OpenRun, limits: WriterLimits, event: LiveEvent): Cursor {
  const { queue } = run;
  if (queue.stopped) return lastCursor(queue);
  const delta = event.type === 'message.delta' ? event : null;
  // Made now, not when it is sent: the graph may change the object it handed out.
  const payload = delta === null ? encodeEvent(event) : '';
  const bytes = delta === null ? Buffer.byteLength(payload) : delta.text.length;
  if (bytes > MAX_PAYLOAD_BYTES || queue.writtenBytes + bytes > limits.maxBytes) {
    return tear(flusher, run, 'max_bytes');
  }
  const nowMs = performance.now();
  if (delta === null || !merge(queue, delta, nowMs)) {
    if (queue.formerEvents + queue.given >= limits.maxEvents) return tear(flusher, run, 'max_events');
    push(queue, delta === null ? { payload } : { delta }, nowMs);
  }
  flusher.wake(run, delta === null);
  return lastCursor(queue);
}

function tear(flusher: Flusher, run: OpenRun, reason: 'max_events' | 'max_bytes'): Cursor {
  push(run.queue, { payload: encodeEvent({ type: 'log.torn', reason }) }, 0);
  run.queue.stopped = true;
  flusher.wake(run, true);
  return lastCursor(run.queue);
}

function room(flusher: Flusher, run: OpenRun): Promise<void> | undefined {
  if (flusher.hasRoom(run)) return undefined;
  // While the log is away the ring gives up its oldest instead; the event loop must turn all the same.
  if (flusher.away) return new Promise((resolve) => setImmediate(resolve));
  run.room ??= Promise.withResolvers();
  return run.room.promise;
}

function flush(flusher: Flusher, run: OpenRun, timeoutMs: number): Promise<void> {
  const upTo = lastCursor(run.queue);
  if (isSettled(run.queue, upTo)) return Promise.resolve();
  flusher.wake(run, true);
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, timeoutMs);
    run.flushes.push({
      upTo,
      resolve: () => {
        clearTimeout(timer);
        resolve();
      },
    });
  });
}
