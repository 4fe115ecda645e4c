/** The chat models of this server: OpenAI-compatible, or the demo model when neither a key nor an address is set. */
import type { BaseChatModel } from '@langchain/core/language_models/chat_models';
import { AIMessageChunk, type BaseMessageChunk } from '@langchain/core/messages';
import { ChatOpenAICompletions, type OpenAIClient } from '@langchain/openai';
import type { JsonObject } from '#src/events/event.ts';
import { DemoChatModel } from './demo-model.ts';
import { createModelFetch } from './model-fetch.ts';

export interface ModelConfig {
  apiKey: string | null;
  /** Base URL of an OpenAI-compatible API; null = OpenAI's own. */
  baseUrl: string | null;
  name: string;
  /** Longest wait for the next chunk (reasoning counts). */
  chunkTimeoutMs: number;
  /** Longest duration of a whole call. */
  callTimeoutMs: number;
}

/** Servers without authentication still want the header. */
const NO_KEY = 'none';
/** The client's own timeout must not fire before ours, which says what happened. */
const CLIENT_TIMEOUT_MARGIN_MS = 60_000;

/** True when there is neither a key nor an address, so the scripted demo model answers. */
export function usesDemoModel(model: Pick<ModelConfig, 'apiKey' | 'baseUrl'>): boolean {
  return model.apiKey === null && model.baseUrl === null;
}

/**
 * A chat model for one run. It streams, keeps reasoning in `additional_kwargs.reasoning_content`, reports usage, never retries
 * (the run does), and ends with ModelStalledError when a limit of `model` is passed; the run's abort reaches its socket.
 * @param options.configurable of the run; a non-empty string `model` in it names another model of the same provider
 */
export function createChatModel(options: { model: ModelConfig; configurable?: JsonObject }): BaseChatModel {
  const { model, configurable } = options;
  if (usesDemoModel(model)) return new DemoChatModel({});
  const named = configurable?.model;
  return new CompatibleChatModel({
    model: typeof named === 'string' && named !== '' ? named : model.name,
    apiKey: model.apiKey ?? NO_KEY,
    streaming: true,
    streamUsage: true,
    maxRetries: 0,
    timeout: model.callTimeoutMs + CLIENT_TIMEOUT_MARGIN_MS,
    configuration: {
      baseURL: model.baseUrl ?? undefined,
      fetch: createModelFetch(model),
      logLevel: 'off', // it would write to stderr; what fails is logged by the run
    },
  });
}

type RawChunk = OpenAIClient.Chat.Completions.ChatCompletionChunk;
type Role = OpenAIClient.Chat.ChatCompletionRole;
interface Delta {
  role?: Role;
  reasoning_content?: unknown;
  reasoning?: unknown;
}

/** ChatOpenAI (chat completions) for providers that are only nearly like OpenAI. */
class CompatibleChatModel extends ChatOpenAICompletions {
  /**
   * - Ids: providers repeat them (some draw from a thousand), and two messages with one id become one in the state. Without an id
   *   LangChain gives the message the id of its call, streamed and stored alike.
   * - Response metadata: the running usage of a chunk would be added up; the finish reason and the model's name would be lost.
   * - A first chunk without a role, and reasoning under the name `reasoning`, are understood.
   */
  protected override _convertCompletionsDeltaToBaseMessageChunk(
    delta: Delta,
    raw: RawChunk,
    defaultRole?: Role,
  ): BaseMessageChunk {
    const chunk = super._convertCompletionsDeltaToBaseMessageChunk(delta, raw, defaultRole ?? 'assistant');
    if (!(chunk instanceof AIMessageChunk)) return chunk;
    delete chunk.id;
    delete chunk.lc_kwargs.id;
    chunk.response_metadata = responseMetadata(delta, raw);
    const reasoning = delta.reasoning_content ?? delta.reasoning;
    if (typeof reasoning === 'string') chunk.additional_kwargs.reasoning_content = reasoning;
    else delete chunk.additional_kwargs.reasoning_content;
    return chunk;
  }

  /** Would download a tokenizer to guess what the provider reports anyway. */
  protected override async _getEstimatedTokenCountFromPrompt(): Promise<number> {
    return 0;
  }

  protected override async _getNumTokensFromGenerations(): Promise<number> {
    return 0;
  }
}

/** Told once each: the provider with the first chunk, the rest with the last. */
function responseMetadata(delta: Delta, raw: RawChunk): Record<string, unknown> {
  const finish = raw.choices[0]?.finish_reason;
  if (finish == null) return delta.role === undefined ? {} : { model_provider: 'openai' };
  return {
    finish_reason: finish,
    model_name: raw.model,
    ...(raw.system_fingerprint ? { system_fingerprint: raw.system_fingerprint } : {}),
  };
}
