/**
 * Work that takes long, in the graph itself or in a subgraph (`configurable.place`): a model call, a tool that calls a service
 * with the run's signal, and one that does not heed it. `configurable.url` is the service.
 */
import { AIMessage } from '@langchain/core/messages';
import { tool } from '@langchain/core/tools';
import { type LangGraphRunnableConfig, MessagesAnnotation, START, StateGraph } from '@langchain/langgraph';
import { ToolNode } from '@langchain/langgraph/prebuilt';
import { z } from 'zod';
import type { GraphConfig, GraphRuntime } from '#src/graphs/registry.ts';

type Settings = { place?: 'parent' | 'subgraph'; url?: string };

export function working(config: GraphConfig, runtime: GraphRuntime) {
  const { place, url = '' } = config.configurable as Settings;
  const model = runtime.createModel(config.configurable);

  const heeding = tool(
    async (_input, { signal }: LangGraphRunnableConfig) => (await fetch(url, { signal: signal ?? null })).text(),
    { name: 'heeding', schema: z.looseObject({}) },
  );
  const deaf = tool(
    async (_input, { writer }: LangGraphRunnableConfig) => {
      const text = await (await fetch(url)).text();
      writer?.('a word after the end');
      return text;
    },
    { name: 'deaf', schema: z.looseObject({}) },
  );

  const agent = new StateGraph(MessagesAnnotation)
    .addNode('agent', async ({ messages }, node) => ({ messages: [await model.invoke(messages, node)] }))
    .addNode('tools', new ToolNode([heeding, deaf]))
    // A run that goes on after its stop calls the service again.
    .addNode('afterwards', async () => {
      await fetch(`${url}/afterwards`);
      return { messages: [new AIMessage('went on')] };
    })
    .addEdge(START, 'agent')
    .addConditionalEdges('agent', ({ messages }) => (callsTools(messages.at(-1)) ? 'tools' : 'afterwards'))
    .addEdge('tools', 'afterwards');
  if (place !== 'subgraph') return agent;
  return new StateGraph(MessagesAnnotation).addNode('inner', agent.compile()).addEdge(START, 'inner');
}

function callsTools(message: unknown): boolean {
  return typeof message === 'object' && message !== null && 'tool_calls' in message
    ? Array.isArray(message.tool_calls) && message.tool_calls.length > 0
    : false;
}
