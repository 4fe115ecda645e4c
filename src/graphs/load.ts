/** Finds the export of a graph entry and says what it is. */
import { pathToFileURL } from 'node:url';
import { inspect } from 'node:util';
import type { DrivenGraph } from './graph.ts';

/** A configured graph cannot be used. The message is ours and names the graph id; the cause is for the server's log only. */
export class GraphLoadError extends Error {
  override readonly name = 'GraphLoadError';
  readonly graphId: string;

  constructor(graphId: string, problem: string, cause?: unknown) {
    // The log shows only errors as causes, and a graph may throw anything.
    const error = cause === undefined || cause instanceof Error ? cause : new Error(inspect(cause));
    super(`graph "${graphId}": ${problem}`, error === undefined ? {} : { cause: error });
    this.graphId = graphId;
  }
}

/** A StateGraph that was not compiled. */
export interface Compilable {
  compile(options?: { checkpointer?: unknown }): DrivenGraph;
}

export type GraphExport =
  | { kind: 'compiled'; graph: DrivenGraph }
  | { kind: 'factory'; create: (config: unknown, runtime: unknown) => unknown };

/**
 * Imports the module (JavaScript, or TypeScript that Node can strip) and reads the export: a compiled graph, a StateGraph (compiled
 * here), an agent with a graph in it, a promise of one of these, or a factory function.
 * @throws GraphLoadError
 */
export async function loadGraphExport(graphId: string, file: string, exportName: string): Promise<GraphExport> {
  let module: Record<string, unknown>;
  try {
    module = await import(pathToFileURL(file).href);
  } catch (error) {
    throw new GraphLoadError(graphId, `the module ${file} could not be loaded`, error);
  }
  if (!(exportName in module)) throw new GraphLoadError(graphId, `${file} has no export "${exportName}"`);
  const value = await settled(graphId, `the export "${exportName}" is a promise that was rejected`, module[exportName]);
  if (typeof value === 'function') return { kind: 'factory', create: value as (config: unknown) => unknown };
  const graph = compiled(graphId, value);
  if (graph !== null) return { kind: 'compiled', graph };
  throw new GraphLoadError(
    graphId,
    `the export "${exportName}" of ${file} is neither a graph nor a function that makes one`,
  );
}

/**
 * A graph that can be driven: the value itself when it is compiled, the StateGraph compiled, the graph inside an agent (LangChain's
 * `createAgent`); null for anything else.
 */
export function compiled(graphId: string, value: unknown): DrivenGraph | null {
  if (isCompiled(value)) return value;
  if (typeof value === 'object' && value !== null && 'graph' in value && isCompiled(value.graph)) return value.graph;
  if (!isCompilable(value)) return null;
  try {
    return value.compile();
  } catch (error) {
    throw new GraphLoadError(graphId, 'the graph does not compile', error);
  }
}

async function settled(graphId: string, problem: string, value: unknown): Promise<unknown> {
  try {
    return await value;
  } catch (error) {
    throw new GraphLoadError(graphId, problem, error);
  }
}

/** LangGraph's own mark; also true for graphs of another copy of the library. */
function isCompiled(value: unknown): value is DrivenGraph {
  return typeof value === 'object' && value !== null && 'lg_is_pregel' in value && value.lg_is_pregel === true;
}

function isCompilable(value: unknown): value is Compilable {
  return typeof value === 'object' && value !== null && 'compile' in value && typeof value.compile === 'function';
}
