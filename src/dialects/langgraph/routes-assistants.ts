/** Assistants: graphs with a configuration of their own. */
import type { FastifyReply } from 'fastify';
import type { JsonObject } from '#src/events/event.ts';
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
    const { metadata, graph_id, name, select, ...page } = parsed(assistantSearch, request.body);
    const filter = { metadata: metadata ?? undefined, graph_id: graph_id ?? undefined, name: name ?? undefined };
    const found = await assistants.search(request.principal.owner, { ...filter, ...page });
    paginate(reply, page, found.total);
    return found.assistants.map((assistant) => selected(assistantOf(assistant), select));
  });

  app.post('/assistants/count', async (request, reply) => {
    const { metadata, graph_id, name } = parsed(assistantFilter, request.body);
    const total = await assistants.count(request.principal.owner, {
      metadata: metadata ?? undefined,
      graph_id: graph_id ?? undefined,
      name: name ?? undefined,
    });
    return reply.type('application/json; charset=utf-8').send(JSON.stringify(total));
  });

  app.get('/assistants/:assistant_id', async (request) => {
    return assistantOf(await assistants.get(request.principal.owner, param(request, 'assistant_id')));
  });
}

function addChanges(app: LangGraphApp, { assistants, threads, runs }: LangGraphDeps): void {
  app.post('/assistants', async (request) => {
    const body = parsed(assistantCreate, request.body);
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
    return assistantOf(made);
  });

  app.patch('/assistants/:assistant_id', async (request) => {
    const body = parsed(assistantUpdate, request.body);
    const id = param(request, 'assistant_id');
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
    const id = await assistants.remove(owner, param(request, 'assistant_id'));
    if (withThreads === true) await deleteThreadsOf(id, owner);
    return [id];
  });

  async function deleteThreadsOf(assistantId: string, owner: string): Promise<void> {
    const page = { metadata: { assistant_id: assistantId }, limit: 100, offset: 0 };
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
