/** What a graph is, for people who look at it: its drawing, and the JSON schemas its own definition gives. */
import { toJsonSchema } from '@langchain/core/utils/json_schema';
import { isInteropZodSchema } from '@langchain/core/utils/types';
import type { Json, JsonObject } from '#src/events/event.ts';
import type { Pool } from '#src/postgres/pool.ts';
import { openReader } from './checkpoints.ts';
import type { DrivenGraph, GraphRegistry } from './graph.ts';
import { toJson } from './json.ts';
import { type SchemaTools, schemaToolsFor } from './own-langgraph.ts';

/** JSON schemas; null where the definition gives none: plain annotations have no types at run time. */
export interface GraphSchemas {
  state: Json;
  input: Json;
  output: Json;
  config: Json;
}

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

/** @param deps.fileOf the module of a graph, whose own copy of LangGraph knows the marks on its schemas */
export function createGraphDescriber(deps: {
  pool: Pool;
  graphs: GraphRegistry;
  fileOf?: (graphId: string) => string | undefined;
}): GraphDescriber {
  const toolsOf = (graphId: string) => schemaToolsFor(deps.fileOf?.(graphId));
  const reader = openReader(deps.pool);
  const open = (graphId: string, configurable: JsonObject): Promise<DrivenGraph> =>
    deps.graphs.instantiate(graphId, reader, { configurable });
  return {
    async drawing(graphId, configurable, xray) {
      const graph = await open(graphId, configurable);
      const drawing = await graph.getGraphAsync({ configurable, ...(xray === false ? {} : { xray }) });
      return toJson(drawing.toJSON());
    },
    schemas: async (graphId, configurable) => schemasOf(await open(graphId, configurable), await toolsOf(graphId)),
    async subgraphs(graphId, configurable, { namespace, recurse }) {
      const graph = await open(graphId, configurable);
      const tools = await toolsOf(graphId);
      const found: { [namespace: string]: GraphSchemas } = {};
      for await (const [name, inner] of graph.getSubgraphsAsync(namespace, recurse))
        found[name] = schemasOf(inner, tools);
      return found;
    },
  };
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
