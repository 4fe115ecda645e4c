/** A client for event streams that keeps everything it received, with times. */
import { createParser } from 'eventsource-parser';
import { until } from './until.ts';

export interface Frame {
  /** The `event:` field, `message` when there was none. */
  event: string;
  /** The `id:` field of this frame itself; undefined when it had none. */
  id: string | undefined;
  /** The `data:` field as it came. */
  data: string;
  /** `performance.now()` when it was parsed, ms. */
  atMs: number;
}

export type Ending = { how: 'ended' | 'aborted' } | { how: 'broken'; error: Error };

export interface SseStream extends AsyncIterable<Frame> {
  readonly status: number;
  readonly headers: Headers;
  /** All frames so far, oldest first. */
  readonly frames: readonly Frame[];
  /** All comments so far (heartbeats), without the colon. */
  readonly comments: readonly string[];
  /** The body as it came, so far. Of an answer that is no event stream (an error): all of it once `closed`. */
  raw(): string;
  /** The first frame, seen already or to come, that fits. @throws after `timeoutMs` (10 s), or when the stream ends first. */
  waitFor(fits: (frame: Frame) => boolean, options?: { timeoutMs?: number; message?: string }): Promise<Frame>;
  /** Resolves when no more can come: the server ended it, we closed it, or the connection broke. */
  readonly closed: Promise<Ending>;
  /** Cuts the connection, as a closed browser tab does. */
  close(): void;
}

/**
 * Sends the request and answers as soon as the headers are there.
 * @param init.body a string is sent as it is, anything else as JSON
 * @param init.headers `accept: text/event-stream` is added
 */
export async function openSse(
  url: string,
  init: { method?: string; headers?: Record<string, string>; body?: unknown } = {},
): Promise<SseStream> {
  const abort = new AbortController();
  const response = await fetch(url, {
    method: init.method ?? (init.body === undefined ? 'GET' : 'POST'),
    headers: {
      accept: 'text/event-stream',
      ...(init.body === undefined ? {} : { 'content-type': 'application/json' }),
      ...init.headers,
    },
    ...(init.body === undefined ? {} : { body: typeof init.body === 'string' ? init.body : JSON.stringify(init.body) }),
    signal: abort.signal,
  });
  const frames: Frame[] = [];
  const comments: string[] = [];
  let raw = '';
  let ending: Ending | null = null;
  const parser = createParser({
    onEvent: ({ event, id, data }) => frames.push({ event: event ?? 'message', id, data, atMs: performance.now() }),
    onComment: (comment) => comments.push(comment.trim()),
  });
  const isEvents = response.headers.get('content-type')?.startsWith('text/event-stream') === true;

  async function pump(): Promise<Ending> {
    try {
      const decoder = new TextDecoder();
      for await (const bytes of response.body ?? []) {
        const text = decoder.decode(bytes, { stream: true });
        raw += text;
        if (isEvents) parser.feed(text);
      }
      ending = { how: 'ended' };
    } catch (error) {
      ending = abort.signal.aborted ? { how: 'aborted' } : { how: 'broken', error: error as Error };
    }
    return ending;
  }
  const closed = pump();

  async function* iterate(): AsyncGenerator<Frame> {
    for (let next = 0; ; ) {
      await until(() => frames.length > next || ending !== null, { timeoutMs: 60_000, message: 'another frame' });
      if (frames.length === next) return;
      while (next < frames.length) {
        const frame = frames[next];
        next += 1;
        if (frame !== undefined) yield frame;
      }
    }
  }

  return {
    status: response.status,
    headers: response.headers,
    frames,
    comments,
    raw: () => raw,
    closed,
    close: () => abort.abort(),
    [Symbol.asyncIterator]: iterate,
    async waitFor(fits, options = {}) {
      const what = options.message ?? 'a fitting frame';
      const last = () => JSON.stringify(frames.slice(-3).map(({ event, id, data }) => [event, id, data.slice(0, 200)]));
      const found = () => frames.find(fits);
      await until(() => found() !== undefined || ending !== null, {
        ...(options.timeoutMs === undefined ? {} : { timeoutMs: options.timeoutMs }),
        message: what,
      }).catch((cause) => {
        throw new Error(`${(cause as Error).message}; last of ${frames.length} frames: ${last()}`, { cause });
      });
      const frame = found();
      if (frame !== undefined) return frame;
      throw new Error(`the stream ended before ${what}; last of ${frames.length} frames: ${last()}`);
    },
  };
}
