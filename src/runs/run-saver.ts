/** The handle a run's checkpoints are written with. */
import { setImmediate as nextTurn } from 'node:timers/promises';
import { type Cursor, cursorOf } from '#src/events/cursor.ts';
import type { RunWriter } from '#src/events/writer.ts';
import { openSaver, type RunSaver } from '#src/graphs/checkpoints.ts';
import type { Pool } from '#src/postgres/pool.ts';
import type { LeaseGate } from './lease-gate.ts';
import type { Run } from './run.ts';
import { withoutUserFacts } from './user-facts.ts';

/**
 * A saver for this run in its epoch.
 * @param lost called when a write was refused because the run changed hands
 * @param driving of the saver a graph is driven with: where its parts are written, so that each checkpoint says up to which
 *   event its steps have told; and what a step has to pass before it begins
 */
export function openRunSaver(
  pool: Pool,
  run: Run,
  lost: () => void,
  driving?: { writer: RunWriter; gate: LeaseGate },
): RunSaver {
  const { metadata: given, configurable } = run.config;
  const metadata = {
    ...given,
    ...withoutUserFacts(configurable),
    ...(run.assistant_id === null ? {} : { assistant_id: run.assistant_id }),
    run_id: run.id,
    graph_id: run.graph_id,
    thread_id: run.lineage_id,
  };
  const owner = {
    runId: run.id,
    epoch: run.epoch,
    metadata,
    ...(driving && { logged: () => loggedBy(driving.writer, run.epoch), goOn: () => driving.gate.pass() }),
  };
  return openSaver(pool, owner, lost);
}

/**
 * The last id of what the graph has told so far. LangGraph hands its parts over before it puts the checkpoint they lead
 * to; whoever reads them here has had its turn after one turn of the event loop, or waits for room.
 */
async function loggedBy(writer: RunWriter, epoch: number): Promise<Cursor | null> {
  await nextTurn();
  const room = writer.room();
  if (room !== undefined) {
    await room;
    await nextTurn();
  }
  return writer.given === 0 ? null : cursorOf(epoch, writer.given - 1);
}
