/** Threads: conversations, found by what they hold and what they do. */
import { isDeepStrictEqual } from 'node:util';
import type { FastifyRequest } from 'fastify';
import type { z } from 'zod';
import { RunledgerError } from '#src/errors.ts';
import type { Json, JsonObject } from '#src/events/event.ts';
import { watchClient } from '#src/http/client.ts';
import type { ListedThread, THREAD_ORDERS } from '#src/threads/service.ts';
import { answering, type LangGraphApp, type LangGraphDeps, parsed, threadParam } from './route.ts';
import { paginate } from './routes-assistants.ts';
import { selected, threadOf } from './views.ts';
import { threadCreate, threadFilter, threadPrune, threadSearch, threadUpdate } from './wire.ts';

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
    const { thread_id, metadata, if_exists, supersteps } = parsed(threadCreate, request.body);
    const graphId = graphIn(metadata?.graph_id, graphs);
    const thread = await threads.open(owner, {
      id: thread_id ?? undefined,
      metadata: metadata ?? {},
      graph_id: graphId,
      if_exists: if_exists ?? 'raise',
    });
    if (supersteps == null || supersteps.length === 0) return withState(deps, owner, thread);
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

function graphIn(graphId: Json | undefined, graphs: LangGraphDeps['graphs']): string | undefined {
  return typeof graphId === 'string' && graphs.has(graphId) ? graphId : undefined;
}

function addSearch(app: LangGraphApp, deps: LangGraphDeps): void {
  const { threads } = deps;

  app.post('/threads/search', async (request, reply) => {
    const { owner } = request.principal;
    const { values, select, sort_by, sort_order, limit, offset, ...filter } = parsed(threadSearch, request.body);
    const order = { sort_by: sort_by ?? 'created_at', sort_order: sort_order ?? 'desc' } as const;
    if (values != null) {
      const found = await withValues(owner, filterOf(filter), order, values);
      paginate(reply, { limit, offset }, found.length);
      return found.slice(offset, offset + limit).map((view) => selected(view, select));
    }
    const found = await threads.search(owner, { ...filterOf(filter), ...order, limit, offset });
    paginate(reply, { limit, offset }, found.total);
    const needsState = select == null || select.some((name) => /^(values|interrupts)/.test(name));
    const views = needsState
      ? await inBatches(found.threads, (thread) => withState(deps, owner, thread))
      : found.threads.map((thread) => threadOf(thread, null));
    return views.map((view) => selected(view, select));
  });

  app.post('/threads/count', async (request, reply) => {
    const { owner } = request.principal;
    const { values, ...filter } = parsed(threadFilter, request.body);
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

function filterOf({ ids, metadata, status }: Pick<z.output<typeof threadFilter>, 'ids' | 'metadata' | 'status'>) {
  return { ids: ids ?? undefined, metadata: metadata ?? undefined, activity: status ?? undefined };
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
    return answering(async () => withState(deps, owner, await threads.listed(owner, threadId)), { threadId });
  });

  app.patch('/threads/:thread_id', async (request, reply) => {
    const { owner } = request.principal;
    const threadId = threadParam(request);
    const { metadata } = parsed(threadUpdate, request.body);
    const thread = await answering(() => threads.addMetadata(owner, threadId, metadata ?? {}), { threadId });
    if (wantsMinimal(request)) return reply.code(204).send();
    return withState(deps, owner, thread);
  });
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
    const { threads: found } = await threads.search(owner, {
      ids: thread_ids,
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
    const id = await answering(() => states.copy(owner, threadParam(request)), { of });
    return withState(deps, owner, await threads.listed(owner, id));
  });
}
