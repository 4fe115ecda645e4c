/** A LangChain model that gives exactly these chunks: for what providers do inside LangChain, not over HTTP. */
import type { CallbackManagerForLLMRun } from '@langchain/core/callbacks/manager';
import { BaseChatModel } from '@langchain/core/language_models/chat_models';
import type { AIMessageChunk, BaseMessage } from '@langchain/core/messages';
import { ChatGenerationChunk, type ChatResult } from '@langchain/core/outputs';

export class ChunkModel extends BaseChatModel {
  readonly #chunks: () => AIMessageChunk[];

  constructor(chunks: () => AIMessageChunk[]) {
    super({});
    this.#chunks = chunks;
  }

  override _llmType(): string {
    return 'chunks';
  }

  override async *_streamResponseChunks(
    _messages: BaseMessage[],
    _options: this['ParsedCallOptions'],
    runManager?: CallbackManagerForLLMRun,
  ): AsyncGenerator<ChatGenerationChunk> {
    for (const message of this.#chunks()) {
      const chunk = new ChatGenerationChunk({ message, text: message.text });
      yield chunk;
      await runManager?.handleLLMNewToken(message.text, undefined, undefined, undefined, undefined, { chunk });
    }
  }

  override async _generate(): Promise<ChatResult> {
    throw new Error('only streams');
  }
}
