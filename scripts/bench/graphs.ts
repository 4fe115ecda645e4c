/** The graphs that are measured: the same objects in the bare loop and in the server. */
import { AIMessage, type BaseMessage } from '@langchain/core/messages';
import {
  Annotation,
  DeltaChannel,
  END,
  type LangGraphRunnableConfig,
  MessagesAnnotation,
  messagesDeltaReducer,
  START,
  StateGraph,
} from '@langchain/langgraph';
import type { GraphConfig, GraphRuntime } from '#src/graphs/registry.ts';

type Messages = BaseMessage[];

/** One call of a streaming model, as plain as it gets. */
export function chat(config: GraphConfig, runtime: GraphRuntime) {
  const model = runtime.createModel(config.configurable);
  return new StateGraph(MessagesAnnotation)
    .addNode('model', async ({ messages }, nodeConfig) => ({ messages: [await model.invoke(messages, nodeConfig)] }))
    .addEdge(START, 'model')
    .addEdge('model', END);
}

/** No model, one step: what is left is the cost of a run itself. */
export const trivial = new StateGraph(MessagesAnnotation)
  .addNode('reply', () => ({ messages: [new AIMessage('ok')] }))
  .addEdge(START, 'reply')
  .addEdge('reply', END)
  .compile();

/** About 1 KB that does not compress, as an answer of a model. */
function someText(): string {
  return Array.from({ length: 32 }, () => Math.random().toString(36).slice(2).padEnd(32, 'x')).join(' ');
}

/** A conversation without a model, 1 KB an answer, kept as a whole list (`notes`) or as differences (`deltaNotes`). */
export const notes = new StateGraph(MessagesAnnotation)
  .addNode('reply', () => ({ messages: [new AIMessage(someText())] }))
  .addEdge(START, 'reply')
  .addEdge('reply', END)
  .compile();

export const deltaNotes = new StateGraph(
  Annotation.Root({
    messages: () => new DeltaChannel<Messages, Messages>(messagesDeltaReducer, { snapshotFrequency: 1_000 }),
  }),
)
  .addNode('reply', () => ({ messages: [new AIMessage(someText())] }))
  .addEdge(START, 'reply')
  .addEdge('reply', END)
  .compile();

/** A long log in a short time: `configurable.events` parts of the node's own. */
export const burst = new StateGraph(MessagesAnnotation)
  .addNode('write', async (_state, config: LangGraphRunnableConfig) => {
    const events = Number(config.configurable?.events ?? 0);
    for (let index = 0; index < events; index += 1) {
      config.writer?.({ index, text: 'an event of the size of a token with its frame' });
      if (index % 100 === 99) await new Promise((resolve) => setImmediate(resolve));
    }
    return { messages: [new AIMessage('ok')] };
  })
  .addEdge(START, 'write')
  .addEdge('write', END)
  .compile();
