/** A run that kills the process that executes it, every time: a graph that no worker survives. */
import { MessagesAnnotation, START, StateGraph } from '@langchain/langgraph';

export const poison = new StateGraph(MessagesAnnotation)
  .addNode('kills', () => {
    process.kill(process.pid, 'SIGKILL');
    return new Promise<never>(() => undefined);
  })
  .addEdge(START, 'kills');
