/** Graphs that ask a person twice, without a model: in two nodes, and twice in one node. What was answered is in the state. */
import { AIMessage } from '@langchain/core/messages';
import { Annotation, END, interrupt, START, StateGraph } from '@langchain/langgraph';

const State = Annotation.Root({
  messages: Annotation<unknown[]>({ reducer: (all, more) => [...all, ...more], default: () => [] }),
  answers: Annotation<string[]>({ reducer: (all, more) => [...all, ...more], default: () => [] }),
});

const ask = (question: string): string => `${question}:${String(interrupt({ question }))}`;

export const twoNodes = new StateGraph(State)
  .addNode('first', () => ({ answers: [ask('one')] }))
  .addNode('second', () => ({ answers: [ask('two')] }))
  .addNode('last', ({ answers }) => ({ messages: [new AIMessage(answers.join(','))] }))
  .addEdge(START, 'first')
  .addEdge('first', 'second')
  .addEdge('second', 'last')
  .addEdge('last', END);

export const oneNode = new StateGraph(State)
  .addNode('both', () => ({ answers: [ask('one'), ask('two')] }))
  .addNode('last', ({ answers }) => ({ messages: [new AIMessage(answers.join(','))] }))
  .addEdge(START, 'both')
  .addEdge('both', 'last')
  .addEdge('last', END);
