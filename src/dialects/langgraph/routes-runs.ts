/** Runs: created in the background, as a stream, or waited for; with a thread or without one. */
import type { Readable } from 'node:stream';
import type { FastifyReply, FastifyRequest } from 'fastify';
import { RunledgerError } from '#src/errors.ts';
import { authorize } from '#src/http/access.ts';
import { type Client, watchClient } from '#src/http/client.ts';
import type { Run } from '#src/runs/run.ts';
import { changed, isSeenThread, noThread } from './access.ts';
import { runPath, streamPath } from './links.ts';
import { answering, given, type LangGraphApp, type LangGraphDeps, parsed, threadParam } from './route.ts';
import { startRequestOf } from './start.ts';
import type { OpenStream } from './streams.ts';
import { runOf } from './views.ts';
import type { Wait } from './waiting.ts';
import { type RunCreate, runBatch, runCreate } from './wire.ts';

interface Parts {
  openStream: OpenStream;
  wait: Wait;
}

export function addRunRoutes(app: LangGraphApp, deps: LangGraphDeps, parts: Parts): void {
  addBackground(app, deps);
  addStream(app, deps, parts);
  addWait(app, deps, parts);
}

/** null for the routes without a thread. */
function threadOf(request: FastifyRequest): string | null {
  const inPath = (request.params ?? {}) as { thread_id?: unknown };
  return inPath.thread_id === undefined ? null : threadParam(request);
}

async function start(deps: LangGraphDeps, request: FastifyRequest, body: RunCreate): Promise<Run> {
  const threadId = threadOf(request);
  const forms = threadId === null ? {} : { threadId };
  const allowed = await answering(() => allowedRun(deps, request, threadId, body), forms);
  const asked = await startRequestOf(deps, request, threadId, allowed);
  const made = request.principal.access === undefined ? {} : { thread_metadata: allowed.metadata ?? {} };
  return answering(() => deps.runs.start({ ...asked, ...made }), forms);
}

/**
 * The request as an Auth module leaves it: its metadata, and what the graph is started with. A thread that does not exist has
 * nothing to be held against the filters; it gets the metadata.
 */
export async function allowedRun(
  deps: LangGraphDeps,
  request: FastifyRequest,
  threadId: string | null,
  body: RunCreate,
): Promise<RunCreate> {
  if (request.principal.access === undefined) return body;
  const { metadata, multitask_strategy, if_not_exists, after_seconds, assistant_id, ...kwargs } = body;
  const value = {
    thread_id: threadId,
    assistant_id,
    status: 'pending',
    metadata: metadata ?? {},
    multitask_strategy,
    if_not_exists,
    after_seconds,
    kwargs: kwargs as { [field: string]: unknown },
  };
  const filter = await authorize(request, 'threads:create_run', value);
  if (threadId !== null && filter.length > 0) {
    const seen = await isSeenThread(deps, request, threadId, filter).catch((error: unknown) => {
      const missing = error instanceof RunledgerError && error.code === 'THREAD_NOT_FOUND';
      if (missing && if_not_exists === 'create') return true;
      throw error;
    });
    if (!seen) throw noThread(threadId);
  }
  // What it has taken out of `kwargs` is gone.
  const admission = given({ multitask_strategy, if_not_exists, after_seconds });
  return changed(runCreate, { ...value.kwargs, ...admission, assistant_id, metadata: value.metadata });
}

/** With where the run is, and where its stream can be joined again. */
function located(reply: FastifyReply, run: Run, stateless: boolean): void {
  reply.header('content-location', runPath(run, stateless));
}

function addBackground(app: LangGraphApp, deps: LangGraphDeps): void {
  const handler = async (request: FastifyRequest, reply: FastifyReply) => {
    const run = await start(deps, request, parsed(runCreate, request.body));
    located(reply, run, threadOf(request) === null);
    return runOf(run);
  };
  app.post('/runs', handler);
  app.post('/threads/:thread_id/runs', handler);

  app.post('/runs/batch', async (request) => {
    const bodies = parsed(runBatch, request.body);
    const made: Run[] = [];
    for (const body of bodies) made.push(await start(deps, request, body));
    return made.map(runOf);
  });
}

function addStream(app: LangGraphApp, deps: LangGraphDeps, { openStream }: Parts): void {
  const handler = async (request: FastifyRequest, reply: FastifyReply): Promise<Readable> => {
    const client = watchClient(reply);
    const run = await start(deps, request, parsed(runCreate, request.body));
    const stateless = threadOf(request) === null;
    located(reply, run, stateless);
    reply.header('location', streamPath(run, stateless));
    return openStream({ reply, client, run, after: -1, startedTheRun: true, cancelOnLeave: false, only: null });
  };
  app.post('/runs/stream', handler);
  app.post('/threads/:thread_id/runs/stream', handler);
}

function addWait(app: LangGraphApp, deps: LangGraphDeps, { wait }: Parts): void {
  const handler = async (request: FastifyRequest, reply: FastifyReply): Promise<Readable> => {
    const client: Client = watchClient(reply);
    const run = await start(deps, request, parsed(runCreate, request.body));
    located(reply, run, threadOf(request) === null);
    return wait(reply, client, run, () => deps.runs.disconnected(run));
  };
  app.post('/runs/wait', handler);
  app.post('/threads/:thread_id/runs/wait', handler);
}
