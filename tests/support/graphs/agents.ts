/**
 * Agents whose tools call a service, one task per tool call, so that every execution is counted outside the server.
 * `configurable.url` is the service and `configurable.key` begins the path of all its calls.
 */
import { randomBytes } from 'node:crypto';
import type { AIMessage, AIMessageChunk, BaseMessage } from '@langchain/core/messages';
import { tool } from '@langchain/core/tools';
import {
  Annotation,
  DeltaChannel,
  END,
  interrupt,
  type LangGraphRunnableConfig,
  type Messages,
  MessagesAnnotation,
  messagesDeltaReducer,
  Send,
  START,
  StateGraph,
} from '@langchain/langgraph';
import { z } from 'zod';
import type { GraphConfig, GraphRuntime } from '#src/graphs/registry.ts';
import { runToolTask, storedAnswer, type ToolTask, toolTasks } from '#src/graphs/tool-calls.ts';

type Settings = { url?: string; key?: string };

const Differences = Annotation.Root({
  messages: () => new DeltaChannel<BaseMessage[], Messages>(messagesDeltaReducer, { snapshotFrequency: 1_000 }),
});

/** Keeps its messages as whole values. */
export const agent = (config: GraphConfig, runtime: GraphRuntime) =>
  withNodes(new StateGraph(MessagesAnnotation) as unknown as StateGraph<typeof Differences.spec>, config, runtime);

/** Keeps its messages as differences, as the graph `chat` does. */
export const deltaAgent = (config: GraphConfig, runtime: GraphRuntime) =>
  withNodes(new StateGraph(Differences) as unknown as StateGraph<typeof Differences.spec>, config, runtime);

function toolsOf({ url = '', key = '' }: Settings) {
  const numbered = z.object({ n: z.number() });
  const work = tool(
    async ({ n }, { signal }: LangGraphRunnableConfig) => {
      const answer = await fetch(`${url}/${key}/${n}`, { signal: signal ?? null });
      return `${n}: ${await answer.text()}`;
    },
    { name: 'work', schema: numbered },
  );
  const ask = tool(
    async ({ n }) => {
      const decision = interrupt({ question: n });
      await fetch(`${url}/${key}/acted-${n}?ms=0`);
      return `${n}: ${JSON.stringify(decision)}`;
    },
    { name: 'ask', schema: numbered },
  );
  const big = tool(({ n }) => randomBytes(n * 768 * 1024).toString('base64'), {
    name: 'big',
    description: 'Returns n MB of text that no compression makes much smaller.',
    schema: numbered,
  });
  return [work, ask, big];
}

function withNodes(graph: StateGraph<typeof Differences.spec>, config: GraphConfig, runtime: GraphRuntime) {
  const tools = toolsOf(config.configurable as Settings);
  const model = runtime.createModel(config.configurable);
  return graph
    .addNode('agent', async ({ messages }, node) => ({
      messages: [storedAnswer((await model.invoke(messages, node)) as AIMessageChunk)],
    }))
    .addNode('tools', async (task: ToolTask, node) => ({ messages: [await runToolTask(tools, task, node)] }))
    .addEdge(START, 'agent')
    .addConditionalEdges(
      'agent',
      ({ messages }) => {
        const tasks = toolTasks(messages.at(-1) as AIMessage);
        return tasks.length === 0 ? END : tasks.map((task) => new Send('tools', task));
      },
      ['tools', END],
    )
    .addEdge('tools', 'agent');
}
