/** What a graph is, for people who look at it: its drawing, and the JSON schemas its definition gives, or else its static types. */
import { toJsonSchema } from '@langchain/core/utils/json_schema';
import { isInteropZodSchema } from '@langchain/core/utils/types';
import type { Json, JsonObject } from '#src/events/event.ts';
import type { Pool } from '#src/postgres/pool.ts';
import { openReader } from './checkpoints.ts';
import type { DrivenGraph, GraphRegistry, GraphSchemas } from './graph.ts';
import { toJson } from './json.ts';
import { type SchemaTools, schemaToolsFor } from './own-langgraph.ts';
import type { StaticSchemas } from './static-schemas.ts';

/** For each, `configurable` is what a factory makes the graph from. @throws GraphLoadError */
export interface GraphDescriber {
  /** Nodes and edges. `xray`: nested graphs drawn too, to that depth or, for true, wholly. */
  drawing(graphId: string, configurable: JsonObject, xray: boolean | number): Promise<Json>;
  schemas(graphId: string, configurable: JsonObject): Promise<GraphSchemas>;
  /** Nested graphs by their namespace. `namespace` limits it to one; `recurse` goes on into them. */
  subgraphs(
    graphId: string,
    configurable: JsonObject,
    which: { namespace: string | undefined; recurse: boolean },
  ): Promise<{ [namespace: string]: GraphSchemas }>;
}

/**
 * @param deps.fileOf       the module of a graph, whose own copy of LangGraph knows the marks on its schemas
 * @param deps.staticSchemas  asked for what a graph's definition leaves open: plain annotations have no types at run time
 */
export function createGraphDescriber(deps: {
  pool: Pool;
  graphs: GraphRegistry;
  fileOf?: (graphId: string) => string | undefined;
  staticSchemas?: Pick<StaticSchemas, 'of'>;
}): GraphDescriber {
  const toolsOf = (graphId: string) => schemaToolsFor(deps.fileOf?.(graphId));
  const reader = openReader(deps.pool);
  const open = (graphId: string, configurable: JsonObject): Promise<DrivenGraph> =>
    deps.graphs.instantiate(graphId, reader, { configurable, access: 'assistants.read' });
  async function completed(graphId: string, namespace: string, own: GraphSchemas): Promise<GraphSchemas> {
    if (deps.staticSchemas === undefined || isComplete(own)) return own;
    const types = (await deps.staticSchemas.of(graphId))?.[namespace];
    if (types === undefined) return own;
    return {
      state: own.state ?? types.state,
      input: own.input ?? types.input,
      output: own.output ?? types.output,
      config: own.config ?? types.config,
    };
  }
  return {
    async drawing(graphId, configurable, xray) {
      const graph = await open(graphId, configurable);
      const drawing = await graph.getGraphAsync({ configurable, ...(xray === false ? {} : { xray }) });
      return toJson(drawing.toJSON());
    },
    async schemas(graphId, configurable) {
      const graph = await open(graphId, configurable);
      return completed(graphId, '', schemasOf(graph, await toolsOf(graphId)));
    },
    async subgraphs(graphId, configurable, { namespace, recurse }) {
      const graph = await open(graphId, configurable);
      const tools = await toolsOf(graphId);
      const found: { [namespace: string]: GraphSchemas } = {};
      for await (const [name, inner] of graph.getSubgraphsAsync(namespace, recurse)) {
        // A node may name several graphs; it is known by its first.
        found[name] ??= await completed(graphId, name, schemasOf(inner, tools));
      }
      return found;
    },
  };
}

/** Without a configuration, too: most graphs have none, and a definition does not tell that from one of plain annotations. */
function isComplete({ state, input, output }: GraphSchemas): boolean {
  return state !== null && input !== null && output !== null;
}

/** From LangGraph's StateSchema, from Zod with LangGraph's own marks, or from plain Zod; the first that says anything. */
function schemasOf(graph: DrivenGraph, tools: SchemaTools): GraphSchemas {
  return fromStateSchema(builderOf(graph)) ?? fromMarkedZod(graph, tools) ?? fromZod(builderOf(graph));
}

interface Builder {
  _schemaRuntimeDefinition?: unknown;
  _inputRuntimeDefinition?: unknown;
  _outputRuntimeDefinition?: unknown;
  _configRuntimeSchema?: unknown;
}

function builderOf(graph: DrivenGraph): Builder {
  return (graph as { builder?: Builder }).builder ?? {};
}

interface StateSchemaLike {
  getJsonSchema(): unknown;
  getInputJsonSchema(): unknown;
}

function fromStateSchema(builder: Builder): GraphSchemas | null {
  const [state, input, output] = [
    builder._schemaRuntimeDefinition,
    builder._inputRuntimeDefinition,
    builder._outputRuntimeDefinition,
  ].map((definition) => (isStateSchema(definition) ? definition : null));
  const any = state ?? input ?? output;
  if (any == null) return null;
  return {
    state: jsonOrNull((state ?? any).getJsonSchema()),
    input: jsonOrNull((input ?? state ?? any).getInputJsonSchema()),
    output: jsonOrNull((output ?? state ?? any).getJsonSchema()),
    config: zodSchema(builder._configRuntimeSchema),
  };
}

function fromMarkedZod(graph: DrivenGraph, tools: SchemaTools): GraphSchemas | null {
  const [state, input, output, config] = [
    tools.getUpdateTypeSchema,
    tools.getInputTypeSchema,
    tools.getOutputTypeSchema,
    tools.getConfigTypeSchema,
  ].map((schema) => jsonOrNull(schema(graph)));
  if (state == null && input == null && output == null && config == null) return null;
  return { state: state ?? null, input: input ?? null, output: output ?? null, config: config ?? null };
}

function fromZod(builder: Builder): GraphSchemas {
  const state = zodSchema(builder._schemaRuntimeDefinition);
  return {
    state,
    input: zodSchema(builder._inputRuntimeDefinition) ?? withoutRequired(state),
    output: zodSchema(builder._outputRuntimeDefinition) ?? state,
    config: zodSchema(builder._configRuntimeSchema),
  };
}

function isStateSchema(value: unknown): value is StateSchemaLike {
  return typeof value === 'object' && value !== null && 'getJsonSchema' in value && 'getInputJsonSchema' in value;
}

function zodSchema(definition: unknown): Json {
  return isInteropZodSchema(definition) ? toJson(toJsonSchema(definition)) : null;
}

/** Every channel may be left out of an input. */
function withoutRequired(state: Json): Json {
  if (typeof state !== 'object' || state === null || Array.isArray(state)) return null;
  const { required: _required, ...rest } = state;
  return rest;
}

function jsonOrNull(value: unknown): Json {
  return value == null ? null : toJson(value);
}
