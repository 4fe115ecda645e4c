/** A thread's state and its history, read from the checkpoints and written beside them. */
import { RunledgerError } from '#src/errors.ts';
import type { CheckpointRef } from '#src/runs/run.ts';
import { answering, type LangGraphApp, type LangGraphDeps, param, parsed, threadParam } from './route.ts';
import { selected, stateOf } from './views.ts';
import { historyBody, historyQuery, stateAt, statePatch, stateQuery, stateWrite } from './wire.ts';

export function addStateRoutes(app: LangGraphApp, deps: LangGraphDeps): void {
  addRead(app, deps);
  addWrite(app, deps);
  addHistory(app, deps);
}

function addRead(app: LangGraphApp, deps: LangGraphDeps): void {
  const { states } = deps;

  app.get('/threads/:thread_id/state', async (request) => {
    const { owner } = request.principal;
    const threadId = threadParam(request);
    const { subgraphs, select } = parsed(stateQuery, request.query);
    const read = () => states.read(owner, threadId, { subgraphs });
    const state = await answering(() => settled(deps, owner, threadId, read), { threadId });
    return selected(stateOf(state), select);
  });

  app.get('/threads/:thread_id/state/:checkpoint_id', async (request) => {
    const threadId = threadParam(request);
    const { subgraphs, select } = parsed(stateQuery, request.query);
    const checkpoint = { checkpoint_id: param(request, 'checkpoint_id') };
    const read = () => states.read(request.principal.owner, threadId, { checkpoint, subgraphs });
    return selected(stateOf(await answering(read, { threadId, of: NO_CHECKPOINT })), select);
  });

  app.post('/threads/:thread_id/state/checkpoint', async (request) => {
    const threadId = threadParam(request);
    const { checkpoint, subgraphs } = parsed(stateAt, request.body);
    const read = () =>
      states.read(request.principal.owner, threadId, { checkpoint, subgraphs: subgraphs ?? undefined });
    return stateOf(await answering(read, { threadId, of: NO_CHECKPOINT }));
  });
}

const NO_CHECKPOINT = { INVALID_REQUEST: { status: 404, text: 'Checkpoint not found' } };
const BUSY = { RUN_IN_PROGRESS: { status: 409, text: 'Thread is busy' } };

function addWrite(app: LangGraphApp, { states }: LangGraphDeps): void {
  app.post('/threads/:thread_id/state', async (request) => {
    const threadId = threadParam(request);
    const { values = null, as_node, checkpoint_id, checkpoint } = parsed(stateWrite, request.body);
    const at: CheckpointRef = { ...checkpoint, ...(checkpoint_id == null ? {} : { checkpoint_id }) };
    const update = { values, as_node: as_node ?? undefined };
    const written = await answering(() => states.update(request.principal.owner, threadId, update, at), {
      threadId,
      of: BUSY,
    });
    return { checkpoint: written, configurable: written };
  });

  app.patch('/threads/:thread_id/state', async (request, reply) => {
    const threadId = threadParam(request);
    const { metadata } = parsed(statePatch, request.body);
    await answering(() => states.patch(request.principal.owner, threadId, metadata), { threadId, of: BUSY });
    return reply.code(204).send();
  });
}

function addHistory(app: LangGraphApp, deps: LangGraphDeps): void {
  const { states } = deps;

  app.get('/threads/:thread_id/history', async (request) => {
    const { owner } = request.principal;
    const threadId = threadParam(request);
    const { limit, before, select } = parsed(historyQuery, request.query);
    const read = () => states.history(owner, threadId, { limit, before });
    const newest = before === undefined;
    const history = await answering(() => (newest ? settled(deps, owner, threadId, read) : read()), { threadId });
    return history.map((state) => selected(stateOf(state), select));
  });

  app.post('/threads/:thread_id/history', async (request) => {
    const { owner } = request.principal;
    const threadId = threadParam(request);
    const { limit, before, metadata, checkpoint, select } = parsed(historyBody, request.body);
    const read = () =>
      states.history(owner, threadId, {
        limit,
        before: beforeId(before),
        metadata: metadata ?? undefined,
        checkpoint: checkpoint ?? undefined,
      });
    const newest = before == null && checkpoint == null;
    const history = await answering(() => (newest ? settled(deps, owner, threadId, read) : read()), { threadId });
    return history.map((state) => selected(stateOf(state), select));
  });
}

/** How long a read waits for a run that has been asked to stop: one whose worker has died takes as long as its takeover. */
const STOPPING_MS = 5_000;

/**
 * What `read` gives once no run of the thread is being stopped. Clients that stop a run read the state in the same moment; in
 * between they would see a step that will never be done, and not what the run has said.
 */
async function settled<T>(
  { runs, closing }: LangGraphDeps,
  owner: string,
  threadId: string,
  read: () => Promise<T>,
): Promise<T> {
  const [running] = await runs.list(owner, threadId, { statuses: ['running'], limit: 1, offset: 0 });
  if (running === undefined) return read();
  try {
    if (running.cancel_requested_at === null) {
      const state = await read();
      // It may have been stopped meanwhile.
      if ((await runs.get(owner, running.id)).cancel_requested_at === null) return state;
    }
    await runs.wait(owner, running.id, AbortSignal.any([closing, AbortSignal.timeout(STOPPING_MS)]));
  } catch (error) {
    const rolledBack = error instanceof RunledgerError && error.code === 'RUN_NOT_FOUND';
    const stillStopping = error instanceof DOMException && error.name === 'TimeoutError';
    if (!rolledBack && !stillStopping && !closing.aborted) throw error;
  }
  return read();
}

/** An id, a checkpoint, or a config that points to one. */
function beforeId(before: string | { configurable?: CheckpointRef | undefined } | CheckpointRef | null | undefined) {
  if (before == null) return undefined;
  if (typeof before === 'string') return before;
  const id = 'configurable' in before ? before.configurable?.checkpoint_id : (before as CheckpointRef).checkpoint_id;
  if (id !== undefined) return id;
  throw new RunledgerError('INVALID_REQUEST', 'before names no checkpoint.');
}
