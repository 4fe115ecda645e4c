/** Chunks of streamed messages: one kind of text, or more than that. The hot path of a run. */
import type { EventOf, JsonObject, MessageFields } from '#src/events/event.ts';
import { toJson } from './json.ts';
import { type MessageView, type RawToolCallChunk, toolCallChunks, toolCalls } from './message-fields.ts';
import { readUsage } from './usage.ts';

/** What a chunk is when it is one kind of text only: the fields of a message.delta without its head. */
export type DeltaFields = Omit<EventOf<'message.delta'>, 'type' | 'm'>;

/** Response metadata already told for this message; providers repeat it in every chunk, and clients would concatenate it. */
export type ToldMetadata = Map<string, unknown>;

/** Usage travels as usage_metadata and run.usage. Summed over chunks, as clients do, a provider's running totals would be wrong. */
const USAGE_KEYS = new Set(['usage', 'token_usage', 'tokenUsage', 'estimatedTokenUsage']);

const BLOCK_TEXT: Record<string, { kind: 'text' | 'reasoning'; key: string }> = {
  text: { kind: 'text', key: 'text' },
  thinking: { kind: 'reasoning', key: 'thinking' },
  reasoning: { kind: 'reasoning', key: 'reasoning' },
};

/** The chunk as a delta; null when it holds more than one kind of text, or none. */
export function deltaOf(chunk: MessageView, told: ToldMetadata): DeltaFields | null {
  if (chunk.usage_metadata != null || hasNews(chunk.response_metadata, told)) return null;
  const calls = chunk.tool_call_chunks;
  if (calls !== undefined && calls.length > 0) {
    if (calls.length > 1 || !isEmpty(chunk.content)) return null;
    return onlyRepeatsCalls(chunk.additional_kwargs) ? argsDelta(calls[0]) : null;
  }
  if (chunk.tool_calls !== undefined && chunk.tool_calls.length > 0) return null;
  const reasoning = soleReasoning(chunk.additional_kwargs);
  if (reasoning === undefined) return null;
  if (reasoning !== '') return isEmpty(chunk.content) ? { kind: 'reasoning', text: reasoning } : null;
  if (typeof chunk.content === 'string') return chunk.content === '' ? null : { kind: 'text', text: chunk.content };
  return Array.isArray(chunk.content) && chunk.content.length === 1 ? blockDelta(chunk.content[0]) : null;
}

/**
 * All this chunk says, for a message.head or message.chunk; null when it says nothing. Marks its response metadata as told.
 */
export function chunkFields(chunk: MessageView, id: string, told: ToldMetadata): MessageFields | null {
  const fields: MessageFields = { id, type: chunk._getType(), content: toJson(chunk.content) };
  const { additional_kwargs: kwargs, tool_call_chunks: calls = [] } = chunk;
  if (typeof chunk.name === 'string') fields.name = chunk.name;
  if (typeof chunk.role === 'string') fields.role = chunk.role;
  const extra = filled(kwargs, calls.length > 0 ? 'tool_calls' : undefined);
  if (extra !== undefined) fields.additional_kwargs = extra;
  const news = tellNews(chunk.response_metadata, told);
  if (news !== undefined) fields.response_metadata = news;
  if (calls.length > 0) fields.tool_call_chunks = toolCallChunks(calls);
  else {
    const complete = toolCalls(chunk);
    if (complete.length > 0) fields.tool_calls = complete;
  }
  const usage = readUsage(chunk.usage_metadata);
  if (usage !== null) fields.usage_metadata = usage;
  return saysNothing(fields) ? null : fields;
}

/** The first chunk of a message; kept even when it says nothing yet, since it announces the message. */
export function headFields(chunk: MessageView, id: string, told: ToldMetadata): MessageFields {
  return chunkFields(chunk, id, told) ?? { id, type: chunk._getType(), content: '' };
}

function argsDelta(call: RawToolCallChunk | undefined): DeltaFields | null {
  if (call === undefined || call.id || call.name) return null;
  if (typeof call.index !== 'number' || typeof call.args !== 'string') return null;
  return { kind: 'tool_args', text: call.args, index: call.index };
}

function blockDelta(block: unknown): DeltaFields | null {
  if (typeof block !== 'object' || block === null || !('type' in block) || typeof block.type !== 'string') return null;
  const shape = BLOCK_TEXT[block.type];
  if (shape === undefined) return null;
  const { type, index, ...rest } = block as Record<string, unknown> & { type: string };
  const text = rest[shape.key];
  if (typeof text !== 'string' || Object.keys(rest).length !== 1) return null;
  if (index === undefined) return { kind: shape.kind, text, block: { type } };
  return typeof index === 'number' ? { kind: shape.kind, text, block: { index, type } } : null;
}

/** The reasoning text when nothing else is in the kwargs ('' when they are empty); undefined when there is more. */
function soleReasoning(kwargs: Record<string, unknown> | undefined): string | undefined {
  let reasoning = '';
  for (const key in kwargs) {
    const value = kwargs[key];
    if (value == null) continue;
    if (key !== 'reasoning_content' || typeof value !== 'string') return undefined;
    reasoning = value;
  }
  return reasoning;
}

/** @langchain/openai repeats a chunk's tool call parts in its kwargs. */
function onlyRepeatsCalls(kwargs: Record<string, unknown> | undefined): boolean {
  for (const key in kwargs) if (key !== 'tool_calls' && kwargs[key] != null) return false;
  return true;
}

function hasNews(metadata: Record<string, unknown> | undefined, told: ToldMetadata): boolean {
  for (const key in metadata) if (isNews(key, metadata[key], told)) return true;
  return false;
}

function tellNews(metadata: Record<string, unknown> | undefined, told: ToldMetadata): JsonObject | undefined {
  const news: JsonObject = {};
  for (const key in metadata) {
    const value = metadata[key];
    if (!isNews(key, value, told)) continue;
    told.set(key, value);
    news[key] = toJson(value);
  }
  return Object.keys(news).length > 0 ? news : undefined;
}

function isNews(key: string, value: unknown, told: ToldMetadata): boolean {
  if (value == null || USAGE_KEYS.has(key)) return false;
  return told.get(key) !== value;
}

function filled(record: Record<string, unknown> | undefined, without: string | undefined): JsonObject | undefined {
  const result: JsonObject = {};
  for (const key in record) if (key !== without && record[key] != null) result[key] = toJson(record[key]);
  return Object.keys(result).length > 0 ? result : undefined;
}

function isEmpty(content: unknown): boolean {
  return content === '' || content == null || (Array.isArray(content) && content.length === 0);
}

function saysNothing(fields: MessageFields): boolean {
  const { id, type, content, ...rest } = fields;
  return isEmpty(content) && Object.keys(rest).length === 0;
}
