/** Updates of a graph's state, with what the graph refuses told apart from what Postgres refuses. */
import { Command } from '@langchain/langgraph';
import { RunledgerError } from '#src/errors.ts';
import { Fenced } from '#src/graphs/checkpoints.ts';
import type { DrivenGraph } from '#src/graphs/graph.ts';
import { isConflict, isUnavailable } from '#src/postgres/sqlstate.ts';
import { commandOf } from './command.ts';
import type { StateUpdate } from './run.ts';

/** Returns the config of the checkpoint written. @throws INVALID_REQUEST when the graph refuses */
export function stateUpdate(graph: DrivenGraph, config: object, update: StateUpdate): Promise<unknown> {
  return refusedByGraph(() => graph.updateState(config, update.values, update.as_node));
}

/** One checkpoint per superstep. @throws INVALID_REQUEST when the graph refuses */
export function supersteps(graph: DrivenGraph, config: object, steps: StateUpdate[][]): Promise<unknown> {
  const forms = steps.map((updates) => ({
    updates: updates.map(({ values, command, as_node: asNode }) => ({
      values: command === undefined ? values : new Command(commandOf(command)),
      ...(asNode === undefined ? {} : { asNode }),
    })),
  }));
  return refusedByGraph(() => graph.bulkUpdateState(config, forms));
}

async function refusedByGraph<T>(work: () => Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (error) {
    if (error instanceof RunledgerError || error instanceof Fenced || isUnavailable(error) || isConflict(error)) {
      throw error;
    }
    throw new RunledgerError('INVALID_REQUEST', 'The graph does not take this update.', {
      path: 'values',
      cause: error,
    });
  }
}
