/** From anything thrown to a refusal, and from a refusal to a response. How a refusal looks belongs to the dialect. */
import type { FastifyBaseLogger, FastifyError, FastifyReply, FastifyRequest } from 'fastify';
import { RunledgerError } from '#src/errors.ts';
import { ClientLeft } from './client.ts';

/** A refusal in the form of a dialect: JSON, or a text as it is. */
export interface RefusalForm {
  status: number;
  headers: { [name: string]: string };
  body: unknown;
}

/** Total: every refusal has a form. `request.params` is there for links (the thread's id). */
export type RefusalRenderer = (refusal: RunledgerError, request: Pick<FastifyRequest, 'id' | 'params'>) => RefusalForm;

/** What Fastify's `setErrorHandler` takes. */
export type ErrorHandler = (error: unknown, request: FastifyRequest, reply: FastifyReply) => FastifyReply;

/**
 * The error handler of a scope: known refusals in the dialect's form, anything else as INTERNAL without a word of the
 * cause. What is the server's fault is logged once, with the cause and the request's id.
 * @param deps.isUnavailable tells errors of a service that is away or too busy (UNAVAILABLE) from faults (INTERNAL)
 */
export function createErrorHandler(deps: {
  render: RefusalRenderer;
  logger: FastifyBaseLogger;
  isUnavailable: (error: unknown) => boolean;
}): ErrorHandler {
  return function handleError(error: unknown, request: FastifyRequest, reply: FastifyReply): FastifyReply {
    // Nobody is there to read an answer; what the request asked for has been done or undone by its own handler.
    if (error instanceof ClientLeft) return reply.code(499).send();
    const refusal = deps.isUnavailable(error) ? unavailable(error) : toRefusal(error);
    if (refusal.code === 'INTERNAL' || refusal.code === 'UNAVAILABLE') {
      const route = request.routeOptions.url ?? null;
      const level = refusal.code === 'INTERNAL' ? 'error' : 'warn';
      deps.logger[level]({ err: error, cause: refusal.cause, request_id: request.id, route }, 'request failed');
    }
    // Fastify closes the connection under a body that was too long; the client, still writing, would then lose our
    // answer to a reset. Node reads and discards the rest instead, for at most the request timeout.
    if (refusal.code === 'PAYLOAD_TOO_LARGE') reply.removeHeader('connection');
    const form = deps.render(refusal, request);
    const type = typeof form.body === 'string' ? 'text/plain; charset=utf-8' : 'application/json; charset=utf-8';
    return reply.code(form.status).headers(form.headers).type(type).send(form.body);
  };
}

/** Every error has a refusal; what we do not know is INTERNAL, with the error as cause. Never carries third-party text. */
export function toRefusal(error: unknown): RunledgerError {
  if (error instanceof RunledgerError) {
    return error.code === 'INTERNAL' ? internal(error.cause ?? error) : error;
  }
  if (!isFastifyError(error)) return internal(error);
  switch (error.code) {
    case 'FST_ERR_CTP_BODY_TOO_LARGE':
      return new RunledgerError('PAYLOAD_TOO_LARGE', 'The request body is larger than this server accepts.');
    case 'FST_ERR_CTP_INVALID_JSON_BODY':
      return new RunledgerError('INVALID_REQUEST', 'The body is not JSON, or holds the key __proto__.', {
        path: 'body',
      });
    case 'FST_ERR_CTP_INVALID_MEDIA_TYPE':
      return new RunledgerError('INVALID_REQUEST', 'The content type of the body must be application/json.', {
        path: 'content-type',
      });
    case 'FST_ERR_CTP_INVALID_CONTENT_LENGTH':
      return new RunledgerError('INVALID_REQUEST', 'The body is not as long as its Content-Length says.', {
        path: 'body',
      });
    default:
      return error.statusCode !== undefined && error.statusCode >= 400 && error.statusCode < 500
        ? new RunledgerError('INVALID_REQUEST', 'The request is malformed.', { cause: error })
        : internal(error);
  }
}

function unavailable(cause: unknown): RunledgerError {
  return new RunledgerError('UNAVAILABLE', 'The server cannot serve this now; try again in a moment.', { cause });
}

function internal(cause: unknown): RunledgerError {
  return new RunledgerError('INTERNAL', 'The server failed to handle this request.', { cause });
}

function isFastifyError(error: unknown): error is FastifyError {
  return error instanceof Error && 'code' in error && typeof error.code === 'string' && error.code.startsWith('FST_');
}
