/** A model that thinks, in the forms providers have for it; every turn first tells what the state holds of the turns before. */
import { AIMessage, AIMessageChunk } from '@langchain/core/messages';
import { ChatGenerationChunk } from '@langchain/core/outputs';
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

/** A provider that tells with every chunk what it has counted so far. */
class Counting extends FakeStreamingChatModel {
  override async *_streamResponseChunks(
    ...[, , manager]: Parameters<FakeStreamingChatModel['_streamResponseChunks']>
  ): AsyncGenerator<ChatGenerationChunk> {
    for (const [text, output] of [
      ['one ', 1],
      ['two ', 20],
      ['three', 40],
    ] as const) {
      const usage_metadata = { input_tokens: 100, output_tokens: output, total_tokens: 100 + output };
      const message = Object.assign(new AIMessageChunk(text), { usage_metadata });
      const chunk = new ChatGenerationChunk({ text, message });
      yield chunk;
      await manager?.handleLLMNewToken(text, undefined, undefined, undefined, undefined, { chunk });
    }
  }
}

/** 100 tokens in, 40 out, told as 1, 20, 40. */
export function counting() {
  const model = new Counting({});
  return new StateGraph(MessagesAnnotation)
    .addNode('speaks', async ({ messages }, node) => ({ messages: [await model.invoke(messages, node)] }))
    .addEdge(START, 'speaks');
}
