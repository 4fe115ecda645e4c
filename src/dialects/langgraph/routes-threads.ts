/** Threads: conversations, found by what they hold and what they do. */
import { isDeepStrictEqual } from 'node:util';
import type { FastifyRequest } from 'fastify';
import type { z } from 'zod';
import { RunledgerError } from '#src/errors.ts';
import type { Json, JsonObject } from '#src/events/event.ts';
import { authorize, isSeen, type ResourceFilter } from '#src/http/access.ts';
import { watchClient } from '#src/http/client.ts';
import type { ListedThread, THREAD_ORDERS } from '#src/threads/service.ts';
import { allowThread, changed, metadataValue } from './access.ts';
import { extracted } from './extract.ts';
import { answering, type LangGraphApp, type LangGraphDeps, parsed, threadParam } from './route.ts';
import { paginate } from './routes-assistants.ts';
import { selected, threadOf } from './views.ts';
import { threadCreate, threadFilter, threadPrune, threadQuery, threadSearch, threadUpdate } from './wire.ts';

export function addThreadRoutes(app: LangGraphApp, deps: LangGraphDeps): void {
  addCreate(app, deps);
  addSearch(app, deps);
  addReadAndChange(app, deps);
  addDeleteAndCopy(app, deps);
}

/** Threads whose states are read at a time, for one request. */
const READ_AT_ONCE = 4;

/** The thread with what its checkpoints hold; without that when its graph cannot be had any more. */
export async function withState({ states, logger }: LangGraphDeps, owner: string, thread: ListedThread) {
  try {
    return threadOf(thread, await states.read(owner, thread.id));
  } catch (error) {
    if (!isWithoutGraph(error)) throw error;
    logger.warn({ err: error, thread_id: thread.id }, 'state of a thread not readable; it is shown without');
    return threadOf(thread, null);
  }
}

/** Its graph is configured no more, or cannot be made. */
function isWithoutGraph(error: unknown): boolean {
  if (error instanceof RunledgerError) return error.code === 'GRAPH_NOT_FOUND';
  return error instanceof Error && error.name === 'GraphLoadError';
}

function addCreate(app: LangGraphApp, deps: LangGraphDeps): void {
  const { threads, states, graphs, runs } = deps;

  app.post('/threads', async (request) => {
    const { owner } = request.principal;
    const { thread_id, metadata, if_exists, supersteps, ttl } = parsed(threadCreate, request.body);
    const value = { thread_id, if_exists, metadata: metadata ?? {} };
    const filter = await authorize(request, 'threads:create', value);
    const own = changed(metadataValue, value.metadata);
    const thread = await threads.open(owner, {
      id: thread_id ?? undefined,
      metadata: own,
      graph_id: graphIn(own.graph_id, graphs),
      if_exists: if_exists ?? 'raise',
      ttl: ttl ?? deps.threadTtl,
    });
    if (if_exists === 'do_nothing' && !isSeen(thread.metadata, filter)) throw threadExists();
    if (supersteps == null || supersteps.length === 0) return withState(deps, owner, thread);
    // The thread may be an old one.
    if (if_exists === 'do_nothing') await allowThread(deps, request, 'threads:update', thread.id);
    const steps = supersteps.map(({ updates }) =>
      updates.map(({ values = null, command, as_node }) => ({
        values,
        command: command ?? undefined,
        as_node: as_node ?? undefined,
      })),
    );
    try {
      await states.updateMany(owner, thread.id, steps);
    } catch (error) {
      // The thread was made for them.
      if (if_exists !== 'do_nothing') await runs.deleteThread(owner, thread.id, { force: false });
      throw error;
    }
    return withState(deps, owner, await threads.listed(owner, thread.id));
  });
}

function threadExists(): RunledgerError {
  return new RunledgerError('THREAD_EXISTS', 'Thread already exists');
}

function graphIn(graphId: Json | undefined, graphs: LangGraphDeps['graphs']): string | undefined {
  return typeof graphId === 'string' && graphs.has(graphId) ? graphId : undefined;
}

function addSearch(app: LangGraphApp, deps: LangGraphDeps): void {
  const { threads } = deps;

  app.post('/threads/search', async (request, reply) => {
    const { owner } = request.principal;
    const asked = await searched(request, threadSearch);
    const { values, select, extract, sort_by, sort_order, limit, offset, ...filter } = asked;
    const shown = (view: JsonObject): JsonObject => ({
      ...selected(view, select),
      ...(extract == null ? {} : { extracted: extracted(view, extract) }),
    });
    const order = { sort_by: sort_by ?? 'created_at', sort_order: sort_order ?? 'desc' } as const;
    if (values != null) {
      const found = await withValues(owner, filterOf(filter), order, values);
      paginate(reply, { limit, offset }, found.length);
      return found.slice(offset, offset + limit).map(shown);
    }
    const found = await threads.search(owner, { ...filterOf(filter), ...order, limit, offset });
    paginate(reply, { limit, offset }, found.total);
    const named = select == null ? ['values'] : [...select, ...Object.values(extract ?? {})];
    const needsState = named.some((name) => /^(values|interrupts)/.test(name));
    const views = needsState
      ? await inBatches(found.threads, (thread) => withState(deps, owner, thread))
      : found.threads.map((thread) => threadOf(thread, null));
    return views.map(shown);
  });

  app.post('/threads/count', async (request, reply) => {
    const { owner } = request.principal;
    const { values, ...filter } = await searched(request, threadFilter);
    const order = { sort_by: 'created_at', sort_order: 'desc' } as const;
    const total =
      values == null
        ? await threads.count(owner, filterOf(filter))
        : (await withValues(owner, filterOf(filter), order, values)).length;
    return reply.type('application/json; charset=utf-8').send(JSON.stringify(total));
  });

  /** Threads whose state holds these values. States are in checkpoints, where no query sees them: each is read. */
  async function withValues(
    owner: string,
    filter: ReturnType<typeof filterOf>,
    order: { sort_by: (typeof THREAD_ORDERS)[number]; sort_order: 'asc' | 'desc' },
    values: JsonObject,
  ): Promise<JsonObject[]> {
    const matches: JsonObject[] = [];
    for (let at = 0; ; at += PAGE) {
      const page = await threads.search(owner, { ...filter, ...order, limit: PAGE, offset: at });
      const views = await inBatches(page.threads, (thread) => withState(deps, owner, thread));
      matches.push(...views.filter((view) => holds(view.values ?? null, values)));
      if (page.threads.length < PAGE) return matches;
    }
  }
}

