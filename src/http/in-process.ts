/**
 * A `fetch` that reaches this server from within its own process: a connection of its own without a socket, and from there on
 * the same HTTP as everybody's. So streams stream, a reader that is slow holds up its own stream only, and a caller that
 * leaves is noticed.
 */
import { type ClientRequest, type IncomingMessage, request as sendRequest } from 'node:http';
import type { FastifyInstance } from 'fastify';
import { connectionPair } from './connection-pair.ts';

const WITHOUT_BODY = new Set([204, 205, 304]);
/** What Node's own fetch says when a caller does not. */
const DEFAULT_HEADERS = { accept: '*/*', 'user-agent': 'node' };

/**
 * Requests to the server's own origin are answered in this process, all others go out as ever. As `fetch`, but for redirects,
 * which are answers like others. It fails when the server has begun to close. To be called before the server listens; the
 * server's end waits for these connections as for its own.
 * @param origin where the server is, once it listens
 */
export function createInProcessFetch(app: FastifyInstance, origin: () => string): typeof fetch {
  const open = new Set<Promise<void>>();
  app.addHook('onClose', async () => {
    await Promise.all(open);
  });

  function connect(): ReturnType<typeof connectionPair>[0] {
    const [near, far] = connectionPair();
    const closed = new Promise<void>((resolve) => far.once('close', resolve));
    open.add(closed);
    void closed.then(() => open.delete(closed));
    // The caller hears of it at its own end.
    far.on('error', () => undefined);
    app.server.emit('connection', far);
    return near;
  }

  return async (input, init) => {
    const asked = new Request(input, init);
    if (new URL(asked.url).origin !== new URL(origin()).origin) return fetch(asked);
    const body = asked.body === null ? null : Buffer.from(await asked.arrayBuffer());
    asked.signal.throwIfAborted();
    if (!app.server.listening) throw failed(new Error('the server is closing'));
    return exchange(asked, body, connect);
  };
}

/**
 * Requests under way. A Request hears of its caller's abort only while the Request itself is held (WHATWG leaves it to garbage
 * collection): nobody else holds it once the answer has begun.
 */
const underWay = new Set<Request>();

/** One request and its answer, whose body is read as it comes. */
function exchange(asked: Request, body: Buffer | null, connect: () => ReturnType<typeof connectionPair>[0]) {
  const { signal, method } = asked;
  const url = new URL(asked.url);
  const headers = {
    ...DEFAULT_HEADERS,
    ...Object.fromEntries(asked.headers),
    host: url.host,
    ...(body === null ? {} : { 'content-length': body.length }),
  };
  const path = `${url.pathname}${url.search}`;
  const { promise, resolve, reject } = Promise.withResolvers<Response>();
  const near = connect();
  const outgoing: ClientRequest = sendRequest({ method, path, headers, createConnection: () => near });
  const leave = (): void => {
    near.destroy();
  };
  underWay.add(asked);
  signal.addEventListener('abort', leave, { once: true });
  near.once('close', () => {
    underWay.delete(asked);
    signal.removeEventListener('abort', leave);
  });
  outgoing.once('response', (incoming) => resolve(toResponse(incoming, method, signal)));
  outgoing.on('error', (error) => reject(signal.aborted ? signal.reason : failed(error)));
  outgoing.end(body ?? undefined);
  return promise;
}

function toResponse(incoming: IncomingMessage, method: string, signal: AbortSignal): Response {
  const headers = new Headers();
  for (let at = 0; at < incoming.rawHeaders.length; at += 2) {
    headers.append(incoming.rawHeaders[at] ?? '', incoming.rawHeaders[at + 1] ?? '');
  }
  const { statusCode: status = 500, statusMessage: statusText = '' } = incoming;
  const empty = method === 'HEAD' || WITHOUT_BODY.has(status);
  if (empty) incoming.resume();
  return new Response(empty ? null : bodyOf(incoming, signal), { status, statusText, headers });
}

/** Reads only when it is read itself. */
function bodyOf(incoming: IncomingMessage, signal: AbortSignal): ReadableStream<Uint8Array> {
  const source = incoming[Symbol.asyncIterator]() as AsyncIterator<Buffer>;
  return new ReadableStream<Uint8Array>(
    {
      async pull(controller) {
        try {
          const { value, done } = await source.next();
          if (done === true) controller.close();
          else controller.enqueue(new Uint8Array(value));
        } catch (error) {
          controller.error(signal.aborted ? signal.reason : new TypeError('terminated', { cause: error }));
        }
      },
      cancel() {
        incoming.destroy();
      },
    },
    { highWaterMark: 0 },
  );
}

/** In fetch's own words, by which clients know that they may try again. */
function failed(cause: Error): TypeError {
  return new TypeError('fetch failed', { cause });
}
