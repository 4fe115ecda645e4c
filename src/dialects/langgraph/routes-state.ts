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

function addRead(app: LangGraphApp, { states }: LangGraphDeps): void {
  app.get('/threads/:thread_id/state', async (request) => {
    const threadId = threadParam(request);
    const { subgraphs, select } = parsed(stateQuery, request.query);
    const state = await answering(() => states.read(request.principal.owner, threadId, { subgraphs }), { threadId });
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

function addHistory(app: LangGraphApp, { states }: LangGraphDeps): void {
  app.get('/threads/:thread_id/history', async (request) => {
    const threadId = threadParam(request);
    const { limit, before, select } = parsed(historyQuery, request.query);
    const read = () => states.history(request.principal.owner, threadId, { limit, before });
    return (await answering(read, { threadId })).map((state) => selected(stateOf(state), select));
  });

  app.post('/threads/:thread_id/history', async (request) => {
    const threadId = threadParam(request);
    const { limit, before, metadata, checkpoint, select } = parsed(historyBody, request.body);
    const read = () =>
      states.history(request.principal.owner, threadId, {
        limit,
        before: beforeId(before),
        metadata: metadata ?? undefined,
        checkpoint: checkpoint ?? undefined,
      });
    return (await answering(read, { threadId })).map((state) => selected(stateOf(state), select));
  });
}

/** An id, a checkpoint, or a config that points to one. */
function beforeId(before: string | { configurable?: CheckpointRef | undefined } | CheckpointRef | null | undefined) {
  if (before == null) return undefined;
  if (typeof before === 'string') return before;
  const id = 'configurable' in before ? before.configurable?.checkpoint_id : (before as CheckpointRef).checkpoint_id;
  if (id !== undefined) return id;
  throw new RunledgerError('INVALID_REQUEST', 'before names no checkpoint.');
}
