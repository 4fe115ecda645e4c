/** Graphs of many steps without a model: each step is counted by a service, or holds up the event loop of its process. */
import { existsSync } from 'node:fs';
import { AIMessage } from '@langchain/core/messages';
import { Annotation, END, MessagesAnnotation, START, StateGraph } from '@langchain/langgraph';
import type { GraphConfig } from '#src/graphs/registry.ts';

const State = Annotation.Root({
  ...MessagesAnnotation.spec,
  done: Annotation<number[]>({ reducer: (all, more) => [...all, ...more], default: () => [] }),
});

/** `configurable`: url and key of the service, how many steps, and how long one takes in ms. */
export function counted({ configurable }: GraphConfig) {
  const { url, key, count, stepMs } = configurable as { url: string; key: string; count: number; stepMs: number };
  return new StateGraph(State)
    .addNode('step', async ({ done }, { signal }) => {
      const n = done.length;
      await fetch(`${url}/${key}/${n}?ms=${stepMs}`, { signal: signal ?? null });
      return { done: [n] };
    })
    .addNode('last', ({ done }) => ({ messages: [new AIMessage(done.join(','))] }))
    .addEdge(START, 'step')
    .addConditionalEdges('step', ({ done }) => (done.length < count ? 'step' : 'last'), ['step', 'last'])
    .addEdge('last', END);
}

const LOOK_EVERY_MS = 50;

/** Nothing else of the process runs until `file` is there, as with a long calculation; but it costs no CPU. */
function block(file: string): void {
  const cell = new Int32Array(new SharedArrayBuffer(4));
  while (!existsSync(file)) Atomics.wait(cell, 0, 0, LOOK_EVERY_MS);
}

/** In the process `configurable.pid` its second node blocks the event loop until `configurable.file` is there. */
export function blocking({ configurable }: GraphConfig) {
  const { pid, file } = configurable as { pid: number; file: string };
  return new StateGraph(State)
    .addNode('first', () => ({ done: [process.pid], messages: [new AIMessage('first')] }))
    .addNode('second', () => {
      if (process.pid === pid) block(file);
      return { done: [process.pid], messages: [new AIMessage(`by ${process.pid}`)] };
    })
    .addNode('last', ({ done }) => ({ messages: [new AIMessage(`of ${done.join(',')}`)] }))
    .addEdge(START, 'first')
    .addEdge('first', 'second')
    .addEdge('second', 'last')
    .addEdge('last', END);
}
