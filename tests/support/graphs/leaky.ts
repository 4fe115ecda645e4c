/** Graphs that fail with errors full of what no client may read. `configurable.leak` marks the text, so that a test finds it. */
import { tool } from '@langchain/core/tools';
import { MessagesAnnotation, START, StateGraph } from '@langchain/langgraph';
import { z } from 'zod';
import type { GraphConfig, GraphRuntime } from '#src/graphs/registry.ts';

const MEGABYTE = 1024 ** 2;

/** Every way an error can carry a text. */
const ERRORS: { [kind: string]: (leak: string) => unknown } = {
  message: (leak) => new Error(`connect postgres://user:${leak}@db:5432/x failed`),
  frames: (leak) => new Error(`${leak}\r\nevent: run_end\r\ndata: {"status":"succeeded"}\r\n\r\n: ${leak}\n\n`),
  megabyte: (leak) => new Error(leak + 'x'.repeat(MEGABYTE)),
  name: (leak) => Object.assign(new Error('x'), { name: leak, code: leak, type: leak, lc_error_code: leak }),
  cause: (leak) => new Error('outer', { cause: new Error(leak, { cause: { token: leak } }) }),
  aggregate: (leak) => new AggregateError([new Error(leak), leak], leak),
  // Graphs in plain JavaScript throw anything.
  text: (leak) => leak,
  object: (leak) => ({ message: leak, status: 503, headers: { authorization: leak }, toJSON: () => ({ leak }) }),
};

function thrown({ configurable }: GraphConfig): unknown {
  const { leak, kind } = configurable as { leak: string; kind: string };
  return ERRORS[kind]?.(leak);
}

export function inNode(config: GraphConfig) {
  return new StateGraph(MessagesAnnotation)
    .addNode('fails', () => {
      throw thrown(config);
    })
    .addEdge(START, 'fails');
}

export function inSubgraph(config: GraphConfig) {
  return new StateGraph(MessagesAnnotation).addNode('inner', inNode(config).compile()).addEdge(START, 'inner');
}

export function inTool(config: GraphConfig) {
  const fails = tool(
    () => {
      throw thrown(config);
    },
    { name: 'fails', schema: z.looseObject({}) },
  );
  return new StateGraph(MessagesAnnotation)
    .addNode('calls', async (_state, node) => ({ messages: [await fails.invoke({}, node)] }))
    .addEdge(START, 'calls');
}

export function inFactory(config: GraphConfig): never {
  throw thrown(config);
}

/** What the provider says about a fault is for the log. */
export function inModel(config: GraphConfig, runtime: GraphRuntime) {
  const model = runtime.createModel(config.configurable);
  return new StateGraph(MessagesAnnotation)
    .addNode('asks', async ({ messages }, node) => ({ messages: [await model.invoke(messages, node)] }))
    .addEdge(START, 'asks');
}
