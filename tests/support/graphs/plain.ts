/** Graphs without a model, one export per form that config.yaml allows, and exports that are no graph. */
import { AIMessage } from '@langchain/core/messages';
import { MemorySaver, MessagesAnnotation, START, StateGraph } from '@langchain/langgraph';
import type { GraphConfig, GraphRuntime } from '#src/graphs/registry.ts';

function echoGraph(prefix: string) {
  return new StateGraph(MessagesAnnotation)
    .addNode('echo', ({ messages }) => ({ messages: [new AIMessage(`${prefix}${messages.at(-1)?.text}`)] }))
    .addEdge(START, 'echo');
}

export const uncompiled = echoGraph('uncompiled: ');
export const compiled = echoGraph('compiled: ').compile();
/** Brings its own checkpointer, which the server replaces. */
export const withOwnSaver = echoGraph('own: ').compile({ checkpointer: new MemorySaver() });
export const promised = Promise.resolve(echoGraph('promised: '));

/** As LangChain's `createAgent` gives it: the graph is inside. */
export const agent = { graph: echoGraph('agent: ').compile(), invoke: () => undefined };

/** A factory that looks at the run's configurable. */
export function factory(config: GraphConfig) {
  return echoGraph(`${String(config.configurable.greeting ?? 'factory')}: `);
}

export async function asyncFactory(config: GraphConfig) {
  return factory(config).compile();
}

/** A factory whose graph says what it was made for. */
export function tellingFactory(_config: GraphConfig, { accessContext, executionRuntime }: GraphRuntime) {
  return echoGraph(`${JSON.stringify({ accessContext, executionRuntime })} `);
}

/** Two messages without an id in one update, and one more from the next node. */
export const idless = new StateGraph(MessagesAnnotation)
  .addNode('pair', () => ({ messages: [new AIMessage('one'), new AIMessage('two')] }))
  .addNode('last', () => ({ messages: new AIMessage('three') }))
  .addEdge(START, 'pair')
  .addEdge('pair', 'last')
  .compile();

export const notAGraph = { nodes: [] };
export const rejected = Promise.reject(new Error('postgres://user:secret@db')); // pragma: the text must not be shown
rejected.catch(() => undefined); // loaded by tests only; unhandled otherwise
export const doesNotCompile = new StateGraph(MessagesAnnotation).addNode('lonely', () => ({}));

export function failingFactory(): never {
  throw new Error('postgres://user:secret@db');
}

export function emptyFactory(): null {
  return null;
}
