/** The scripted model that answers when no model is configured: it shows streaming, a tool and an approval without a key. */
import { randomUUID } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import type { CallbackManagerForLLMRun } from '@langchain/core/callbacks/manager';
import type { BaseLanguageModelInput } from '@langchain/core/language_models/base';
import {
  BaseChatModel,
  type BaseChatModelCallOptions,
  type BaseChatModelParams,
  type BindToolsInput,
} from '@langchain/core/language_models/chat_models';
import { AIMessageChunk, type BaseMessage } from '@langchain/core/messages';
import { ChatGenerationChunk, type ChatResult } from '@langchain/core/outputs';
import type { Runnable } from '@langchain/core/runnables';
import { type DemoReply, demoReply } from './demo-script.ts';

/** Fast enough not to bore, slow enough to see it stream. */
const WORD_DELAY_MS = 12;
const ARGS_PIECE_CHARS = 12;

interface DemoCallOptions extends BaseChatModelCallOptions {
  tools?: string[];
}

export class DemoChatModel extends BaseChatModel<DemoCallOptions, AIMessageChunk> {
  readonly #wordDelayMs: number;

  constructor(fields: BaseChatModelParams & { wordDelayMs?: number }) {
    super(fields);
    this.#wordDelayMs = fields.wordDelayMs ?? WORD_DELAY_MS;
  }

  override _llmType(): string {
    return 'demo';
  }

  override getLsParams(options: this['ParsedCallOptions']) {
    return { ...super.getLsParams(options), ls_provider: 'runledger', ls_model_name: 'demo' };
  }

  override bindTools(
    tools: BindToolsInput[],
    options?: Partial<DemoCallOptions>,
  ): Runnable<BaseLanguageModelInput, AIMessageChunk, DemoCallOptions> {
    const names = tools.flatMap((tool) => ('name' in tool && typeof tool.name === 'string' ? [tool.name] : []));
    return this.withConfig({ ...options, tools: names } as Partial<DemoCallOptions>) as Runnable<
      BaseLanguageModelInput,
      AIMessageChunk,
      DemoCallOptions
    >;
  }

  override async *_streamResponseChunks(
    messages: BaseMessage[],
    options: this['ParsedCallOptions'],
    runManager?: CallbackManagerForLLMRun,
  ): AsyncGenerator<ChatGenerationChunk> {
    for (const message of demoChunks(demoReply(messages, options.tools ?? []), messages)) {
      await sleep(this.#wordDelayMs, undefined, { signal: options.signal });
      const text = typeof message.content === 'string' ? message.content : '';
      const chunk = new ChatGenerationChunk({ message, text });
      yield chunk;
      await runManager?.handleLLMNewToken(text, undefined, undefined, undefined, undefined, { chunk });
    }
  }

  override async _generate(
    messages: BaseMessage[],
    options: this['ParsedCallOptions'],
    runManager?: CallbackManagerForLLMRun,
  ): Promise<ChatResult> {
    let whole: ChatGenerationChunk | undefined;
    for await (const chunk of this._streamResponseChunks(messages, options, runManager)) {
      whole = whole === undefined ? chunk : whole.concat(chunk);
    }
    return { generations: whole === undefined ? [] : [whole] };
  }
}

function* demoChunks(reply: DemoReply, messages: BaseMessage[]): Generator<AIMessageChunk> {
  const words = reply.text.match(/\s*\S+/g) ?? [];
  for (const content of words) yield new AIMessageChunk({ content });
  for (const [index, call] of reply.toolCalls.entries()) {
    yield toolCallPart({ index, id: `call_${randomUUID()}`, name: call.name, args: '' });
    const args = JSON.stringify(call.args);
    for (let at = 0; at < args.length; at += ARGS_PIECE_CHARS) {
      yield toolCallPart({ index, args: args.slice(at, at + ARGS_PIECE_CHARS) });
    }
  }
  const input = messages.reduce((sum, message) => sum + message.text.split(/\s+/).length, 0);
  const last = new AIMessageChunk({
    content: '',
    response_metadata: { finish_reason: reply.toolCalls.length > 0 ? 'tool_calls' : 'stop', model_name: 'demo' },
  });
  const usage_metadata = { input_tokens: input, output_tokens: words.length, total_tokens: input + words.length };
  yield Object.assign(last, { usage_metadata });
}

function toolCallPart(part: { index: number; id?: string; name?: string; args: string }): AIMessageChunk {
  return new AIMessageChunk({ content: '', tool_call_chunks: [{ ...part, type: 'tool_call_chunk' }] });
}
