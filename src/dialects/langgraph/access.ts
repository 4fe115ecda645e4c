/**
 * Who may do what, when an Auth module decides it: which event each route is, and what its filters are held against. A route that
 * is not in the table is refused then, so that a new one cannot be open by oversight. Without a module all of this does nothing.
 */
import type { FastifyRequest, preHandlerAsyncHookHandler } from 'fastify';
import { z } from 'zod';
import { RunledgerError } from '#src/errors.ts';
import type { JsonObject } from '#src/events/event.ts';
import { type AuthEvent, authorize, isSeen, type ResourceFilter } from '#src/http/access.ts';
import { type LangGraphDeps, param, threadParam } from './route.ts';

/** The route asks itself: with a value that may be changed, or for a resource that its path does not name. */
const ASKS_ITSELF = 'asks itself';

const EVENTS: { [route: string]: AuthEvent | typeof ASKS_ITSELF } = {
  'POST /assistants': ASKS_ITSELF,
  'POST /assistants/search': ASKS_ITSELF,
  'POST /assistants/count': ASKS_ITSELF,
  'GET /assistants/:assistant_id': 'assistants:read',
  'PATCH /assistants/:assistant_id': ASKS_ITSELF,
  'DELETE /assistants/:assistant_id': 'assistants:delete',
  'POST /assistants/:assistant_id/versions': 'assistants:read',
  'POST /assistants/:assistant_id/latest': 'assistants:update',
  'GET /assistants/:assistant_id/graph': 'assistants:read',
  'GET /assistants/:assistant_id/schemas': 'assistants:read',
  'GET /assistants/:assistant_id/subgraphs': 'assistants:read',
  'GET /assistants/:assistant_id/subgraphs/:namespace': 'assistants:read',
  'POST /threads': ASKS_ITSELF,
  'POST /threads/search': ASKS_ITSELF,
  'POST /threads/count': ASKS_ITSELF,
  'POST /threads/prune': ASKS_ITSELF,
  'GET /threads/:thread_id': 'threads:read',
  'PATCH /threads/:thread_id': ASKS_ITSELF,
  'DELETE /threads/:thread_id': 'threads:delete',
  'POST /threads/:thread_id/copy': ASKS_ITSELF,
  'GET /threads/:thread_id/stream': 'threads:read',
  'GET /threads/:thread_id/state': 'threads:read',
  'GET /threads/:thread_id/state/:checkpoint_id': 'threads:read',
  'POST /threads/:thread_id/state/checkpoint': 'threads:read',
  'POST /threads/:thread_id/state': 'threads:update',
  'PATCH /threads/:thread_id/state': 'threads:update',
  'GET /threads/:thread_id/history': 'threads:read',
  'POST /threads/:thread_id/history': 'threads:read',
  'POST /runs': ASKS_ITSELF,
  'POST /runs/stream': ASKS_ITSELF,
  'POST /runs/wait': ASKS_ITSELF,
  'POST /runs/batch': ASKS_ITSELF,
  'POST /runs/cancel': ASKS_ITSELF,
  'GET /runs/:run_id/stream': ASKS_ITSELF,
  'POST /threads/:thread_id/runs': ASKS_ITSELF,
  'POST /threads/:thread_id/runs/stream': ASKS_ITSELF,
  'POST /threads/:thread_id/runs/wait': ASKS_ITSELF,
  'GET /threads/:thread_id/runs': 'threads:search',
  'GET /threads/:thread_id/runs/:run_id': 'threads:read',
  'GET /threads/:thread_id/runs/:run_id/join': 'threads:read',
  'GET /threads/:thread_id/runs/:run_id/stream': ASKS_ITSELF,
  'POST /threads/:thread_id/runs/:run_id/cancel': 'threads:update',
  'DELETE /threads/:thread_id/runs/:run_id': 'threads:delete',
  'POST /runs/crons': ASKS_ITSELF,
  'POST /threads/:thread_id/runs/crons': ASKS_ITSELF,
  'POST /runs/crons/search': ASKS_ITSELF,
  'POST /runs/crons/count': ASKS_ITSELF,
  'PATCH /runs/crons/:cron_id': ASKS_ITSELF,
  'DELETE /runs/crons/:cron_id': ASKS_ITSELF,
  'PUT /store/items': ASKS_ITSELF,
  'GET /store/items': ASKS_ITSELF,
  'DELETE /store/items': ASKS_ITSELF,
  'POST /store/items/search': ASKS_ITSELF,
  'POST /store/namespaces': ASKS_ITSELF,
};

