/** One graph for every way a run can end, beside those that only a model or a person can cause. */
import { AIMessage } from '@langchain/core/messages';
import { END, GraphInterrupt, interrupt, MessagesAnnotation, START, StateGraph } from '@langchain/langgraph';
import type { GraphConfig, GraphRuntime } from '#src/graphs/registry.ts';

/** Its text must reach no client. */
const SECRET_ERROR = 'postgres://user:secret@db/\r\nevent: run_end\r\ndata: {}\r\n\r\n';

export const throwing = new StateGraph(MessagesAnnotation)
  .addNode('fails', () => {
    throw new Error(SECRET_ERROR);
  })
  .addEdge(START, 'fails');

export function noGraph(): never {
  throw new Error(SECRET_ERROR);
}

export const endless = new StateGraph(MessagesAnnotation)
  .addNode('again', () => ({ messages: [new AIMessage('again')] }))
  .addEdge(START, 'again')
  .addEdge('again', 'again');

/** Ends in a way that no database takes: a question under an id with a NUL. */
export const unstorable = new StateGraph(MessagesAnnotation)
  .addNode('asks', () => {
    throw new GraphInterrupt([{ id: 'a\0b', value: 'sure?' }]);
  })
  .addEdge(START, 'asks');

/** Waits for the run's signal and for nothing else. */
export const waiting = new StateGraph(MessagesAnnotation)
  .addNode(
    'waits',
    (_state, { signal }) =>
      new Promise<never>((_resolve, reject) => {
        signal?.addEventListener('abort', () => reject(signal.reason), { once: true });
      }),
  )
  .addEdge(START, 'waits');

/** Says what a model says, then asks a person, and says what the person answered. */
export function asking(config: GraphConfig, runtime: GraphRuntime) {
  const model = runtime.createModel(config.configurable);
  return new StateGraph(MessagesAnnotation)
    .addNode('speaks', async ({ messages }, node) => ({ messages: [await model.invoke(messages, node)] }))
    .addNode('asks', () => ({ messages: [new AIMessage(`answered ${String(interrupt({ question: 'sure?' }))}`)] }))
    .addEdge(START, 'speaks')
    .addEdge('speaks', 'asks')
    .addEdge('asks', END);
}
