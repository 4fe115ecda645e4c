/** The store: what graphs and clients keep beyond a thread. */
import type { FastifyRequest } from 'fastify';
import type { z } from 'zod';
import { RunledgerError } from '#src/errors.ts';
import type { JsonObject } from '#src/events/event.ts';
import { type AuthEvent, authorize, isSeen, type ResourceFilter } from '#src/http/access.ts';
import { changed } from './access.ts';
import { answering, type LangGraphApp, type LangGraphDeps, parsed } from './route.ts';
import { storeDelete, storeGet, storeNamespaces, storePut, storeSearch } from './wire.ts';

const BAD_NAMESPACE = {
  INVALID_REQUEST: { status: 422, text: 'A label of a namespace is not empty, and has no dot.' },
};

export function addStoreRoutes(app: LangGraphApp, { store }: LangGraphDeps): void {
  app.put('/store/items', async (request, reply) => {
    const [{ namespace, key, value, ttl }, filter] = await allowed(request, 'store:put', storePut, request.body);
    if (namespace.length === 0) throw new RunledgerError('INVALID_REQUEST', 'Namespace is required');
    await refuseUnseen(request, { namespace, key, value }, filter);
    const item = { namespace, key, value, ttlMinutes: ttl ?? null };
    await answering(() => store.put(request.principal.owner, item), { of: BAD_NAMESPACE });
    return reply.code(204).send();
  });

  app.get('/store/items', async (request, reply) => {
    const [{ namespace, key, refresh_ttl }, filter] = await allowed(request, 'store:get', storeGet, request.query);
    const item = await store.get(request.principal.owner, { namespace, key, refresh: refresh_ttl });
    const seen = item !== null && isSeen(fieldsOf(item), filter) ? item : null;
    return reply.type('application/json; charset=utf-8').send(JSON.stringify(seen));
  });

  app.delete('/store/items', async (request, reply) => {
    const { owner } = request.principal;
    const [at, filter] = await allowed(request, 'store:delete', storeDelete, request.body);
    // What is not seen is not there, and what is not there is deleted.
    const there = filter.length === 0 ? null : await store.get(owner, { ...at, refresh: false });
    if (there === null || isSeen(fieldsOf(there), filter)) await store.remove(owner, at);
    return reply.code(204).send();
  });

  app.post('/store/items/search', async (request) => {
    const { namespace_prefix: namespace, ...body } = parsed(storeSearch, request.body);
    const value: { [field: string]: unknown } = { ...body, namespace };
    const within = await authorize(request, 'store:search', value);
    const asked = changed(storeSearch, { ...value, namespace_prefix: value.namespace });
    const { namespace_prefix, filter, limit, offset, refresh_ttl } = asked;
    const search = {
      within,
      prefix: namespace_prefix,
      filter: filter ?? undefined,
      limit,
      offset,
      refresh: refresh_ttl ?? undefined,
    };
    return { items: await store.search(request.principal.owner, search) };
  });

  app.post('/store/namespaces', async (request) => {
    const { prefix: namespace, ...body } = parsed(storeNamespaces, request.body);
    const value: { [field: string]: unknown } = { ...body, namespace };
    const within = await authorize(request, 'store:list_namespaces', value);
    const asked = changed(storeNamespaces, { ...value, prefix: value.namespace });
    const { prefix, suffix, max_depth, ...page } = asked;
    const search = {
      within,
      prefix: prefix ?? [],
      suffix: suffix ?? [],
      max_depth: max_depth ?? undefined,
      ...page,
    };
    return { namespaces: await store.namespaces(request.principal.owner, search) };
  });

  /** An item that is there and is not seen cannot be replaced, and none can be put where it would not be seen. */
  async function refuseUnseen(request: FastifyRequest, item: Fields, filter: ResourceFilter): Promise<void> {
    if (filter.length === 0) return;
    if (!isSeen(fieldsOf(item), filter)) throw new RunledgerError('FORBIDDEN', 'Not authorized');
    const there = await store.get(request.principal.owner, { ...item, refresh: false });
    if (there === null || isSeen(fieldsOf(there), filter)) return;
    throw new RunledgerError('NOT_FOUND', 'Item not found', {
      details: { form: { status: 404, text: 'Item not found' } },
    });
  }
}

interface Fields {
  namespace: string[];
  key: string;
  value: JsonObject;
}

/** What filters see of an item. */
function fieldsOf({ namespace, key, value }: Fields): { [field: string]: unknown } {
  return { ...value, namespace, key };
}

/** What is asked for, as the request says it and an Auth module leaves it; with the filters of the module. */
async function allowed<T extends z.ZodObject>(
  request: FastifyRequest,
  event: AuthEvent,
  schema: T,
  given: unknown,
): Promise<[z.output<T>, ResourceFilter]> {
  const value: { [field: string]: unknown } = { ...parsed(schema, given) };
  const filter = await authorize(request, event, value);
  return [changed(schema, value), filter];
}
