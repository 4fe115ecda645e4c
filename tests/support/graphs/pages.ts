/**
 * A graph of many steps without a model. Each step replaces one value of `configurable.bytes` characters that no compression
 * makes smaller, says a message, and takes `configurable.stepMs`; there are `configurable.count` of them in a run.
 */
import { randomBytes } from 'node:crypto';
import { AIMessage } from '@langchain/core/messages';
import { Annotation, END, MessagesAnnotation, START, StateGraph } from '@langchain/langgraph';
import type { GraphConfig } from '#src/graphs/registry.ts';

const State = Annotation.Root({ ...MessagesAnnotation.spec, step: Annotation<number>(), page: Annotation<string>() });

export function pages({ configurable }: GraphConfig) {
  const { count = 1, bytes = 64, stepMs = 0 } = configurable as { count?: number; bytes?: number; stepMs?: number };
  return new StateGraph(State)
    .addNode('opens', () => ({ step: 0 }))
    .addNode('turns', async ({ step }, { writer }) => {
      if (stepMs > 0) await new Promise((resolve) => setTimeout(resolve, stepMs));
      writer?.({ step });
      const page = randomBytes(Math.ceil(bytes / 2)).toString('hex');
      return { step: step + 1, page, ...(step === 0 ? { messages: [new AIMessage('turning')] } : {}) };
    })
    .addEdge(START, 'opens')
    .addEdge('opens', 'turns')
    .addConditionalEdges('turns', ({ step }) => (step < count ? 'turns' : END), ['turns', END]);
}
