/**
 * A graph for clients that speak to the server from outside. What it does depends on the last human text: `slow N` streams N
 * words, 50 ms apart; `ask` asks a person and answers with what it is told; `fail` throws; `recall` reads the store; anything else streams five words.
 */

import type { CallbackManagerForLLMRun } from '@langchain/core/callbacks/manager';
import { BaseChatModel } from '@langchain/core/language_models/chat_models';
import { AIMessage, AIMessageChunk, type BaseMessage } from '@langchain/core/messages';
import { ChatGenerationChunk, type ChatResult } from '@langchain/core/outputs';
import { Annotation, END, interrupt, MessagesAnnotation, START, StateGraph } from '@langchain/langgraph';

class Words extends BaseChatModel {
  _llmType(): string {
    return 'words';
  }
  async _generate(): Promise<ChatResult> {
    throw new Error('only streamed');
  }
  override async *_streamResponseChunks(
    messages: BaseMessage[],
    _options: this['ParsedCallOptions'],
    run?: CallbackManagerForLLMRun,
  ): AsyncGenerator<ChatGenerationChunk> {
    const [, count] = /^slow (\d+)/.exec(String(messages.at(-1)?.content)) ?? [];
    for (let n = 0; n < Number(count ?? 5); n += 1) {
      if (count !== undefined) await new Promise((resolve) => setTimeout(resolve, 50));
      const text = `w${n} `;
      const chunk = new ChatGenerationChunk({ text, message: new AIMessageChunk({ content: text }) });
      yield chunk;
      await run?.handleLLMNewToken(text, undefined, undefined, undefined, undefined, { chunk });
    }
  }
}

class Refusal extends Error {
  override readonly name = 'Refusal';
}

const State = Annotation.Root({ ...MessagesAnnotation.spec, said: Annotation<string | null>() });

export const graph = new StateGraph(State)
  .addNode('gate', ({ messages }) => {
    const text = String(messages.filter((message) => message.getType() === 'human').at(-1)?.content);
    if (text === 'fail') throw new Refusal('I will not');
    return { said: text === 'ask' ? String(interrupt({ question: 'go on?' })) : null };
  })
  .addNode('speak', async ({ said, messages }, config) => {
    if (messages.at(-1)?.content === 'recall') {
      const item = await config.store?.get(['remote'], 'greeting');
      return { messages: [new AIMessage(String(item?.value.text))] };
    }
    if (said !== null) return { messages: [new AIMessage(`answer: ${said}`)] };
    const chunks = await new Words({}).stream(messages.slice(-1));
    let whole: AIMessageChunk | null = null;
    for await (const chunk of chunks) whole = whole === null ? chunk : whole.concat(chunk);
    return { messages: whole === null ? [] : [whole] };
  })
  .addEdge(START, 'gate')
  .addEdge('gate', 'speak')
  .addEdge('speak', END);
