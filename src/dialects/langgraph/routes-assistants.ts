/** Assistants: graphs with a configuration of their own. */
import type { FastifyReply, FastifyRequest } from 'fastify';
import type { z } from 'zod';
import { RunledgerError } from '#src/errors.ts';
import type { JsonObject } from '#src/events/event.ts';
import { authorize, isSeen, type ResourceFilter } from '#src/http/access.ts';
import { allowAssistant, changed } from './access.ts';
import { type LangGraphApp, type LangGraphDeps, param, parsed } from './route.ts';
import { assistantOf, selected } from './views.ts';
import {
  assistantCreate,
  assistantDelete,
  assistantFilter,
  assistantLatest,
  assistantSearch,
  assistantUpdate,
  assistantVersions,
  graphQuery,
  subgraphsQuery,
} from './wire.ts';

export function addAssistantRoutes(app: LangGraphApp, deps: LangGraphDeps): void {
  addLists(app, deps);
  addChanges(app, deps);
  addVersions(app, deps);
  addDescriptions(app, deps);
}

/** How many there are, and where the next page begins when there is one. */
export function paginate(reply: FastifyReply, page: { limit: number; offset: number }, total: number): void {
  reply.header('x-pagination-total', String(total));
  const next = page.offset + page.limit;
  if (next < total) reply.header('x-pagination-next', String(next));
}

function addLists(app: LangGraphApp, { assistants }: LangGraphDeps): void {
  app.post('/assistants/search', async (request, reply) => {
    const { value, within } = await searched(request, assistantSearch);
    const { metadata, graph_id, name, select, ...page } = value;
    const filter = {
      metadata: metadata ?? undefined,
      graph_id: graph_id ?? undefined,
      name: name ?? undefined,
      within,
    };
    const found = await assistants.search(request.principal.owner, { ...filter, ...page });
    paginate(reply, page, found.total);
    return found.assistants.map((assistant) => selected(assistantOf(assistant), select));
  });

  app.post('/assistants/count', async (request, reply) => {
    const { value, within } = await searched(request, assistantFilter);
    const { metadata, graph_id, name } = value;
    const total = await assistants.count(request.principal.owner, {
      metadata: metadata ?? undefined,
      graph_id: graph_id ?? undefined,
      name: name ?? undefined,
      within,
    });
    return reply.type('application/json; charset=utf-8').send(JSON.stringify(total));
  });

  app.get('/assistants/:assistant_id', async (request) => {
    return assistantOf(await assistants.get(request.principal.owner, param(request, 'assistant_id')));
  });
}

/** What is searched for, as the request says it and an Auth module leaves it; with the filters of the module. */
async function searched<T extends z.ZodObject>(request: FastifyRequest, schema: T) {
  const value: { [field: string]: unknown } = { ...parsed(schema, request.body) };
  const within = await authorize(request, 'assistants:search', value);
  return { value: changed(schema, value), within };
}

function addChanges(app: LangGraphApp, deps: LangGraphDeps): void {
  const { assistants, threads, runs } = deps;

  app.post('/assistants', async (request) => {
    const value = { ...parsed(assistantCreate, request.body) };
    const filter = await authorize(request, 'assistants:create', value);
    const body = changed(assistantCreate, value);
    const made = await assistants.create(request.principal.owner, {
      id: body.assistant_id,
      if_exists: body.if_exists ?? 'raise',
      graph_id: body.graph_id,
      name: body.name ?? 'Untitled',
      description: body.description ?? null,
      config: body.config ?? {},
      context: body.context ?? {},
      metadata: body.metadata ?? {},
    });
    if (body.if_exists === 'do_nothing' && !isSeen(made.metadata, filter)) {
      throw new RunledgerError('ASSISTANT_EXISTS', 'Assistant already exists');
    }
    return assistantOf(made);
  });

  app.patch('/assistants/:assistant_id', async (request) => {
    const id = param(request, 'assistant_id');
    const value = { ...parsed(assistantUpdate, request.body), assistant_id: id };
    await allowAssistant(deps, request, 'assistants:update', id, value);
    const body = changed(assistantUpdate, value);
    const updated = await assistants.update(request.principal.owner, id, {
      graph_id: body.graph_id ?? undefined,
      name: body.name ?? undefined,
      description: body.description ?? undefined,
      config: body.config ?? undefined,
      context: body.context,
      metadata: body.metadata ?? undefined,
    });
    return assistantOf(updated);
  });

  app.delete('/assistants/:assistant_id', async (request) => {
    const { owner } = request.principal;
    const { delete_threads: withThreads } = parsed(assistantDelete, request.query);
    const named = param(request, 'assistant_id');
    const within = withThreads === true ? await authorize(request, 'threads:delete', { assistant_id: named }) : null;
    const id = await assistants.remove(owner, named);
    if (within !== null) await deleteThreadsOf(id, owner, within);
    return [id];
  });

  async function deleteThreadsOf(assistantId: string, owner: string, within: ResourceFilter): Promise<void> {
    const page = { metadata: { assistant_id: assistantId }, within, limit: 100, offset: 0 };
    for (;;) {
      const found = await threads.search(owner, { ...page, sort_by: 'created_at', sort_order: 'asc' });
      if (found.threads.length === 0) return;
      for (const { id } of found.threads) await runs.deleteThread(owner, id, { force: true });
    }
  }
}

function addVersions(app: LangGraphApp, { assistants }: LangGraphDeps): void {
  app.post('/assistants/:assistant_id/versions', async (request) => {
    const { metadata, ...page } = parsed(assistantVersions, request.body);
    const id = param(request, 'assistant_id');
    const found = await assistants.versions(request.principal.owner, id, { ...page, metadata: metadata ?? undefined });
    return found.map(assistantOf);
  });

  app.post('/assistants/:assistant_id/latest', async (request) => {
    const { version } = parsed(assistantLatest, request.body);
    return assistantOf(await assistants.setLatest(request.principal.owner, param(request, 'assistant_id'), version));
  });
}

function addDescriptions(app: LangGraphApp, { assistants }: LangGraphDeps): void {
  app.get('/assistants/:assistant_id/graph', async (request) => {
    const { xray = false } = parsed(graphQuery, request.query);
    return assistants.drawing(request.principal.owner, param(request, 'assistant_id'), xray);
  });

  app.get('/assistants/:assistant_id/schemas', async (request) => {
    const id = param(request, 'assistant_id');
    const { graphId, schemas } = await assistants.schemas(request.principal.owner, id);
    const { state, input, output, config } = schemas;
    return {
      graph_id: graphId,
      input_schema: input,
      output_schema: output,
      state_schema: state,
      config_schema: config,
      // LangGraph.js has one schema for both.
      context_schema: config,
    };
  });

  const subgraphs = async (owner: string, id: string, namespace: string | undefined, query: unknown) => {
    const { recurse = false } = parsed(subgraphsQuery, query);
    return (await assistants.subgraphs(owner, id, { namespace, recurse })) as unknown as JsonObject;
  };
  app.get('/assistants/:assistant_id/subgraphs', (request) =>
    subgraphs(request.principal.owner, param(request, 'assistant_id'), undefined, request.query),
  );
  app.get('/assistants/:assistant_id/subgraphs/:namespace', (request) =>
    subgraphs(request.principal.owner, param(request, 'assistant_id'), param(request, 'namespace'), request.query),
  );
}
