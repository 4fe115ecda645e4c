/**
 * Who may do what, when an Auth module decides it: every route of this dialect in the words of the module's events. A route that is
 * not in the table is refused then. Without a module all of this does nothing.
 */
import type { FastifyRequest, preHandlerAsyncHookHandler } from 'fastify';
import { RunledgerError } from '#src/errors.ts';
import type { JsonObject } from '#src/events/event.ts';
import { type AuthEvent, authorize, isSeen, type ResourceFilter } from '#src/http/access.ts';
import type { DialectDeps } from '../dialect.ts';
import { REST_PREFIX } from './links.ts';
import { uuidOr } from './wire.ts';

const EVENTS: { [route: string]: AuthEvent } = {
  'POST /threads': 'threads:create',
  'GET /threads': 'threads:search',
  'GET /threads/:id': 'threads:read',
  'PATCH /threads/:id': 'threads:update',
  'DELETE /threads/:id': 'threads:delete',
  'GET /threads/:id/turns': 'threads:read',
  'GET /threads/:id/status': 'threads:read',
  'GET /threads/:id/messages/stream': 'threads:read',
  'POST /threads/messages': 'threads:create_run',
  'POST /threads/:id/messages': 'threads:create_run',
  'POST /threads/:id/answer': 'threads:create_run',
  'POST /threads/:id/retry': 'threads:create_run',
  'POST /threads/:id/cancel': 'threads:update',
  'GET /runs/:id': 'threads:read',
  'GET /webhooks': 'threads:search',
  'POST /webhooks/:id/requeue': 'threads:update',
};

declare module 'fastify' {
  interface FastifyRequest {
    /** What an Auth module lets the request see, and the metadata it gives what is made; null without a module. */
    allowed: { within: ResourceFilter; metadata: JsonObject } | null;
  }
}

/** Before each handler of the dialect's scope. */
export function accessHook({ threads, runs }: Pick<DialectDeps, 'threads' | 'runs'>): preHandlerAsyncHookHandler {
  return async (request) => {
    if (request.principal.access === undefined || request.is404) return;
    const { owner } = request.principal;
    const method = request.method === 'HEAD' ? 'GET' : request.method;
    const path = request.routeOptions.url?.slice(REST_PREFIX.length);
    const event = EVENTS[`${method} ${path}`];
    if (event === undefined) throw new RunledgerError('FORBIDDEN', 'This is not available to users of an Auth module.');
    const threadId = await threadOf(path ?? '', request);
    const body = (request.body ?? {}) as { [field: string]: unknown };
    const { metadata = {}, ...kwargs } = body;
    const value = { thread_id: threadId, metadata: metadata as JsonObject, kwargs: { ...kwargs } };
    const within = await authorize(request, event, value);
    request.allowed = { within, metadata: value.metadata };
    // What the module has changed, added or taken out counts.
    for (const key of Object.keys(kwargs)) if (!(key in value.kwargs)) delete body[key];
    Object.assign(body, value.kwargs);
    const addsMetadata = event === 'threads:update' && method === 'PATCH' && Object.keys(value.metadata).length > 0;
    if (body.metadata !== undefined || addsMetadata) body.metadata = value.metadata;
    if (within.length === 0) return;
    if (path?.startsWith('/webhooks') === true) {
      throw new RunledgerError('FORBIDDEN', 'Deliveries are not shown to users whose view of threads is limited.');
    }
    if (threadId === null) return;
    if (!isSeen((await threads.get(owner, threadId)).metadata, within)) {
      throw new RunledgerError('THREAD_NOT_FOUND', 'There is no such thread.');
    }
  };

  async function threadOf(path: string, request: FastifyRequest): Promise<string | null> {
    const { id } = request.params as { id?: string };
    if (id === undefined || path.startsWith('/webhooks')) return null;
    if (!path.startsWith('/runs')) return uuidOr('THREAD_NOT_FOUND', id);
    return (await runs.get(request.principal.owner, uuidOr('RUN_NOT_FOUND', id))).thread_id;
  }
}
