/** The lineage around an execution: repaired before it begins, closed after it ended badly. */
import type { Logger } from 'pino';
import { openSaver } from '#src/graphs/checkpoints.ts';
import { closeLineage } from '#src/graphs/closing.ts';
import type { GraphRegistry } from '#src/graphs/graph.ts';
import type { Pool } from '#src/postgres/pool.ts';
import type { Run } from './run.ts';
import { openRunSaver } from './run-saver.ts';
import { orStopped } from './stop.ts';
import { needsRepair, type PartialText } from './takeover.ts';
import { withoutUserFacts } from './user-facts.ts';

export interface LineageDeps {
  pool: Pool;
  checkpointPool: Pool;
  graphs: GraphRegistry;
  logger: Logger;
}

/** How long making a graph may take here: a user's factory may hang. */
const REPAIR_MS = 10_000;

/**
 * Leaves a history that the next turn can start from; or, when the run brought an answer the graph did not get on with, the
 * lineage as it waited, so that the question can be answered again. Where the run has left nothing the lineage is as it
 * was, too: it may wait for the answer to a question that is still open. Through a handle of its own, because the graph's
 * is closed; the run still owns its epoch. When it fails, the next run of the lineage repairs what is left.
 */
export async function closeAfter(
  deps: LineageDeps,
  run: Run,
  ending: { leftCheckpoint: boolean; partials: PartialText[] },
  lost: () => void,
): Promise<void> {
  const saver = openRunSaver(deps.checkpointPool, run, lost);
  try {
    if (run.command !== null && !ending.leftCheckpoint) return await saver.forgetAnswers(run.lineage_id);
    if (!ending.leftCheckpoint && ending.partials.length === 0) return;
    const { configurable = {} } = run.config;
    const made = deps.graphs.instantiate(run.graph_id, saver.saver, { configurable, access: 'threads.update' });
    const graph = await orStopped(made, AbortSignal.timeout(REPAIR_MS));
    const { partials } = ending;
    await closeLineage(graph, saver.saver, { id: run.lineage_id, runId: run.id, partials, ended: true });
  } catch (error) {
    deps.logger.warn({ err: error, runId: run.id }, 'lineage not closed; the next run repairs it');
  } finally {
    await saver.close();
  }
}

/**
 * What a crash left undone is done when the next run of the lineage starts. An answer's lineage waits as it should, and nodes
 * that are still to run may be what somebody has set by an edit, or a breakpoint from before the run that ended badly. The
 * metadata of what is written does not name the run: LangGraph takes a checkpoint of the same run for one to resume from,
 * and would pass over the run's input.
 */
export async function repairBefore(deps: LineageDeps, run: Run, lost: () => void): Promise<void> {
  if (run.command !== null || !(await needsRepair(deps.pool, run))) return;
  const { configurable = {} } = run.config;
  const metadata = { ...withoutUserFacts(configurable), graph_id: run.graph_id };
  const saver = openSaver(deps.checkpointPool, { runId: run.id, epoch: run.epoch, metadata }, lost);
  try {
    const made = deps.graphs.instantiate(run.graph_id, saver.saver, { configurable, access: 'threads.update' });
    const graph = await orStopped(made, AbortSignal.timeout(REPAIR_MS));
    await closeLineage(graph, saver.saver, { id: run.lineage_id, runId: run.id, partials: [], ended: false });
  } catch (error) {
    deps.logger.warn({ err: error, runId: run.id }, 'lineage not repaired before the run');
  } finally {
    await saver.close();
  }
}
