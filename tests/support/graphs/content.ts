/** A model that thinks, in the forms providers have for it; every turn first tells what the state holds of the turns before. */
import { AIMessage, AIMessageChunk } from '@langchain/core/messages';
import { FakeStreamingChatModel } from '@langchain/core/utils/testing';
import { MessagesAnnotation, START, StateGraph } from '@langchain/langgraph';
import type { GraphConfig, GraphRuntime } from '#src/graphs/registry.ts';

/** Content blocks with their place, as Anthropic's API streams them. */
const BLOCKS = [
  { type: 'thinking', thinking: 'let me ', index: 0 },
  { type: 'thinking', thinking: 'see', index: 0 },
  { type: 'text', text: 'it ', index: 1 },
  { type: 'text', text: 'is so', index: 1 },
];

export function thinking(config: GraphConfig, runtime: GraphRuntime) {
  const model =
    config.configurable.form === 'blocks'
      ? new FakeStreamingChatModel({ chunks: BLOCKS.map((block) => new AIMessageChunk({ content: [block] })) })
      : runtime.createModel(config.configurable);
  return new StateGraph(MessagesAnnotation)
    .addNode('recalls', ({ messages }, { writer }) => {
      const spoken = messages.filter((message) => AIMessage.isInstance(message));
      writer?.(
        spoken.map(({ content, additional_kwargs, usage_metadata }) => ({
          content,
          kwargs: additional_kwargs,
          usage: usage_metadata ?? null,
        })),
      );
      return {};
    })
    .addNode('speaks', async ({ messages }, node) => ({ messages: [await model.invoke(messages, node)] }))
    .addEdge(START, 'recalls')
    .addEdge('recalls', 'speaks');
}
