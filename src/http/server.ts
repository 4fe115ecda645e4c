/**
 * The HTTP server: limits, ids, CORS, the order of hooks, and the last-resort answers. No domain knowledge; dialects are
 * mounted by app.ts.
 */
import { randomUUID } from 'node:crypto';
import type { IncomingMessage } from 'node:http';
import type { Socket } from 'node:net';
import Fastify, { type FastifyBaseLogger, type FastifyInstance, LogController } from 'fastify';
import { serializerCompiler } from 'fastify-type-provider-zod';
import { RunledgerError } from '#src/errors.ts';
import { registerBodyRules } from './body.ts';
import { type CorsOptions, registerCors } from './cors.ts';
import { createErrorHandler, type ErrorHandler, type RefusalRenderer } from './errors.ts';
import type { Metrics } from './metrics.ts';
import { registerShutdown } from './shutdown.ts';
import { createSse, type Sse } from './sse.ts';
import { validatorCompiler } from './validation.ts';

export interface HttpOptions {
  /** A longer body is 413. */
  bodyLimitBytes: number;
  sseKeepaliveMs: number;
  streamWriteTimeoutMs: number;
  cors: CorsOptions;
}

export interface HttpServer {
  app: FastifyInstance;
  sse: Sse;
  /** Aborts when the server begins to close, with a refusal as reason: for handlers that wait without a stream. */
  closing: AbortSignal;
  /** The error handler of a dialect, with its form of refusals. */
  errorHandler(render: RefusalRenderer): ErrorHandler;
}

/** To receive a request: its headers, and all of it. A response may take as long as a run does. */
const HEADERS_TIMEOUT_MS = 30_000;
const REQUEST_TIMEOUT_MS = 120_000;
const KEEP_ALIVE_TIMEOUT_MS = 72_000;
/** The router's own limit would answer before our hooks; what an id may be is the routes' affair. */
const MAX_PARAM_LENGTH = 16_384;
const REDACTED = ['authorization', 'cookie', 'x-dev-user'].flatMap((name) => [
  `req.headers["${name}"]`,
  `headers["${name}"]`,
]);

/**
 * Builds the server without listening. Hooks run in this order: request id, CORS, closing, (a dialect's authentication),
 * body, text check, validation. `renderRefusal` is the form of refusals outside every dialect. An error that
 * `isUnavailable` knows is answered with 503; without it every error that is no refusal is a 500.
 * @throws Error when the CORS options contradict each other
 */
export async function createHttpServer(deps: {
  options: HttpOptions;
  logger: FastifyBaseLogger;
  metrics: Metrics;
  renderRefusal: RefusalRenderer;
  isUnavailable?: (error: unknown) => boolean;
}): Promise<HttpServer> {
  const { options, metrics, isUnavailable = () => false } = deps;
  const logger = deps.logger.child({ room: 'http' }, { redact: REDACTED });
  const app: FastifyInstance = Fastify({
    loggerInstance: logger,
    // One line per request is ours (below), with the route's template instead of the URL: a query may hold secrets.
    logController: new LogController({ disableRequestLogging: true }),
    childLoggerFactory: (parent) => parent,
    bodyLimit: options.bodyLimitBytes,
    requestTimeout: REQUEST_TIMEOUT_MS,
    keepAliveTimeout: KEEP_ALIVE_TIMEOUT_MS,
    http: { headersTimeout: HEADERS_TIMEOUT_MS },
    genReqId: requestId,
    return503OnClosing: false,
    routerOptions: { maxParamLength: MAX_PARAM_LENGTH },
    rewriteUrl: decodableUrl,
    clientErrorHandler: answerBrokenRequest,
  });
  const sse = createSse({
    keepaliveMs: options.sseKeepaliveMs,
    writeTimeoutMs: options.streamWriteTimeoutMs,
    logger,
    onEnd: (end) => metrics.streamEnded(end),
  });

  app.setValidatorCompiler(validatorCompiler);
  app.setSerializerCompiler(serializerCompiler);
  const errorHandler = (render: RefusalRenderer): ErrorHandler => createErrorHandler({ render, logger, isUnavailable });
  app.setErrorHandler(errorHandler(deps.renderRefusal));
  app.setNotFoundHandler(() => {
    throw new RunledgerError('NOT_FOUND', 'There is no such route.');
  });
  app.decorateRequest('principal');
  app.addHook('onRequest', async (request, reply) => {
    reply.header('x-request-id', request.id);
  });
  await registerCors(app, options.cors);
  const closing = registerShutdown(app, sse);
  registerBodyRules(app);
  observeRequests(app, { logger, metrics });
  metrics.observe({
    name: 'runledger_sse_streams_open',
    help: 'Event streams open now.',
    kind: 'gauge',
    read: () => [{ value: sse.open }],
  });
  return { app, sse, closing, errorHandler };
}

function observeRequests(app: FastifyInstance, deps: { logger: FastifyBaseLogger; metrics: Metrics }): void {
  app.addHook('onResponse', async (request, reply) => {
    const route = request.routeOptions.url ?? 'unmatched';
    const status = reply.statusCode;
    const durationMs = Math.round(reply.elapsedTime);
    deps.logger.debug({ request_id: request.id, method: request.method, route, status, durationMs }, 'request');
    if (String(reply.getHeader('content-type')).startsWith('text/event-stream')) return;
    deps.metrics.request({ method: request.method, route, status, seconds: reply.elapsedTime / 1000 });
  });
}

/** A client's own id is kept when it is harmless in logs and headers. */
function requestId(request: IncomingMessage): string {
  const given = request.headers['x-request-id'];
  return typeof given === 'string' && /^[\w.:/+=-]{1,128}$/.test(given) ? given : randomUUID();
}

/**
 * The router answers a path with broken percent-encoding before any hook, so without CORS headers and request id. Such a
 * path names nothing; it is sent to the 404 handler instead.
 */
function decodableUrl(request: IncomingMessage): string {
  const url = request.url ?? '/';
  if (!url.includes('%')) return url;
  try {
    decodeURIComponent(url.split('?', 1)[0] ?? '');
    return url;
  } catch {
    return '/.undecodable';
  }
}

/** What is no HTTP request never reaches a handler; it is answered on the socket. */
function answerBrokenRequest(this: FastifyInstance, error: NodeJS.ErrnoException, socket: Socket): void {
  if (error.code === 'ECONNRESET' || socket.destroyed) return;
  const [status, message] =
    error.code === 'ERR_HTTP_REQUEST_TIMEOUT'
      ? ['408 Request Timeout', 'The request was not complete in time.']
      : error.code === 'HPE_HEADER_OVERFLOW'
        ? ['431 Request Header Fields Too Large', 'The headers are larger than this server accepts.']
        : ['400 Bad Request', 'This is not an HTTP request.'];
  const body = JSON.stringify({ code: 'INVALID_REQUEST', message, request_id: randomUUID() });
  if (socket.writable) {
    socket.write(
      `HTTP/1.1 ${status}\r\nContent-Type: application/json; charset=utf-8\r\n` +
        `Content-Length: ${Buffer.byteLength(body)}\r\nConnection: close\r\n\r\n${body}`,
    );
  }
  socket.destroySoon();
}