/** Before each handler of the dialect's scope. */
export function accessHook(deps: LangGraphDeps): preHandlerAsyncHookHandler {
  return async (request) => {
    if (request.principal.access === undefined || request.is404) return;
    const method = request.method === 'HEAD' ? 'GET' : request.method;
    const event = EVENTS[`${method} ${request.routeOptions.url}`];
    if (event === ASKS_ITSELF) return;
    if (event === undefined) throw new RunledgerError('FORBIDDEN', 'This is not available to users of an Auth module.');
    if (event.startsWith('assistants:')) {
      const id = param(request, 'assistant_id');
      await allowAssistant(deps, request, event, id, { ...objectIn(request.body), assistant_id: id });
      return;
    }
    const { run_id } = request.params as { run_id?: string };
    const value = { ...(request.query as object), ...(run_id === undefined ? {} : { run_id }) };
    await allowThread(deps, request, event, threadParam(request), value);
  };
}

/**
 * Asks about a thread, and holds its metadata against the filters.
 * @param value what the handlers of the module get beside the thread's id, and may change
 * @throws RunledgerError THREAD_NOT_FOUND, and what the module says
 */
export async function allowThread(
  deps: Pick<LangGraphDeps, 'threads'>,
  request: FastifyRequest,
  event: AuthEvent,
  threadId: string,
  value: { [field: string]: unknown } = {},
): Promise<void> {
  const filter = await authorize(request, event, Object.assign(value, { thread_id: threadId }));
  if (filter.length > 0 && !(await isSeenThread(deps, request, threadId, filter))) throw noThread(threadId);
}

/** @throws RunledgerError THREAD_NOT_FOUND when there is none */
export async function isSeenThread(
  { threads }: Pick<LangGraphDeps, 'threads'>,
  request: FastifyRequest,
  threadId: string,
  filter: ResourceFilter,
): Promise<boolean> {
  return isSeen((await threads.listed(request.principal.owner, threadId)).metadata, filter);
}

/** The same for an assistant. @throws RunledgerError ASSISTANT_NOT_FOUND, and what the module says */
export async function allowAssistant(
  { assistants }: Pick<LangGraphDeps, 'assistants'>,
  request: FastifyRequest,
  event: AuthEvent,
  id: string,
  value: { [field: string]: unknown },
): Promise<void> {
  const filter = await authorize(request, event, value);
  if (filter.length === 0) return;
  const { metadata } = await assistants.get(request.principal.owner, id);
  if (!isSeen(metadata, filter)) throw new RunledgerError('ASSISTANT_NOT_FOUND', 'Assistant not found');
}

export function noThread(threadId: string): RunledgerError {
  return new RunledgerError('THREAD_NOT_FOUND', 'There is no such thread.', { details: { thread_id: threadId } });
}

/**
 * A value that handlers had in hand, as the schema reads it.
 * @throws ZodError, which nobody is told: what does not fit was put there by the module
 */
export function changed<T extends z.ZodType>(schema: T, value: unknown): z.output<T> {
  return schema.parse(value);
}

export const metadataValue = z.record(z.string(), z.unknown()) as unknown as z.ZodType<JsonObject>;

function objectIn(body: unknown): object {
  return typeof body === 'object' && body !== null && !Array.isArray(body) ? body : {};
}
