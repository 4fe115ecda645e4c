/** Runs that are there: read, joined, stopped and deleted. */
import type { FastifyReply, FastifyRequest } from 'fastify';
import { RunledgerError } from '#src/errors.ts';
import { authorize } from '#src/http/access.ts';
import { type Client, watchClient } from '#src/http/client.ts';
import { encodeFrames } from '#src/http/sse-frame.ts';
import { LIVE_STATUSES, type Run } from '#src/runs/run.ts';
import { allowThread } from './access.ts';
import { runPath, streamPath } from './links.ts';
import { answering, type LangGraphApp, type LangGraphDeps, parsed, runParam, threadParam } from './route.ts';
import { lastIdOf, type OpenStream } from './streams.ts';
import { runOf, STATUSES, selected } from './views.ts';
import type { Wait } from './waiting.ts';
import { cancelMany, cancelQuery, joinQuery, runList } from './wire.ts';

interface Parts {
  openStream: OpenStream;
  wait: Wait;
}

export function addJoinRoutes(app: LangGraphApp, deps: LangGraphDeps, parts: Parts): void {
  addRead(app, deps);
  addJoin(app, deps, parts);
  addCancel(app, deps);
  addDelete(app, deps);
}

function find({ runs }: LangGraphDeps, request: FastifyRequest): Promise<Run> {
  const threadId = threadParam(request);
  return answering(() => runs.find(request.principal.owner, threadId, runParam(request)), { threadId });
}

function addRead(app: LangGraphApp, deps: LangGraphDeps): void {
  const { runs, threads } = deps;

  app.get('/threads/:thread_id/runs', async (request) => {
    const { owner } = request.principal;
    const threadId = threadParam(request);
    const { status, select, ...page } = parsed(runList, request.query);
    await answering(() => threads.listed(owner, threadId), { threadId });
    const found = await runs.list(owner, threadId, { ...page, ...(status === undefined ? {} : STATUSES[status]) });
    return found.map((run) => selected(runOf(run), select));
  });

  app.get('/threads/:thread_id/runs/:run_id', async (request) => runOf(await find(deps, request)));
}

function addJoin(app: LangGraphApp, deps: LangGraphDeps, { openStream, wait }: Parts): void {
  const { runs, sse } = deps;

  app.get('/threads/:thread_id/runs/:run_id/join', { exposeHeadRoute: false }, async (request, reply) => {
    const client = watchClient(reply);
    const { cancel_on_disconnect: stops = false } = parsed(joinQuery, request.query);
    const run = await find(deps, request);
    if (stops) await allowThread(deps, request, 'threads:update', run.thread_id);
    return wait(reply, client, run, async () => {
      if (stops) await runs.cancel(run.owner, run.thread_id, { runId: run.id });
    });
  });

  const stream = async (request: FastifyRequest, reply: FastifyReply, stateless: boolean) => {
    const client = watchClient(reply);
    const { cancel_on_disconnect: stops = false, stream_mode: asked } = parsed(joinQuery, request.query);
    const after = lastIdOf(request);
    const run = await allowedRun(request, stateless, stops).catch((error: unknown) => unseen(request, error));
    if (run === null) return notThere(reply, client);
    if (stateless) reply.header('content-location', runPath(run, true));
    // Clients come back by themselves only where a response has said where to.
    reply.header('location', streamPath(run, stateless));
    const only = asked === undefined ? null : new Set(Array.isArray(asked) ? asked : [asked]);
    return openStream({ reply, client, run, after, startedTheRun: false, cancelOnLeave: stops, only });
  };

  async function allowedRun(request: FastifyRequest, stateless: boolean, stops: boolean): Promise<Run> {
    const run = stateless ? await runs.get(request.principal.owner, runParam(request)) : await find(deps, request);
    const value = { run_id: run.id };
    await allowThread(deps, request, 'threads:read', run.thread_id, value);
    if (stops) await allowThread(deps, request, 'threads:update', run.thread_id, value);
    return run;
  }

  /** Beside an Auth module clients expect a stream, and be it of an error. */
  function unseen(request: FastifyRequest, error: unknown): null {
    const missing = error instanceof RunledgerError && /^(THREAD|RUN)_NOT_FOUND$/.test(error.code);
    if (missing && request.principal.access !== undefined) return null;
    throw error;
  }

  const notThere = (reply: FastifyReply, client: Client) =>
    sse.stream(reply, {
      client,
      items: async function* () {
        yield [{ event: 'error', data: { error: 'Error', message: '404: Thread not found' } }];
      },
      encode: encodeFrames,
    });

  const options = { exposeHeadRoute: false };
  app.get('/threads/:thread_id/runs/:run_id/stream', options, (request, reply) => stream(request, reply, false));
  app.get('/runs/:run_id/stream', options, (request, reply) => stream(request, reply, true));
}

function addCancel(app: LangGraphApp, deps: LangGraphDeps): void {
  const { runs, closing } = deps;

  app.post('/threads/:thread_id/runs/:run_id/cancel', async (request, reply) => {
    const client = watchClient(reply);
    const { wait = false, action } = parsed(cancelQuery, request.query);
    const threadId = threadParam(request);
    const runId = runParam(request);
    const signal = AbortSignal.any([client.signal, closing]);
    await answering(() => runs.cancel(request.principal.owner, threadId, { runId, wait, action, signal }), {
      threadId,
    });
    return reply.code(wait ? 204 : 202).send();
  });

  app.post('/runs/cancel', async (request, reply) => {
    const { action = 'interrupt' } = parsed(cancelQuery, request.query);
    const { thread_id, run_ids, status } = parsed(cancelMany, request.body);
    if (run_ids == null && status == null) {
      throw new RunledgerError('INVALID_REQUEST', 'Name run_ids or a status.');
    }
    const live = [...LIVE_STATUSES];
    const statuses = status === 'pending' ? live.slice(0, 1) : status === 'running' ? live.slice(1) : live;
    const value = { thread_id, run_ids, status, action };
    if (thread_id != null) await allowThread(deps, request, 'threads:update', thread_id, value);
    else if ((await authorize(request, 'threads:update', value)).length > 0) {
      throw new RunledgerError('FORBIDDEN', 'Name a thread: what may be stopped depends on it.');
    }
    const which = { threadId: thread_id ?? undefined, ids: run_ids ?? undefined, statuses };
    await runs.cancelMany(request.principal.owner, which, action);
    return reply.code(204).send();
  });
}

/** A run that has not ended is stopped first. */
function addDelete(app: LangGraphApp, deps: LangGraphDeps): void {
  const { runs, closing } = deps;
  app.delete('/threads/:thread_id/runs/:run_id', async (request, reply) => {
    const client = watchClient(reply);
    const { owner } = request.principal;
    const threadId = threadParam(request);
    const runId = runParam(request);
    const signal = AbortSignal.any([client.signal, closing]);
    await answering(
      async () => {
        await runs.cancel(owner, threadId, { runId, wait: true, signal });
        await runs.deleteRun(owner, threadId, runId);
      },
      { threadId },
    );
    return reply.code(204).send();
  });
}
