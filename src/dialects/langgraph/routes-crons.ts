/** Crons: runs that are asked for by a schedule, on one thread or each on a thread of its own. */
import type { FastifyRequest } from 'fastify';
import { systemAssistantId } from '#src/assistants/service.ts';
import type { JsonObject } from '#src/events/event.ts';
import {
  answering,
  cronParam,
  isUuid,
  type LangGraphApp,
  type LangGraphDeps,
  naming,
  parsed,
  threadParam,
} from './route.ts';
import { assistantOf } from './start.ts';
import { cronOf, selected } from './views.ts';
import { cronCreate, cronFilter, cronSearch, cronUpdate } from './wire.ts';

export function addCronRoutes(app: LangGraphApp, deps: LangGraphDeps): void {
  addCreate(app, deps);
  addFind(app, deps);
  addChange(app, deps);
}

function addCreate(app: LangGraphApp, { crons, assistants, threads }: LangGraphDeps): void {
  const create = async (request: FastifyRequest, threadId: string | null): Promise<JsonObject> => {
    const { owner } = request.principal;
    const body = parsed(cronCreate, request.body);
    const { assistant_id: asked, schedule, timezone, end_time, enabled, on_run_completed, metadata, ...run } = body;
    const { id } = await assistantOf(assistants, owner, asked);
    const cron = {
      assistant_id: id,
      thread_id: threadId,
      schedule,
      timezone: timezone ?? null,
      end_time: end_time ?? null,
      enabled: enabled ?? true,
      on_run_completed: threadId === null ? (on_run_completed ?? 'delete') : null,
      payload: { assistant_id: id, ...given(run) },
      metadata: metadata ?? {},
    } as const;
    return cronOf(await naming(() => crons.create(owner, cron)));
  };

  app.post('/runs/crons', (request) => create(request, null));

  app.post('/threads/:thread_id/runs/crons', async (request) => {
    const threadId = threadParam(request);
    await answering(() => threads.listed(request.principal.owner, threadId), { threadId });
    return create(request, threadId);
  });
}

function addFind(app: LangGraphApp, { crons }: LangGraphDeps): void {
  app.post('/runs/crons/search', async (request) => {
    const { select, limit, offset, sort_by, sort_order, ...filter } = parsed(cronSearch, request.body);
    const page = { ...filterOf(filter), limit, offset, sort_by, sort_order };
    const found = await crons.search(request.principal.owner, page);
    return found.map((cron) => selected(cronOf(cron), select));
  });

  app.post('/runs/crons/count', async (request, reply) => {
    const total = await crons.count(request.principal.owner, filterOf(parsed(cronFilter, request.body)));
    return reply.type('application/json; charset=utf-8').send(JSON.stringify(total));
  });
}

function filterOf(filter: ReturnType<typeof cronFilter.parse>) {
  const { assistant_id: asked, thread_id, enabled, metadata } = filter;
  const id = asked == null || isUuid(asked) ? asked : systemAssistantId(asked);
  return {
    assistant_id: id ?? undefined,
    thread_id: thread_id ?? undefined,
    enabled: enabled ?? undefined,
    metadata: metadata ?? undefined,
  };
}

function addChange(app: LangGraphApp, { crons }: LangGraphDeps): void {
  app.patch('/runs/crons/:cron_id', async (request) => {
    const { owner } = request.principal;
    const id = cronParam(request);
    const body = parsed(cronUpdate, request.body);
    const { schedule, timezone, end_time, enabled, on_run_completed, metadata, ...run } = body;
    const payload = given(run);
    const change = {
      schedule: schedule ?? undefined,
      timezone,
      end_time,
      enabled: enabled ?? undefined,
      on_run_completed: on_run_completed ?? undefined,
      metadata: metadata ?? undefined,
      payload: Object.keys(payload).length === 0 ? undefined : payload,
    };
    return cronOf(await naming(() => crons.update(owner, id, change)));
  });

  app.delete('/runs/crons/:cron_id', async (request, reply) => {
    await crons.remove(request.principal.owner, cronParam(request));
    return reply.code(204).send();
  });
}

/** What a client has said; what it left out is left out. */
function given(fields: object): JsonObject {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined)) as JsonObject;
}
