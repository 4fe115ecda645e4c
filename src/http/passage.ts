/**
 * The way of a request through an app of the operator and, if the app lets it, on to our routes and back. What our routes answer
 * goes back through the app without being touched, unless the app reads it: a stream stays the stream it is, with all that
 * notices when its client leaves.
 */
import { Readable } from 'node:stream';
import type { ReadableStream as WebStream } from 'node:stream/web';
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify';
import { RunledgerError } from '#src/errors.ts';
import type { Authenticate } from './auth.ts';
import type { UserApp } from './user-app.ts';

interface Passage {
  /** What the body is by now, when the app has read it. */
  body: Uint8Array | null;
  /** Our answer, on its way back. Resolves with what the app makes of it. */
  answered: ((answer: Response) => Promise<Response>) | null;
}

declare module 'fastify' {
  interface FastifyRequest {
    /** Null for requests that go past the app. */
    passage: Passage | null;
  }
}

/** Of the operator's machines, and of test suites: never the app's affair. */
const PAST_THE_APP = new Set(['/livez', '/readyz', '/metrics', '/openapi.json', '/internal/truncate']);
/** Through the app, and asked by clients that have no credentials yet. */
const FOR_EVERYBODY = new Set(['/info', '/ui/:agent/:basename']);
const WITHOUT_BODY = new Set([101, 103, 204, 205, 304]);
/** Said of the connection, which is ours; or of the length of a body that may be another by now. */
const NOT_COPIED = new Set(['connection', 'keep-alive', 'transfer-encoding', 'content-length']);

/**
 * Adds the hooks; before any route. Who asks is found out before the app is: its routes are for users, as ours are.
 * @param deps.bodyLimitBytes what the app may read of a body
 */
export function registerUserApp(app: FastifyInstance, deps: PassageDeps): void {
  app.decorateRequest('passage', null);
  // No async hook: one that answers would wait for the end of its answer, and fail when the client leaves before.
  app.addHook('onRequest', (request, reply, done) => {
    ask(request, reply, deps).then((answer) => {
      if (answer === null) return done();
      reply.send(answer.body === null ? null : Readable.fromWeb(answer.body as WebStream));
    }, done);
  });
  app.addHook('preParsing', async (request, _reply, payload) => {
    const body = request.passage?.body;
    if (body == null) return payload;
    delete request.headers['transfer-encoding'];
    request.headers['content-length'] = String(body.length);
    return Object.assign(Readable.from([body]), { receivedEncodedLength: body.length });
  });
  app.addHook('onSend', async (request, reply, payload) => leave(request, reply, payload));
  // The client has left before there was an answer: the app need not wait for it.
  app.addHook('onResponse', async (request) => {
    await back(request, new Response(null, { status: 499 }));
  });
}

interface PassageDeps {
  userApp: UserApp;
  authenticate: Authenticate;
  bodyLimitBytes: number;
}

/** Null when the request is for our routes; else the app's answer, whose head the reply then has. @throws what the app throws, UNAUTHENTICATED, PAYLOAD_TOO_LARGE */
async function ask(request: FastifyRequest, reply: FastifyReply, deps: PassageDeps): Promise<Response | null> {
  const { userApp, authenticate, bodyLimitBytes } = deps;
  const route = request.routeOptions.url ?? '';
  if (PAST_THE_APP.has(route)) return null;
  if (!FOR_EVERYBODY.has(route)) request.principal ??= await authenticate(request.headers, request);
  if (Number(request.headers['content-length'] ?? 0) > bodyLimitBytes) throw tooLarge();
  const webRequest = toWeb(request, reply, bodyLimitBytes);
  const reached = Promise.withResolvers<null>();
  const ours = Promise.withResolvers<Response>();
  const done = userApp(webRequest, (passed, body) => {
    if (passed !== webRequest) copyRequestHeaders(passed, request);
    request.passage = {
      body,
      answered: (answer) => {
        ours.resolve(answer);
        return done;
      },
    };
    reached.resolve(null);
    return ours.promise;
  });
  const answer = await Promise.race([done, reached.promise]);
  if (answer !== null) copyHead(answer, reply);
  return answer;
}