const PAGE = 100;

/** What is searched for, as the request says it and an Auth module leaves it; with the filters of the module. */
async function searched<T extends z.ZodObject>(
  request: FastifyRequest,
  schema: T,
): Promise<z.output<T> & { within: ResourceFilter }> {
  const value: { [field: string]: unknown } = { ...parsed(schema, request.body) };
  const within = await authorize(request, 'threads:search', value);
  return { ...changed(schema, value), within };
}

function filterOf({
  ids,
  metadata,
  status,
  within,
}: Pick<z.output<typeof threadFilter>, 'ids' | 'metadata' | 'status'> & { within: ResourceFilter }) {
  return { ids: ids ?? undefined, metadata: metadata ?? undefined, activity: status ?? undefined, within };
}

/** Every value asked for is there, and equal. */
function holds(values: Json, wanted: JsonObject): boolean {
  if (typeof values !== 'object' || values === null || Array.isArray(values)) return false;
  return Object.entries(wanted).every(([key, value]) => isDeepStrictEqual(values[key], value));
}

async function inBatches<T, R>(items: T[], work: (item: T) => Promise<R>): Promise<R[]> {
  const results: R[] = [];
  for (let at = 0; at < items.length; at += READ_AT_ONCE) {
    results.push(...(await Promise.all(items.slice(at, at + READ_AT_ONCE).map(work))));
  }
  return results;
}

function addReadAndChange(app: LangGraphApp, deps: LangGraphDeps): void {
  const { threads } = deps;

  app.get('/threads/:thread_id', async (request) => {
    const { owner } = request.principal;
    const threadId = threadParam(request);
    const { include } = parsed(threadQuery, request.query);
    const thread = await answering(() => threads.listed(owner, threadId), { threadId });
    return { ...(await withState(deps, owner, thread)), ...included(thread, [include ?? []].flat()) };
  });

  app.patch('/threads/:thread_id', async (request, reply) => {
    const { owner } = request.principal;
    const threadId = threadParam(request);
    const { metadata, ttl } = parsed(threadUpdate, request.body);
    const value = { metadata: metadata ?? {} };
    await answering(() => allowThread(deps, request, 'threads:update', threadId, value), { threadId });
    const added = changed(metadataValue, value.metadata);
    const changedMetadata = await answering(() => threads.addMetadata(owner, threadId, added), { threadId });
    const thread = ttl === undefined ? changedMetadata : await threads.setTtl(owner, threadId, ttl);
    if (wantsMinimal(request)) return reply.code(204).send();
    return withState(deps, owner, thread);
  });
}

/** Fields that a thread has for those who name them. */
function included({ ttl }: ListedThread, names: string[]): JsonObject {
  if (!names.includes('ttl')) return {};
  if (ttl === null) return { ttl: null };
  return { ttl: { strategy: ttl.strategy, ttl_minutes: ttl.minutes, expires_at: ttl.expires_at } };
}

function wantsMinimal(request: FastifyRequest): boolean {
  return String(request.headers.prefer ?? '').includes('return=minimal');
}

function addDeleteAndCopy(app: LangGraphApp, deps: LangGraphDeps): void {
  const { threads, runs, states, closing } = deps;

  app.delete('/threads/:thread_id', async (request, reply) => {
    const client = watchClient(reply);
    const threadId = threadParam(request);
    const signal = AbortSignal.any([client.signal, closing]);
    await answering(() => runs.deleteThread(request.principal.owner, threadId, { force: true, signal }), { threadId });
    return reply.code(204).send();
  });

  app.post('/threads/prune', async (request) => {
    const { owner } = request.principal;
    const { thread_ids, strategy } = parsed(threadPrune, request.body);
    const event = strategy === 'delete' ? 'threads:delete' : 'threads:update';
    const within = await authorize(request, event, { ids: thread_ids });
    const { threads: found } = await threads.search(owner, {
      ids: thread_ids,
      within,
      limit: thread_ids.length,
      offset: 0,
      sort_by: 'created_at',
      sort_order: 'asc',
    });
    for (const { id } of found) {
      if (strategy === 'delete') await runs.deleteThread(owner, id, { force: true, signal: closing });
      else await states.keepLatest(owner, id);
    }
    return { pruned_count: found.length };
  });

  app.post('/threads/:thread_id/copy', async (request) => {
    const { owner } = request.principal;
    const of = { THREAD_NOT_FOUND: { status: 409, text: 'Thread not found' } };
    const source = await answering(() => threadParam(request), { of });
    await answering(() => allowThread(deps, request, 'threads:read', source), { of });
    const { metadata } = await answering(() => threads.listed(owner, source), { of });
    const value = { metadata };
    await authorize(request, 'threads:create', value);
    const id = await answering(() => states.copy(owner, source), { of });
    if (request.principal.access === undefined) return withState(deps, owner, await threads.listed(owner, id));
    return withState(deps, owner, await threads.addMetadata(owner, id, changed(metadataValue, value.metadata)));
  });
}
