/** A thread's state: read from its checkpoints, and written by edits. The second door of this room for dialects. */
import { randomUUID } from 'node:crypto';
import type { BaseCheckpointSaver } from '@langchain/langgraph-checkpoint';
import type { Logger } from 'pino';
import { RunledgerError } from '#src/errors.ts';
import type { JsonObject } from '#src/events/event.ts';
import { addMetadata, copyCheckpoints, hasCheckpoint } from '#src/graphs/checkpoint-rows.ts';
import { openReader } from '#src/graphs/checkpoints.ts';
import type { DrivenGraph, GraphRegistry } from '#src/graphs/graph.ts';
import { type CheckpointName, checkpointName, EMPTY_STATE, type StateJson, stateJson } from '#src/graphs/snapshot.ts';
import type { Pool, Queryable, Tx } from '#src/postgres/pool.ts';
import { inTransaction } from '#src/postgres/transaction.ts';
import { closeInterrupts, insertThreadIfNew, lockThread } from '#src/threads/open.ts';
import { threadNotFound } from './admission.ts';
import { edit } from './edit.ts';
import type { CheckpointRef, Run, StateUpdate } from './run.ts';
import { placeAfter, type StatePlace, statePlace } from './state-place.ts';
import { stateUpdate, supersteps } from './state-update.ts';
import { pruneThread } from './sweep-checkpoints.ts';

export type { CheckpointName, StateJson, TaskState } from '#src/graphs/snapshot.ts';

export interface StateService {
  /**
   * The state at a checkpoint, or at the tip, which costs the tip. Empty for a thread without a graph or a checkpoint.
   * @throws THREAD_NOT_FOUND; INVALID_REQUEST for a checkpoint it does not have; GRAPH_NOT_FOUND
   */
  read(
    owner: string,
    threadId: string,
    options?: { checkpoint?: CheckpointRef | undefined; subgraphs?: boolean | undefined },
  ): Promise<StateJson>;
  /**
   * The state that a run which has ended left on its thread, whatever came after it; that of the thread now when the
   * run's checkpoints are no longer kept. @throws RUN_NOT_FOUND, GRAPH_NOT_FOUND
   */
  leftBy(run: Pick<Run, 'id' | 'owner' | 'thread_id'>): Promise<StateJson>;
  /** States, newest first. @throws THREAD_NOT_FOUND, GRAPH_NOT_FOUND */
  history(
    owner: string,
    threadId: string,
    options: {
      limit: number;
      before?: string | undefined;
      metadata?: JsonObject | undefined;
      checkpoint?: CheckpointRef | undefined;
    },
  ): Promise<StateJson[]>;
  /**
   * Writes a checkpoint after the one named, or after the tip.
   * @throws THREAD_NOT_FOUND, RUN_IN_PROGRESS, GRAPH_NOT_FOUND, INVALID_REQUEST (also when the graph refuses the update)
   */
  update(
    owner: string,
    threadId: string,
    update: StateUpdate,
    checkpoint?: CheckpointRef | undefined,
  ): Promise<CheckpointName>;
  /** Writes one checkpoint per superstep. @throws as `update` */
  updateMany(owner: string, threadId: string, supersteps: StateUpdate[][]): Promise<void>;
  /**
   * Adds to the metadata of the tip's checkpoint; what has the same name is replaced.
   * @throws THREAD_NOT_FOUND, RUN_IN_PROGRESS, INVALID_REQUEST when there is no checkpoint yet
   */
  patch(owner: string, threadId: string, metadata: JsonObject): Promise<void>;
  /**
   * Removes the checkpoints before the latest, but those it is built from and those the latest turn and run began at.
   * A thread with a live run or an open question is left as it is. Returns how many were removed. @throws THREAD_NOT_FOUND
   */
  keepLatest(owner: string, threadId: string): Promise<number>;
  /** A new thread with the same metadata and a copy of every checkpoint; returns its id. @throws THREAD_NOT_FOUND */
  copy(owner: string, threadId: string): Promise<string>;
}

