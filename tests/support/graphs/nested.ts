/** A model in the parent graph, one in a subgraph, and tools in both that wait until they are told to stop. */
import type { AIMessageChunk } from '@langchain/core/messages';
import { type BaseMessage, ToolMessage } from '@langchain/core/messages';
import { interrupt, MessagesAnnotation, START, StateGraph } from '@langchain/langgraph';
import type { GraphConfig, GraphRuntime } from '#src/graphs/registry.ts';

const State = MessagesAnnotation;
type State = typeof State.State;

/** outer (model) -> inner (a subgraph with a model) -> END. Stops before END to ask when configurable.ask is set. */
export function models(config: GraphConfig, runtime: GraphRuntime) {
  const model = runtime.createModel(config.configurable);
  const inner = new StateGraph(State)
    .addNode('think', async ({ messages }: State, node) => ({ messages: [await model.invoke(messages, node)] }))
    .addNode('ask', () => (config.configurable.ask === true ? { messages: [answerOf(interrupt('inner?'))] } : {}))
    .addEdge(START, 'think')
    .addEdge('think', 'ask')
    .compile();
  return new StateGraph(State)
    .addNode('outer', async ({ messages }: State, node) => ({ messages: [await model.invoke(messages, node)] }))
    .addNode('inner', inner)
    .addEdge(START, 'outer')
    .addEdge('outer', 'inner');
}

function answerOf(value: unknown): BaseMessage {
  return new ToolMessage({ content: String(value), tool_call_id: 'ask' });
}

/** What the waiting tools saw; by the key in configurable.key. */
export const toolLog = new Map<string, { place: string; started: boolean; aborted: boolean }[]>();

/** Two nodes at once, one of them in a subgraph, that wait for the run's signal like a tool in the middle of a request. */
export function waiting(config: GraphConfig) {
  const log: { place: string; started: boolean; aborted: boolean }[] = [];
  toolLog.set(String(config.configurable.key), log);
  const wait = (place: string) => async (_state: State, node: { signal?: AbortSignal }) => {
    const entry = { place, started: true, aborted: false };
    log.push(entry);
    await new Promise((_resolve, reject) => {
      node.signal?.addEventListener('abort', () => {
        entry.aborted = true;
        reject(node.signal?.reason);
      });
    });
    return {};
  };
  const inner = new StateGraph(State).addNode('tool', wait('inner')).addEdge(START, 'tool').compile();
  return new StateGraph(State)
    .addNode('inner', inner)
    .addNode('tool', wait('outer'))
    .addEdge(START, 'inner')
    .addEdge(START, 'tool');
}

/** A node that makes two model calls no one sees (nostream) and one that streams, and returns only the last. */
export function quiet(config: GraphConfig, runtime: GraphRuntime) {
  const model = runtime.createModel(config.configurable);
  return new StateGraph(State)
    .addNode('plan', async ({ messages }: State, node) => {
      await model.invoke(messages, { ...node, tags: ['nostream'] });
      await model.invoke(messages, { ...node, tags: ['nostream'] });
      return { messages: [(await model.invoke(messages, node)) as AIMessageChunk] };
    })
    .addEdge(START, 'plan');
}
