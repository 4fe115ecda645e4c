/** Tools and nodes that say what nobody should, in every place a graph can say something. */
import { AIMessage } from '@langchain/core/messages';
import { tool } from '@langchain/core/tools';
import { Annotation, interrupt, MessagesAnnotation, START, StateGraph } from '@langchain/langgraph';
import { ToolNode } from '@langchain/langgraph/prebuilt';
import { z } from 'zod';
import type { GraphConfig, GraphRuntime } from '#src/graphs/registry.ts';
import { HOSTILE_MEGABYTE, HOSTILE_TEXT, HOSTILE_VALUE } from '#tests/support/hostile-text.ts';

const anything = z.looseObject({});

const TOOLS = [
  tool(() => HOSTILE_TEXT, { name: 'text', schema: anything }),
  tool(() => HOSTILE_MEGABYTE, { name: 'megabyte', schema: anything }),
  tool(() => ({ value: HOSTILE_VALUE }), { name: 'object', schema: anything }),
  tool(
    () => {
      throw new Error(HOSTILE_TEXT);
    },
    { name: 'fails', schema: anything },
  ),
  tool(() => [HOSTILE_TEXT, HOSTILE_VALUE] as const, {
    name: 'artifact',
    schema: anything,
    responseFormat: 'content_and_artifact',
  }),
];

/** A model that calls tools by the prebuilt node, as users' graphs do. */
export function tools(config: GraphConfig, runtime: GraphRuntime) {
  const model = runtime.createModel(config.configurable);
  return new StateGraph(MessagesAnnotation)
    .addNode('agent', async ({ messages }, node) => ({ messages: [await model.invoke(messages, node)] }))
    .addNode('tools', new ToolNode(TOOLS))
    .addEdge(START, 'agent')
    .addConditionalEdges('agent', ({ messages }) => (hasCalls(messages.at(-1)) ? 'tools' : '__end__'))
    .addEdge('tools', 'agent');
}

function hasCalls(message: unknown): boolean {
  return message instanceof AIMessage && (message.tool_calls?.length ?? 0) > 0;
}

const State = Annotation.Root({
  ...MessagesAnnotation.spec,
  /** A plain text beside the messages: savers may keep it in another place than objects. */
  note: Annotation<string>(),
  facts: Annotation<unknown>(),
});

/** Without a model: custom events, a state of plain texts, a subgraph with a strange name, a question, an answer. */
export function nodes() {
  const inner = new StateGraph(State)
    .addNode('talks', (_state, { writer }) => {
      for (const part of [HOSTILE_TEXT, HOSTILE_VALUE, HOSTILE_MEGABYTE]) writer?.(part);
      return { note: HOSTILE_TEXT, facts: HOSTILE_VALUE };
    })
    .addEdge(START, 'talks')
    .compile();
  return new StateGraph(State)
    .addNode('inner\r\nevent end\r\n\r\n\u2028', inner)
    .addNode('asks', () => ({
      messages: [new AIMessage({ id: 'an id', name: HOSTILE_TEXT, content: JSON.stringify(interrupt(HOSTILE_VALUE)) })],
    }))
    .addEdge(START, 'inner\r\nevent end\r\n\r\n\u2028')
    .addEdge('inner\r\nevent end\r\n\r\n\u2028', 'asks');
}

/** Returns what the checkpoint holds of the turn before, so that a client can see that nothing was changed on its way. */
export function remembers() {
  return new StateGraph(State)
    .addNode('compares', ({ note, facts, messages }, { writer }) => {
      writer?.({ note: note ?? null, facts: facts ?? null, texts: messages.map((message) => message.text) });
      return {
        note: HOSTILE_TEXT,
        facts: HOSTILE_VALUE,
        messages: [new AIMessage({ id: HOSTILE_TEXT, content: HOSTILE_TEXT })],
      };
    })
    .addEdge(START, 'compares');
}
