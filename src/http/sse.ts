/**
 * The one writer of server-sent events. It knows bytes, connections and time; what the events mean is its callers' affair.
 * The stream is an ordinary payload of Fastify, so it carries the same headers (CORS, request id) as every other response.
 */
import { Readable } from 'node:stream';
import type { FastifyBaseLogger, FastifyReply } from 'fastify';
import type { Client } from './client.ts';
import { SseBody } from './sse-body.ts';

/**
 * finished: everything was sent. client_left: the client closed before that. server_closed: we did (shutdown, a reader
 * that took nothing for too long, a source that failed); the client may reconnect, and it never counts as its leaving.
 */
export type StreamEnd = 'finished' | 'client_left' | 'server_closed';

export interface SseSource<T> {
  client: Client;
  /** What to send. Called once, after the headers are on their way; must end when the signal aborts. */
  items(signal: AbortSignal): AsyncIterable<T>;
  /** The bytes of one item, by `encodeFrames`; empty when it has none. May return shared, cached bytes. */
  encode(item: T): Buffer;
  /**
   * At shutdown the connection is cut, not ended: clients that take the end of a stream for the end of what it tells come back
   * only after a fault. What they have not got is told again, after the last id they have.
   */
  cutAtShutdown?: boolean;
  /** Called once, when the response is over. Must not throw. */
  onEnd?(end: StreamEnd): void;
}

export interface Sse {
  /**
   * Sets the headers and makes the payload, which the (async) handler must return. It begins at once with a comment, and
   * goes on with the items as they come. A handler that sends it and returns the reply works too, but costs each viewer
   * 2 KB more, because Fastify then waits for the response's end.
   */
  stream<T>(reply: FastifyReply, source: SseSource<T>): Readable;
  /** Streams open now. */
  readonly open: number;
  /** Ends or cuts every stream, telling clients to come back in a second, and waits for their end (4 s). Later ones end at once. */
  close(): Promise<void>;
}

const HEADERS = {
  'content-type': 'text/event-stream; charset=utf-8',
  'cache-control': 'no-store, no-transform',
  'x-accel-buffering': 'no',
};
/** On shutdown, how long a reader that takes nothing is waited for, in milliseconds. */
const CLOSE_GRACE_MS = 1000;
/** And how long a source that does not heed its signal, so that it cannot hold up the shutdown. */
const SOURCE_GRACE_MS = 4000;

/** Headers go out within a few ticks of the stream's making; nothing tells when. */
const BEGUN_POLL_MS = 2;

interface SseDeps {
  keepaliveMs: number;
  writeTimeoutMs: number;
  logger: FastifyBaseLogger;
  onEnd?: (end: StreamEnd) => void;
}

interface OpenStream {
  body: Readable;
  /** Asks the stream to end; resolves when its response and its source are over, or given up. Never rejects. */
  stop(): Promise<void>;
}

/**
 * @param deps.keepaliveMs a comment is sent after so long without an event; never under back-pressure
 * @param deps.writeTimeoutMs a reader that takes nothing for so long (at most twice that) is cut off
 * @param deps.onEnd told about every stream's end, for metrics
 */
export function createSse(deps: SseDeps): Sse {
  const streams = new Set<OpenStream>();
  let closing = false;

  return {
    stream(reply, source) {
      if (reply.raw.destroyed) {
        source.onEnd?.('client_left');
        return Readable.from([]);
      }
      const stream = openStream(deps, reply, source, () => streams.delete(stream));
      streams.add(stream);
      if (closing) void stream.stop();
      return stream.body;
    },
    get open() {
      return streams.size;
    },
    async close() {
      closing = true;
      await Promise.all(Array.from(streams, (stream) => stream.stop()));
    },
  };
}

function openStream<T>(deps: SseDeps, reply: FastifyReply, source: SseSource<T>, onOver: () => void): OpenStream {
  const { raw } = reply;
  let endedByUs = false;
  let bodyOver = false;
  let responseOver = false;
  let stopped: PromiseWithResolvers<void> | null = null;

  const body = new SseBody<T>({
    open: () => source.items(source.client.signal)[Symbol.asyncIterator](),
    encode: source.encode,
    keepaliveMs: deps.keepaliveMs,
    onFailure: (error) => endByForce('stream source failed', error),
    onOver: () => {
      bodyOver = true;
      settle();
    },
  });

  function settle(): void {
    if (!bodyOver || !responseOver) return;
    onOver();
    stopped?.resolve();
  }

  function endByForce(why: string, error?: unknown): void {
    endedByUs = true;
    deps.logger[error === undefined ? 'debug' : 'error']({ err: error, request_id: reply.request.id }, why);
    raw.destroy();
  }

  /** Without its headers the client would not know where to come back, and ask again for what it has asked for. */
  function cutOnceBegun(): void {
    if (raw.destroyed) return;
    if (raw.headersSent) setImmediate(() => endByForce('stream cut at shutdown'));
    else setTimeout(cutOnceBegun, BEGUN_POLL_MS);
  }

  raw.once('close', () => {
    const end = endedByUs ? 'server_closed' : raw.writableFinished ? 'finished' : 'client_left';
    source.client.release();
    body.destroy();
    responseOver = true;
    settle();
    source.onEnd?.(end);
    deps.onEnd?.(end);
  });
  // Node restarts this timer whenever the kernel takes bytes, also in the middle of one large write.
  raw.setTimeout(deps.writeTimeoutMs, () => {
    if (raw.writableLength > 0) endByForce('slow reader cut off');
    else raw.socket?.setTimeout(deps.writeTimeoutMs);
  });
  reply.headers(HEADERS);

  return {
    body,
    async stop() {
      endedByUs = true;
      if (source.cutAtShutdown === true) cutOnceBegun();
      else body.finish();
      stopped ??= Promise.withResolvers();
      const { promise, resolve } = stopped;
      const timers = [
        setTimeout(() => endByForce('stream cut off at shutdown'), CLOSE_GRACE_MS),
        setTimeout(() => {
          deps.logger.warn({ request_id: reply.request.id }, 'stream source did not end at shutdown');
          resolve();
        }, SOURCE_GRACE_MS),
      ];
      settle();
      await promise;
      for (const timer of timers) clearTimeout(timer);
    },
  };
}