function toWeb(request: FastifyRequest, reply: FastifyReply, bodyLimitBytes: number): Request {
  const left = new AbortController();
  reply.raw.once('close', () => {
    if (!reply.raw.writableFinished) left.abort();
  });
  const headers = new Headers();
  for (const [name, value] of Object.entries(request.headers)) {
    for (const one of Array.isArray(value) ? value : [value]) if (one !== undefined) headers.append(name, one);
  }
  const whole = `${request.protocol}://${request.headers.host}${request.url}`;
  const url = URL.canParse(whole) ? whole : new URL(request.url, 'http://localhost');
  const hasBody =
    request.method !== 'GET' &&
    request.method !== 'HEAD' &&
    (request.headers['transfer-encoding'] !== undefined || Number(request.headers['content-length'] ?? 0) > 0);
  const init = { method: request.method, headers, signal: left.signal };
  return new Request(url, hasBody ? { ...init, body: lazily(request, bodyLimitBytes), duplex: 'half' } : init);
}

/** The request's body, which is left alone until somebody reads it. */
function lazily(request: FastifyRequest, limitBytes: number): ReadableStream<Uint8Array> {
  let source: AsyncIterator<Buffer> | null = null;
  let bytes = 0;
  return new ReadableStream<Uint8Array>(
    {
      async pull(controller) {
        source ??= request.raw[Symbol.asyncIterator]() as AsyncIterator<Buffer>;
        const { value, done } = await source.next();
        if (done === true) return controller.close();
        bytes += value.length;
        if (bytes > limitBytes) throw tooLarge();
        controller.enqueue(new Uint8Array(value));
      },
    },
    { highWaterMark: 0 },
  );
}

function tooLarge(): RunledgerError {
  return new RunledgerError('PAYLOAD_TOO_LARGE', 'The request body is larger than this server accepts.');
}

function copyRequestHeaders(from: Request, request: FastifyRequest): void {
  for (const [name, value] of from.headers) request.headers[name] = value;
}

/** Takes our answer back through the app. Returns what is to be sent. */
async function leave(request: FastifyRequest, reply: FastifyReply, payload: unknown): Promise<unknown> {
  if (request.passage?.answered == null) return payload;
  const empty = payload == null || WITHOUT_BODY.has(reply.statusCode);
  const own = empty ? null : untouched(payload);
  const headers = new Headers();
  for (const [name, value] of Object.entries(reply.getHeaders())) {
    for (const one of Array.isArray(value) ? value : [value]) headers.append(name, String(one));
  }
  const answer = await back(request, new Response(own?.stream ?? null, { status: reply.statusCode, headers }));
  if (answer === null) return payload;
  for (const name of Object.keys(reply.getHeaders())) if (!answer.headers.has(name)) reply.removeHeader(name);
  copyHead(answer, reply);
  // There is no body to send, and Fastify wants to see the one it drops.
  if (request.method === 'HEAD') return payload;
  if (own === null ? answer.body === null : answer.body === own.stream && !own.isRead()) return payload;
  if (own !== null && !own.isRead() && payload instanceof Readable) payload.destroy();
  reply.removeHeader('content-length');
  return answer.body === null ? null : Readable.fromWeb(answer.body as WebStream);
}

/** Null when the answer was given before. */
async function back(request: FastifyRequest, answer: Response): Promise<Response | null> {
  const { passage } = request;
  if (passage?.answered == null) return null;
  const { answered } = passage;
  passage.answered = null;
  return answered(answer);
}

/** A payload as a stream that begins to read it only when it is read itself. */
function untouched(payload: unknown): { stream: ReadableStream<Uint8Array>; isRead(): boolean } {
  let source: AsyncIterator<Uint8Array | string> | null = null;
  const stream = new ReadableStream<Uint8Array>(
    {
      async pull(controller) {
        source ??= (payload instanceof Readable ? payload : Readable.from([payload]))[Symbol.asyncIterator]();
        const { value, done } = await source.next();
        if (done === true) controller.close();
        else controller.enqueue(typeof value === 'string' ? Buffer.from(value) : new Uint8Array(value));
      },
      async cancel() {
        if (payload instanceof Readable) payload.destroy();
      },
    },
    { highWaterMark: 0 },
  );
  return { stream, isRead: () => source !== null };
}

function copyHead(answer: Response, reply: FastifyReply): void {
  reply.code(answer.status);
  for (const [name, value] of answer.headers) {
    if (!NOT_COPIED.has(name) && name !== 'set-cookie') reply.header(name, value);
  }
  const cookies = answer.headers.getSetCookie();
  if (cookies.length > 0) reply.removeHeader('set-cookie').header('set-cookie', cookies);
}
