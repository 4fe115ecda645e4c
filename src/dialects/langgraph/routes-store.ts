/** The store: what graphs and clients keep beyond a thread. */
import { RunledgerError } from '#src/errors.ts';
import { answering, type LangGraphApp, type LangGraphDeps, parsed } from './route.ts';
import { storeDelete, storeGet, storeNamespaces, storePut, storeSearch } from './wire.ts';

const BAD_NAMESPACE = {
  INVALID_REQUEST: { status: 422, text: 'A label of a namespace is not empty, and has no dot.' },
};

export function addStoreRoutes(app: LangGraphApp, { store }: LangGraphDeps): void {
  app.put('/store/items', async (request, reply) => {
    const { namespace, key, value, ttl } = parsed(storePut, request.body);
    if (namespace.length === 0) throw new RunledgerError('INVALID_REQUEST', 'Namespace is required');
    const item = { namespace, key, value, ttlMinutes: ttl ?? null };
    await answering(() => store.put(request.principal.owner, item), { of: BAD_NAMESPACE });
    return reply.code(204).send();
  });

  app.get('/store/items', async (request, reply) => {
    const { namespace, key, refresh_ttl } = parsed(storeGet, request.query);
    const item = await store.get(request.principal.owner, { namespace, key, refresh: refresh_ttl ?? true });
    return reply.type('application/json; charset=utf-8').send(JSON.stringify(item));
  });

  app.delete('/store/items', async (request, reply) => {
    await store.remove(request.principal.owner, parsed(storeDelete, request.body));
    return reply.code(204).send();
  });

  app.post('/store/items/search', async (request) => {
    const { namespace_prefix, filter, limit, offset, refresh_ttl } = parsed(storeSearch, request.body);
    const search = {
      prefix: namespace_prefix,
      filter: filter ?? undefined,
      limit,
      offset,
      refresh: refresh_ttl ?? true,
    };
    return { items: await store.search(request.principal.owner, search) };
  });

  app.post('/store/namespaces', async (request) => {
    const { prefix, suffix, max_depth, ...page } = parsed(storeNamespaces, request.body);
    const search = { prefix: prefix ?? [], suffix: suffix ?? [], max_depth: max_depth ?? undefined, ...page };
    return { namespaces: await store.namespaces(request.principal.owner, search) };
  });
}
