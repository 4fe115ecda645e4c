/**
 * The one writer of server-sent events. It knows bytes, connections and time; what the events mean is its callers' affair.
 * Built on `reply.send(stream)`, so a stream carries the same headers (CORS, request id) as every other response.
 */
import { Readable } from 'node:stream';
import { setImmediate } from 'node:timers/promises';
import type { FastifyBaseLogger, FastifyReply } from 'fastify';
import type { Client } from './client.ts';
import { type Batcher, createBatcher } from './sse-batch.ts';
import { encodeFrames } from './sse-frame.ts';

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
  /** Called once, when the response is over. Must not throw. */
  onEnd?(end: StreamEnd): void;
}

export interface Sse {
  /** Sends the headers at once and then the items as they come. Returns the reply, as a Fastify handler must. */
  send<T>(reply: FastifyReply, source: SseSource<T>): FastifyReply;
  /** Streams open now. */
  readonly open: number;
  /** Ends every stream, telling clients to come back in a second, and waits for their end (4 s). Later ones end at once. */
  close(): Promise<void>;
}

const HEADERS = {
  'content-type': 'text/event-stream; charset=utf-8',
  'cache-control': 'no-store, no-transform',
  'x-accel-buffering': 'no',
};
/** Clients would otherwise see no headers before the first event. */
const OPENING = encodeFrames([{ comment: 'ok' }]);
const HEARTBEAT = encodeFrames([{ comment: '' }]);
const COME_BACK = encodeFrames([{ comment: 'the server is closing', retry: 1000 }]);
/** A small buffer of our own: what a slow reader has not taken stays in the log, not here. */
const HIGH_WATER_MARK_BYTES = 16 * 1024;
/** On shutdown, how long a reader that takes nothing is waited for, in milliseconds. */
const CLOSE_GRACE_MS = 1000;
/** And how long a source that does not heed its signal, so that it cannot hold up the shutdown. */
const SOURCE_GRACE_MS = 4000;

interface SseDeps {
  keepaliveMs: number;
  writeTimeoutMs: number;
  logger: FastifyBaseLogger;
  onEnd?: (end: StreamEnd) => void;
}

interface OpenStream {
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
    send(reply, source) {
      if (reply.raw.destroyed) {
        source.onEnd?.('client_left');
        return reply.code(499).send();
      }
      const stream = openStream(deps, reply, source, () => streams.delete(stream));
      streams.add(stream);
      if (closing) void stream.stop();
      return reply;
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
  const { client } = source;
  const bodyOver = Promise.withResolvers<void>();
  const responseOver = Promise.withResolvers<void>();
  let batcher: Batcher | null = null;
  let started = false;
  let stopping = false;
  let endedByUs = false;

  async function* body(): AsyncGenerator<Buffer, void, void> {
    started = true;
    try {
      yield OPENING;
      batcher = createBatcher({
        source: source.items(client.signal)[Symbol.asyncIterator](),
        encode: source.encode,
        idleMs: deps.keepaliveMs,
      });
      while (!client.left) {
        if (stopping) {
          yield COME_BACK;
          return;
        }
        const batch = await batcher.next();
        if (batch.bytes !== null) yield batch.bytes;
        if (batch.over) return;
        if (batch.full) await setImmediate();
        else if (batch.bytes === null && !stopping && !client.left) yield HEARTBEAT;
      }
    } catch (error) {
      endByForce('stream source failed', error);
    } finally {
      client.release();
      await batcher?.close().catch((error: unknown) => endByForce('stream source failed while it ended', error));
      bodyOver.resolve();
    }
  }

  function endByForce(why: string, error?: unknown): void {
    endedByUs = true;
    deps.logger[error === undefined ? 'debug' : 'error']({ err: error, request_id: reply.request.id }, why);
    raw.destroy();
  }

  raw.once('close', () => {
    // A generator that never ran is ended by its stream without running its `finally`.
    if (!started) bodyOver.resolve();
    batcher?.wake();
    responseOver.resolve();
    const end = endedByUs ? 'server_closed' : raw.writableFinished ? 'finished' : 'client_left';
    source.onEnd?.(end);
    deps.onEnd?.(end);
  });
  // Node restarts this timer whenever the kernel takes bytes, also in the middle of one large write.
  raw.setTimeout(deps.writeTimeoutMs, () => {
    if (raw.writableLength > 0) endByForce('slow reader cut off');
    else raw.socket?.setTimeout(deps.writeTimeoutMs);
  });
  reply.headers(HEADERS).send(Readable.from(body(), { objectMode: false, highWaterMark: HIGH_WATER_MARK_BYTES }));
  const over = Promise.all([bodyOver.promise, responseOver.promise]).then(onOver);

  return {
    async stop() {
      stopping = true;
      endedByUs = true;
      batcher?.wake();
      const givenUp = Promise.withResolvers<void>();
      const timers = [
        setTimeout(() => endByForce('stream cut off at shutdown'), CLOSE_GRACE_MS),
        setTimeout(() => {
          deps.logger.warn({ request_id: reply.request.id }, 'stream source did not end at shutdown');
          givenUp.resolve();
        }, SOURCE_GRACE_MS),
      ];
      await Promise.race([over, givenUp.promise]);
      for (const timer of timers) clearTimeout(timer);
    },
  };
}
