/** A graph that tells what it is told of the user, and of nothing else. */
import { Annotation, START, StateGraph } from '@langchain/langgraph';

const State = Annotation.Root({ asked: Annotation<string>(), user: Annotation<unknown>() });

export const graph = new StateGraph(State)
  .addNode('tell', (_state, config) => {
    const { langgraph_auth_user, langgraph_auth_user_id, langgraph_auth_permissions } = config.configurable ?? {};
    return { user: { langgraph_auth_user, langgraph_auth_user_id, langgraph_auth_permissions } };
  })
  .addEdge(START, 'tell');
