// A user's graph in plain JavaScript.
import { AIMessage } from '@langchain/core/messages';
import { MessagesAnnotation, START, StateGraph } from '@langchain/langgraph';

export const graph = new StateGraph(MessagesAnnotation)
  .addNode('echo', ({ messages }) => ({ messages: [new AIMessage(`js: ${messages.at(-1).text}`)] }))
  .addEdge(START, 'echo');
