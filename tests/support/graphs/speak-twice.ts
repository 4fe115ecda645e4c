/** Says something in a step of its own as soon as `configurable.url` has answered, and then asks the model. */
import { AIMessage } from '@langchain/core/messages';
import { MessagesAnnotation, START, StateGraph } from '@langchain/langgraph';
import type { GraphConfig, GraphRuntime } from '#src/graphs/registry.ts';

export const GREETING = 'one moment';

export function speakTwice(config: GraphConfig, runtime: GraphRuntime) {
  const { url } = config.configurable as { url: string };
  const model = runtime.createModel(config.configurable);
  return new StateGraph(MessagesAnnotation)
    .addNode('greet', async () => {
      await fetch(url);
      return { messages: [new AIMessage(GREETING)] };
    })
    .addNode('answer', async ({ messages }, node) => ({ messages: [await model.invoke(messages, node)] }))
    .addEdge(START, 'greet')
    .addEdge('greet', 'answer');
}
