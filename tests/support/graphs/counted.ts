/**
 * A graph whose every node run is told to somebody outside the server: `configurable.url` gets a POST of
 * `{tag, node, step}` before the node does anything. `configurable.tag` names the run; `nodeMs` is how long a counting
 * node takes.
 */
import { type LangGraphRunnableConfig, MessagesAnnotation, START, StateGraph } from '@langchain/langgraph';
import type { GraphConfig, GraphRuntime } from '#src/graphs/registry.ts';

type Settings = { url?: string; tag?: string; nodeMs?: number };

export function counted(config: GraphConfig, runtime: GraphRuntime) {
  const { url = '', tag = '', nodeMs = 0 } = config.configurable as Settings;
  const model = runtime.createModel(config.configurable);

  async function tell(node: string, settings: LangGraphRunnableConfig): Promise<void> {
    const body = JSON.stringify({ tag, node, step: settings.metadata?.langgraph_step ?? null });
    await fetch(url, { method: 'POST', headers: { 'content-type': 'application/json' }, body });
    if (nodeMs > 0) await new Promise((resolve) => setTimeout(resolve, nodeMs));
  }

  return new StateGraph(MessagesAnnotation)
    .addNode('before', async (_state, settings) => {
      await tell('before', settings);
      return {};
    })
    .addNode('speaks', async ({ messages }, settings) => {
      await tell('speaks', settings);
      return { messages: [await model.invoke(messages, settings)] };
    })
    .addNode('after', async (_state, settings) => {
      await tell('after', settings);
      return {};
    })
    .addEdge(START, 'before')
    .addEdge('before', 'speaks')
    .addEdge('speaks', 'after');
}