export function createStateService(deps: {
  pool: Pool;
  checkpointPool: Pool;
  graphs: GraphRegistry;
  logger: Logger;
}): StateService {
  const { pool, checkpointPool, graphs } = deps;
  const reader = openReader(checkpointPool);

  /** Null when nothing ever ran there, and nobody said what would. */
  async function opened(place: StatePlace): Promise<DrivenGraph | null> {
    if (place.graphId === null) return null;
    assertGraph(graphs, place.graphId);
    return graphs.instantiate(place.graphId, reader, { configurable: place.configurable, access: 'threads.read' });
  }

  async function read(
    owner: string,
    threadId: string,
    options: Parameters<StateService['read']>[2] = {},
  ): Promise<StateJson> {
    const place = await statePlace(pool, owner, threadId);
    const graph = await opened(place);
    const { checkpoint = {}, subgraphs = false } = options;
    await assertCheckpoint(pool, place, checkpoint);
    if (graph === null) return EMPTY_STATE;
    return stateJson(await graph.getState(configOf(place, checkpoint), { subgraphs }));
  }

  return {
    read,
    async leftBy(run) {
      const { checkpointId, ...place } = await placeAfter(pool, run);
      if (checkpointId === null) return read(run.owner, run.thread_id);
      const graph = await opened(place);
      return graph === null
        ? EMPTY_STATE
        : stateJson(await graph.getState(configOf(place, { checkpoint_id: checkpointId })));
    },
    async history(owner, threadId, { limit, before, metadata, checkpoint = {} }) {
      const place = await statePlace(pool, owner, threadId);
      const graph = await opened(place);
      if (graph === null) return [];
      const { checkpoint_ns: ns = '' } = checkpoint;
      const options = {
        limit,
        ...(metadata === undefined ? {} : { filter: metadata }),
        ...(before === undefined ? {} : { before: configOf(place, { checkpoint_ns: ns, checkpoint_id: before }) }),
      };
      const states: StateJson[] = [];
      for await (const snapshot of graph.getStateHistory(configOf(place, checkpoint), options)) {
        states.push(stateJson(snapshot));
      }
      return states;
    },
    async update(owner, threadId, update, checkpoint = {}) {
      const place = await statePlace(pool, owner, threadId);
      const written = await editPlace(
        place,
        (graph) => stateUpdate(graph, configOf(place, checkpoint), update),
        (tx) => assertCheckpoint(tx, place, checkpoint),
      );
      const name = checkpointName(written);
      if (name === null) throw new Error(`an update of thread ${threadId} wrote no checkpoint`);
      return name;
    },
    async updateMany(owner, threadId, steps) {
      const place = await statePlace(pool, owner, threadId);
      await editPlace(place, (graph) => supersteps(graph, configOf(place, {}), steps));
    },
    async patch(owner, threadId, metadata) {
      const { graphId, ...place } = await statePlace(pool, owner, threadId);
      const patched = await edit(pool, { ...place, graphId: graphId ?? '', metadata: {} }, (_saver, tx) =>
        addMetadata(tx, place.lineageId, metadata),
      );
      if (patched) return;
      throw new RunledgerError('INVALID_REQUEST', `Thread ${threadId} has no checkpoint.`, { path: 'thread_id' });
    },
    async keepLatest(owner, threadId) {
      await statePlace(pool, owner, threadId);
      return pruneThread({ pool, graphs, keep: 1, logger: deps.logger }, threadId);
    },
    copy: (owner, threadId) => copyThread(pool, owner, threadId),
  };

  /**
   * What was asked at the tip is asked no more: LangGraph forgets it with the checkpoint it belonged to. `assertion` comes
   * before the graph is made: what follows a factory that hangs may come when the connection is somebody else's.
   */
  function editPlace<T>(
    place: StatePlace,
    work: (graph: DrivenGraph) => Promise<T>,
    assertion: (tx: Tx) => Promise<void> = async () => undefined,
  ): Promise<T> {
    const { graphId } = place;
    if (graphId === null) {
      throw new RunledgerError('INVALID_REQUEST', `Thread ${place.threadId} has no graph ID.`, { path: 'graph_id' });
    }
    assertGraph(graphs, graphId);
    const toGraph = async (saver: BaseCheckpointSaver, tx: Tx): Promise<T> => {
      await assertion(tx);
      const { configurable } = place;
      return work(await graphs.instantiate(graphId, saver, { configurable, access: 'threads.update' }));
    };
    return edit(checkpointPool, { ...place, graphId, metadata: place.configurable }, toGraph, (tx) =>
      closeInterrupts(tx, place.lineageId),
    );
  }
}

/** LangGraph would begin an empty state at a checkpoint it does not find, and an update would make that the thread's. */
async function assertCheckpoint(
  db: Queryable,
  { lineageId }: StatePlace,
  { checkpoint_ns, checkpoint_id }: CheckpointRef,
) {
  if (checkpoint_id === undefined || (await hasCheckpoint(db, lineageId, checkpoint_ns ?? '', checkpoint_id))) return;
  throw new RunledgerError('INVALID_REQUEST', 'The thread has no such checkpoint.', { path: 'checkpoint_id' });
}

function configOf(place: StatePlace, { checkpoint_ns, checkpoint_id, checkpoint_map }: CheckpointRef): object {
  return {
    configurable: {
      ...place.configurable,
      thread_id: place.lineageId,
      checkpoint_ns: checkpoint_ns ?? '',
      ...(checkpoint_id === undefined ? {} : { checkpoint_id }),
      ...(checkpoint_map === undefined ? {} : { checkpoint_map }),
    },
  };
}

function assertGraph(graphs: GraphRegistry, graphId: string): void {
  if (graphs.has(graphId)) return;
  throw new RunledgerError('GRAPH_NOT_FOUND', `Graph ${JSON.stringify(graphId)} not found`);
}

const COPY_THREAD = `
  update threads t
  set title = source.title, graph_id = source.graph_id, metadata = source.metadata, config = source.config,
      ttl_minutes = source.ttl_minutes, ttl_strategy = source.ttl_strategy,
      ttl_set_at = case when source.ttl_minutes is not null then clock_timestamp() end
  from threads source where source.id = $1::uuid and t.id = $2::uuid`;

/** Guard: the thread's row is held, so it is not deleted meanwhile. What runs on it goes on: its copy is of one moment. */
function copyThread(pool: Pool, owner: string, threadId: string): Promise<string> {
  return inTransaction(pool, async (tx) => {
    if ((await lockThread(tx, owner, threadId)) === null) throw threadNotFound();
    const { lineageId } = await statePlace(tx, owner, threadId);
    const id = randomUUID();
    await insertThreadIfNew(tx, { id, owner });
    await tx.query(COPY_THREAD, [threadId, id]);
    await copyCheckpoints(tx, lineageId, id);
    return id;
  });
}
