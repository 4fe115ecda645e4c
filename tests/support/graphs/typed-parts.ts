/** Graphs whose schemas their definition gives in part, or not at all; and one that is in others. */
import { Annotation, START, StateGraph } from '@langchain/langgraph';
import { z } from 'zod';

const Inner = Annotation.Root({ plain: Annotation<string>(), inner: Annotation<'one' | 'two'>() });

const builder = new StateGraph(Inner).addNode('step', () => ({ inner: 'one' as const }));
builder.addEdge(START, 'step');

export const inner = builder.compile();

export function makeInner() {
  return builder.compile({ name: 'made' });
}

export const outer = new StateGraph(Annotation.Root({ plain: Annotation<string>() }))
  .addNode('inside', inner)
  .addEdge(START, 'inside');

export const zod = new StateGraph(z.object({ text: z.string() }))
  .addNode('step', () => ({ text: '' }))
  .addEdge(START, 'step');

export const mixed = new StateGraph(Inner, z.object({ model: z.string().describe('What answers.') }))
  .addNode('step', () => ({ inner: 'one' as const }))
  .addEdge(START, 'step');
