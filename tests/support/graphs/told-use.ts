/** A factory whose graph shows what it was made for, wherever one looks: in its drawing, in what runs and updates write, in the state as it is read. */
import { Annotation, START, StateGraph } from '@langchain/langgraph';
import type { ServerRuntime } from '@langchain/langgraph-sdk';

export function graph(_config: object, runtime: ServerRuntime<{ tenant: string }>) {
  const { accessContext, executionRuntime } = runtime;
  const use = executionRuntime === null ? accessContext : `${accessContext} of ${executionRuntime.context?.tenant}`;
  const written = Annotation<string[]>({ reducer: (all) => [...all, use], default: () => [] });
  // No checkpoint has it, so it is read as the graph that reads begins it.
  const read =
    accessContext === 'threads.read' ? { read: Annotation<string>({ reducer: (a) => a, default: () => use }) } : {};
  // An update is made as the node that ran last, so a thread's graphs need the same.
  const node = accessContext === 'assistants.read' ? accessContext : 'step';
  return new StateGraph(Annotation.Root({ written, ...read }))
    .addNode(node, () => ({ written: [] }))
    .addEdge(START, node);
}
