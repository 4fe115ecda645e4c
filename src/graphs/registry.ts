/**
 * The graphs of config.yaml. Each entry names a module and an export of it, which is one of:
 *
 * - a compiled graph, or a StateGraph that is not compiled yet (also a promise of one);
 * - a factory `(config, runtime) => graph`, sync or async, called for every run, read and update. `config` is `{configurable}` of
 *   the run; `runtime.createModel(configurable?)` gives the chat model this server is configured for (OPENAI_API_KEY,
 *   OPENAI_BASE_URL, OPENAI_MODEL, the timeouts of config.yaml, `configurable.model`), or the demo model;
 *   `runtime.accessContext` and `runtime.executionRuntime` say what the graph is for.
 *
 * A graph needs no checkpointer: the server attaches its own, also in place of one the graph was compiled with.
 */
import type { BaseChatModel } from '@langchain/core/language_models/chat_models';
import type { BaseCheckpointSaver } from '@langchain/langgraph-checkpoint';
import type { Json, JsonObject } from '#src/events/event.ts';
import type { DrivenGraph, GraphRegistry, GraphUse } from './graph.ts';
import { compiled, type GraphExport, GraphLoadError, loadGraphExport } from './load.ts';
import { createChatModel, type ModelConfig } from './models.ts';

export interface GraphEntry {
  /** Absolute path of the module. */
  file: string;
  exportName: string;
  context: 'checkpoint' | 'transcript';
}

/** What a factory gets as its first argument. */
export interface GraphConfig {
  configurable: JsonObject;
}

/** What a factory gets as its second argument: LangGraph's `ServerRuntime`, and what the server lends to graphs. */
export type GraphRuntime = {
  readonly createModel: (configurable?: JsonObject) => BaseChatModel;
} & (
  | {
      readonly accessContext: 'threads.create_run';
      readonly executionRuntime: { readonly context: Json | undefined };
    }
  // To look at an assistant or a thread, or to write a thread's state: what only a run needs (connections, tools) need not be made.
  | { readonly accessContext: 'assistants.read' | 'threads.read' | 'threads.update'; readonly executionRuntime: null }
);

export interface GraphRegistryOptions {
  graphs: { readonly [graphId: string]: GraphEntry };
  model: ModelConfig;
}

/**
 * Loads every configured graph.
 * @throws GraphLoadError for the first that cannot be loaded; the start must stop
 */
export async function createGraphRegistry(options: GraphRegistryOptions): Promise<GraphRegistry> {
  const createModel: GraphRuntime['createModel'] = (configurable) =>
    createChatModel({ model: options.model, ...(configurable === undefined ? {} : { configurable }) });
  const runtimeOf = (use: GraphUse): GraphRuntime =>
    use.access === 'threads.create_run'
      ? { createModel, accessContext: use.access, executionRuntime: { context: use.context } }
      : { createModel, accessContext: use.access, executionRuntime: null };
  const entries = new Map(Object.entries(options.graphs));
  const loaded = new Map<string, GraphExport>();
  for (const [id, { file, exportName }] of entries) loaded.set(id, await loadGraphExport(id, file, exportName));

  return {
    ids: () => [...entries.keys()],
    has: (graphId) => entries.has(graphId),
    contextOf(graphId) {
      const entry = entries.get(graphId);
      if (entry === undefined) throw new GraphLoadError(graphId, 'is not configured');
      return entry.context;
    },
    async instantiate(graphId, saver, { configurable, ...use }) {
      const found = loaded.get(graphId);
      if (found === undefined) throw new GraphLoadError(graphId, 'is not configured');
      if (found.kind === 'compiled') return withSaver(found.graph, saver);
      return withSaver(await callFactory(graphId, found, { configurable }, runtimeOf(use)), saver);
    },
  };
}

async function callFactory(
  graphId: string,
  factory: Extract<GraphExport, { kind: 'factory' }>,
  config: GraphConfig,
  runtime: GraphRuntime,
): Promise<DrivenGraph> {
  let made: unknown;
  try {
    made = await factory.create(config, runtime);
  } catch (error) {
    throw new GraphLoadError(graphId, 'its factory failed', error);
  }
  const graph = compiled(graphId, made);
  if (graph === null) throw new GraphLoadError(graphId, 'its factory did not return a graph');
  return graph;
}

/**
 * The graph with another saver, without touching the shared one: LangGraph reads `checkpointer` from the object it is called on, and
 * lends it to subgraphs through the config. Everything else is the shared graph's, by inheritance; LangGraph's own copy
 * (withConfig) would replace a channel in an object both copies share.
 */
function withSaver(graph: DrivenGraph, saver: BaseCheckpointSaver): DrivenGraph {
  return Object.create(graph, {
    checkpointer: { value: saver, writable: true, enumerable: true, configurable: true },
  }) as DrivenGraph;
}
