/**
 * LangChain messages as JSON, fields picked by hand. Messages are recognised by shape, not by class: a user's graph may
 * bring its own copy of @langchain/core.
 *
 * The form is the same in every event: `{id, type, content, ...}` with `type` one of LangChain's (human, ai, tool, system, remove,
 * generic, ...), and `role` (generic only), `name`, `additional_kwargs`, `response_metadata`, `tool_calls`,
 * `invalid_tool_calls`, `tool_call_chunks`, `usage_metadata`, `tool_call_id`, `status`, `artifact` only when they hold something.
 */
import { randomUUID } from 'node:crypto';
import type { Json, JsonObject, MessageFields, ToolCall, ToolCallChunk } from '#src/events/event.ts';
import { toJson } from './json.ts';
import { readUsage } from './usage.ts';

/** What we read of a LangChain message or chunk. */
export interface MessageView {
  id?: string | undefined;
  name?: string | undefined;
  role?: unknown;
  content: unknown;
  additional_kwargs?: Record<string, unknown> | undefined;
  response_metadata?: Record<string, unknown> | undefined;
  tool_calls?: RawToolCall[] | undefined;
  invalid_tool_calls?: unknown[] | undefined;
  tool_call_chunks?: RawToolCallChunk[] | undefined;
  usage_metadata?: unknown;
  tool_call_id?: unknown;
  status?: unknown;
  artifact?: unknown;
  _getType(): string;
}

export interface RawToolCall {
  id?: string | null | undefined;
  name: string;
  args: unknown;
}

export interface RawToolCallChunk {
  index?: number | string | null | undefined;
  id?: string | null | undefined;
  name?: string | null | undefined;
  args?: string | null | undefined;
}

/** True for a LangChain message or message chunk of any copy of @langchain/core. */
export function isMessage(value: unknown): value is MessageView {
  return typeof value === 'object' && value !== null && '_getType' in value && typeof value._getType === 'function';
}

/** True for a chunk: something that can be concatenated with the next one. */
export function isChunk(message: MessageView): boolean {
  return 'concat' in message && typeof message.concat === 'function';
}

/** All a message holds. A message without an id gets a new one: no client could address it otherwise. */
export function messageFields(message: MessageView): MessageFields {
  const fields: MessageFields = {
    id: message.id ?? randomUUID(),
    type: message._getType(),
    content: toJson(message.content),
  };
  if (typeof message.role === 'string') fields.role = message.role;
  if (typeof message.name === 'string') fields.name = message.name;
  setObject(fields, 'additional_kwargs', message.additional_kwargs);
  setObject(fields, 'response_metadata', message.response_metadata);
  const calls = toolCalls(message);
  if (calls.length > 0) fields.tool_calls = calls;
  if (isFilled(message.invalid_tool_calls)) fields.invalid_tool_calls = objects(message.invalid_tool_calls);
  const usage = readUsage(message.usage_metadata);
  if (usage !== null) fields.usage_metadata = usage;
  if (typeof message.tool_call_id === 'string') fields.tool_call_id = message.tool_call_id;
  if (typeof message.status === 'string') fields.status = message.status;
  if (message.artifact != null) fields.artifact = toJson(message.artifact, convertMessages);
  return fields;
}

/** The complete tool calls of a message; empty when it has none. */
export function toolCalls(message: MessageView): ToolCall[] {
  if (!isFilled(message.tool_calls)) return [];
  return message.tool_calls.map((call) => ({
    id: typeof call.id === 'string' ? call.id : null,
    name: String(call.name),
    args: toJson(call.args),
  }));
}

/** Tool call chunks without the fields this chunk does not say anything about. */
export function toolCallChunks(chunks: RawToolCallChunk[]): ToolCallChunk[] {
  return chunks.map((chunk) => ({
    ...(typeof chunk.index === 'number' ? { index: chunk.index } : {}),
    ...(chunk.id ? { id: chunk.id } : {}),
    ...(chunk.name ? { name: chunk.name } : {}),
    ...(typeof chunk.args === 'string' ? { args: chunk.args } : {}),
  }));
}

/** Any value of a graph as JSON, the messages in it as MessageFields; each one found is also given to `found`. */
export function partJson(value: unknown, found?: (message: MessageView) => void): Json {
  if (found === undefined) return toJson(value, convertMessages);
  return toJson(value, (object) => {
    if (!isMessage(object)) return undefined;
    found(object);
    return messageFields(object) as unknown as Json;
  });
}

/** LangChain's own event as JSON: like partJson, but a chunk keeps the parts of tool calls that it brings. */
export function eventJson(event: unknown): Json {
  return toJson(event, (object) => {
    if (!isMessage(object)) return undefined;
    const chunks = isFilled(object.tool_call_chunks)
      ? { tool_call_chunks: toolCallChunks(object.tool_call_chunks) }
      : {};
    return { ...messageFields(object), ...chunks } as unknown as Json;
  });
}

/** The text of a message's content: a string as it is, of content blocks the text ones. */
export function contentText(content: unknown): string {
  if (typeof content === 'string') return content;
  if (!Array.isArray(content)) return '';
  return content.map((block) => (typeof block?.text === 'string' && block.type === 'text' ? block.text : '')).join('');
}

function convertMessages(value: object): Json | undefined {
  return isMessage(value) ? (messageFields(value) as unknown as Json) : undefined;
}

function setObject(
  fields: MessageFields,
  key: 'additional_kwargs' | 'response_metadata',
  value: Record<string, unknown> | undefined,
): void {
  if (value === undefined) return;
  const json = toJson(value) as JsonObject;
  if (Object.keys(json).length > 0) fields[key] = json;
}

function objects(values: unknown[]): JsonObject[] {
  return values.map((value) => toJson(value)).filter((value): value is JsonObject => isJsonObject(value));
}

function isJsonObject(value: Json): value is JsonObject {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

function isFilled<T>(value: T[] | undefined): value is T[] {
  return Array.isArray(value) && value.length > 0;
}
