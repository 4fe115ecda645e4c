/** Graphs that cannot be made, for tests in which none is executed. */
import type { GraphRegistry } from '#src/graphs/graph.ts';

export const NO_GRAPHS: GraphRegistry = {
  ids: () => [],
  has: () => false,
  contextOf: () => 'checkpoint',
  instantiate: () => Promise.reject(new Error('there is no graph')),
};
