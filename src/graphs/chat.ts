/** The graph `chat`: an agent that talks, calculates, and asks before it sends an e-mail. Also the example of a graph factory. */
import { type AIMessage, type AIMessageChunk, type BaseMessage, SystemMessage } from '@langchain/core/messages';
import {
  Annotation,
  DeltaChannel,
  END,
  type Messages,
  messagesDeltaReducer,
  Send,
  START,
  StateGraph,
} from '@langchain/langgraph';
import { CHAT_TOOLS } from './chat-tools.ts';
import type { GraphConfig, GraphRuntime } from './registry.ts';
import { runToolTask, storedAnswer, type ToolTask, toolTasks } from './tool-calls.ts';

/**
 * The one place that says how messages are kept: as differences, so that what a turn writes does not grow with the thread.
 * Snapshots are rare, because each writes the whole list: every 50 updates would still be quadratic.
 */
const ChatState = Annotation.Root({
  messages: () => new DeltaChannel<BaseMessage[], Messages>(messagesDeltaReducer, { snapshotFrequency: 1_000 }),
});

const SYSTEM_PROMPT = new SystemMessage(
  'You are a helpful assistant. Use the calculator for arithmetic. Sending an e-mail asks the person first; do not ask again yourself.',
);
/** The model is sent this many turns, so that a turn costs the same however long the thread is. */
const CONTEXT_TURNS = 20;

/** A factory, as config.yaml may name one: called for every run with its `configurable` and what the server lends. */
export function graph(config: GraphConfig, runtime: GraphRuntime) {
  const base = runtime.createModel(config.configurable);
  if (base.bindTools === undefined) throw new TypeError('the chat graph needs a model that can call tools');
  const model = base.bindTools(CHAT_TOOLS);

  return new StateGraph(ChatState)
    .addNode('agent', async ({ messages }, nodeConfig) => {
      const answer = await model.invoke([SYSTEM_PROMPT, ...recentTurns(messages)], nodeConfig);
      return { messages: [storedAnswer(answer as AIMessageChunk)] };
    })
    .addNode('tools', async (task: ToolTask, nodeConfig) => ({
      messages: [await runToolTask(CHAT_TOOLS, task, nodeConfig)],
    }))
    .addEdge(START, 'agent')
    .addConditionalEdges('agent', afterAgent, ['tools', END])
    .addEdge('tools', 'agent');
}

function afterAgent({ messages }: typeof ChatState.State): Send[] | typeof END {
  const tasks = toolTasks(messages.at(-1) as AIMessage);
  return tasks.length === 0 ? END : tasks.map((task) => new Send('tools', task));
}

/** The last turns, whole: a turn begins with a person's message, so no tool call is parted from its result. */
function recentTurns(messages: BaseMessage[]): BaseMessage[] {
  let turns = 0;
  const from = messages.findLastIndex((message) => message.type === 'human' && ++turns === CONTEXT_TURNS);
  return from === -1 ? messages : messages.slice(from);
}
