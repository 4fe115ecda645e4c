/** Crons: runs that are asked for by a schedule, on one thread or each on a thread of its own. */
import type { FastifyRequest } from 'fastify';
import type { z } from 'zod';
import { systemAssistantId } from '#src/assistants/service.ts';
import { RunledgerError } from '#src/errors.ts';
import type { JsonObject } from '#src/events/event.ts';
import { type AuthEvent, authorize, isSeen } from '#src/http/access.ts';
import { changed } from './access.ts';
import {
  answering,
  cronParam,
  given,
  isUuid,
  type LangGraphApp,
  type LangGraphDeps,
  naming,
  parsed,
  threadParam,
} from './route.ts';
import { allowedRun } from './routes-runs.ts';
import { assistantOf } from './start.ts';
import { cronOf, selected } from './views.ts';
import { cronCreate, cronFilter, cronSearch, cronUpdate, runCreate } from './wire.ts';

export function addCronRoutes(app: LangGraphApp, deps: LangGraphDeps): void {
  addCreate(app, deps);
  addFind(app, deps);
  addChange(app, deps);
}

function addCreate(app: LangGraphApp, deps: LangGraphDeps): void {
  const { crons, assistants, threads } = deps;

  const create = async (request: FastifyRequest, threadId: string | null): Promise<JsonObject> => {
    const { owner } = request.principal;
    const body = await allowedCron(deps, request, threadId, parsed(cronCreate, request.body));
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
    return answering(() => create(request, threadId), { threadId });
  });
}

/** As an Auth module leaves it, which is asked for the cron and for the runs it will ask for: nobody is asked when it fires. */
async function allowedCron(
  deps: LangGraphDeps,
  request: FastifyRequest,
  threadId: string | null,
  body: z.output<typeof cronCreate>,
): Promise<z.output<typeof cronCreate>> {
  if (request.principal.access === undefined) return body;
  const run = await allowedRun(deps, request, threadId, parsed(runCreate, body));
  const value = { ...body, ...given(run), thread_id: threadId };
  await authorize(request, 'crons:create', value);
  return changed(cronCreate, value);
}

function addFind(app: LangGraphApp, { crons }: LangGraphDeps): void {
  app.post('/runs/crons/search', async (request) => {
    const { value, within } = await searched(request, cronSearch);
    const { select, limit, offset, sort_by, sort_order, ...filter } = value;
    const page = { ...filterOf(filter), within, limit, offset, sort_by, sort_order };
    const found = await crons.search(request.principal.owner, page);
    return found.map((cron) => selected(cronOf(cron), select));
  });

  app.post('/runs/crons/count', async (request, reply) => {
    const { value, within } = await searched(request, cronFilter);
    const total = await crons.count(request.principal.owner, { ...filterOf(value), within });
    return reply.type('application/json; charset=utf-8').send(JSON.stringify(total));
  });
}

async function searched<T extends z.ZodObject>(request: FastifyRequest, schema: T) {
  const value: { [field: string]: unknown } = { ...parsed(schema, request.body) };
  const within = await authorize(request, 'crons:search', value);
  return { value: changed(schema, value), within };
}

function filterOf(filter: z.output<typeof cronFilter>) {
  const { assistant_id: asked, thread_id, enabled, metadata } = filter;
  const id = asked == null || isUuid(asked) ? asked : systemAssistantId(asked);
  return {
    assistant_id: id ?? undefined,
    thread_id: thread_id ?? undefined,
    enabled: enabled ?? undefined,
    metadata: metadata ?? undefined,
  };
}

function addChange(app: LangGraphApp, deps: LangGraphDeps): void {
  const { crons } = deps;

  app.patch('/runs/crons/:cron_id', async (request) => {
    const { owner } = request.principal;
    const id = cronParam(request);
    const value = { ...parsed(cronUpdate, request.body), cron_id: id };
    await allow(deps, request, 'crons:update', value);
    const asked = changed(cronUpdate, value);
    const { schedule, timezone, end_time, enabled, on_run_completed, metadata, ...run } = await allowedChange(
      request,
      id,
      asked,
    );
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

  /** What its runs will be is asked for again, as a whole: nobody is asked when they are made. */
  async function allowedChange(
    request: FastifyRequest,
    id: string,
    change: z.output<typeof cronUpdate>,
  ): Promise<z.output<typeof cronUpdate>> {
    const { schedule, timezone, end_time, enabled, on_run_completed, ...run } = change;
    if (request.principal.access === undefined || Object.keys(given(run)).length === 0) return change;
    const cron = await crons.get(request.principal.owner, id);
    const metadata = { ...cron.metadata, ...run.metadata };
    const whole = parsed(runCreate, { ...cron.payload, ...given(run), metadata });
    const { assistant_id: _named, ...allowed } = await allowedRun(deps, request, cron.thread_id, whole);
    return parsed(cronUpdate, given({ ...given(allowed), schedule, timezone, end_time, enabled, on_run_completed }));
  }

  app.delete('/runs/crons/:cron_id', async (request, reply) => {
    const id = cronParam(request);
    await allow(deps, request, 'crons:delete', { cron_id: id });
    await crons.remove(request.principal.owner, id);
    return reply.code(204).send();
  });
}

/** @throws RunledgerError CRON_NOT_FOUND, and what the module says */
async function allow(
  { crons }: LangGraphDeps,
  request: FastifyRequest,
  event: AuthEvent,
  value: { cron_id: string; [field: string]: unknown },
): Promise<void> {
  const id = value.cron_id;
  const filter = await authorize(request, event, value);
  if (filter.length === 0) return;
  const { metadata } = await crons.get(request.principal.owner, id);
  if (!isSeen(metadata, filter)) throw new RunledgerError('CRON_NOT_FOUND', 'Cron not found');
}
