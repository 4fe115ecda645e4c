/** The state a run leaves, for the webhook of a LangGraph client: read when the graph has ended and its saver is closed. */
import type { Logger } from 'pino';
import type { Json } from '#src/events/event.ts';
import { openReader } from '#src/graphs/checkpoints.ts';
import type { GraphRegistry } from '#src/graphs/graph.ts';
import { stateJson } from '#src/graphs/snapshot.ts';
import type { Pool } from '#src/postgres/pool.ts';
import type { Run } from './run.ts';
import { orStopped } from './stop.ts';

/** A user's factory may hang; the end of the run does not wait for it longer than this. */
const READ_MS = 10_000;

/** Null when nobody asks for it, or when it cannot be read: the end is told without it. */
export async function finalValues(
  deps: { checkpointPool: Pool; graphs: GraphRegistry; logger: Logger },
  run: Run,
): Promise<Json> {
  if (run.webhook === null || run.assistant_id === null) return null;
  const { configurable = {} } = run.config;
  const at = { configurable: { ...configurable, thread_id: run.lineage_id, checkpoint_ns: '' } };
  const read = async (): Promise<Json> => {
    const reader = openReader(deps.checkpointPool);
    const graph = await deps.graphs.instantiate(run.graph_id, reader, { configurable, access: 'threads.read' });
    return stateJson(await graph.getState(at)).values;
  };
  try {
    return await orStopped(read(), AbortSignal.timeout(READ_MS));
  } catch (error) {
    deps.logger.warn({ err: error, runId: run.id }, 'values for a webhook not readable; it goes without');
    return null;
  }
}
