/** Frames of this dialect's streams, and LangChain messages in the form its clients expect. */
import type { EventOf, Json, JsonObject, MessageFields } from '#src/events/event.ts';

export const STREAM_MODES = [
  'values',
  'messages',
  'messages-tuple',
  'updates',
  'events',
  'tasks',
  'checkpoints',
  'debug',
  'custom',
  'tools',
] as const;
export type StreamMode = (typeof STREAM_MODES)[number];

export interface Frame {
  /** The mode, for a nested graph with its namespace: `values|node:task`. */
  event: string;
  data: Json;
  /** Ordinal among the frames of the run's own modes. Left out after a hole: what is not known is not counted. */
  id?: string;
}

/** Said in place of what can no longer be replayed. The client must read the state. */
export const RESYNC: Frame = { event: 'resync_required', data: {} };

const MESSAGE_TYPES = new Set(['human', 'ai', 'system', 'tool', 'function', 'remove', 'generic', 'developer']);

/** Any value of a graph with its messages filled up; @see filledMessage */
export function filled(value: Json): Json {
  if (typeof value !== 'object' || value === null) return value;
  if (Array.isArray(value)) return value.map(filled);
  if (isMessage(value)) return filledMessage(value as unknown as MessageFields);
  const result: JsonObject = {};
  for (const key of Object.keys(value)) define(result, key, filled(value[key] ?? null));
  return result;
}

/** Assignment would change the prototype when the key is `__proto__`. */
function define(target: JsonObject, key: string, value: Json): void {
  if (key !== '__proto__') target[key] = value;
  else Object.defineProperty(target, key, { value, enumerable: true, writable: true, configurable: true });
}

function isMessage(value: JsonObject): boolean {
  return (
    typeof value.id === 'string' &&
    typeof value.type === 'string' &&
    MESSAGE_TYPES.has(value.type) &&
    'content' in value
  );
}

/** A message with the fields LangChain always has: the log keeps only those that hold something. */
export function filledMessage(message: MessageFields): JsonObject {
  const { tool_calls, ...rest } = message;
  const fields: JsonObject = { additional_kwargs: {}, response_metadata: {}, ...(rest as unknown as JsonObject) };
  if (message.type !== 'ai') return fields;
  const calls = (tool_calls ?? []).map((call): JsonObject => ({ ...call, type: 'tool_call' }));
  return { ...fields, tool_calls: calls, invalid_tool_calls: message.invalid_tool_calls ?? [] };
}

/** A chunk of a streamed message. */
export function filledChunk(message: MessageFields): JsonObject {
  const { tool_call_chunks = [], ...rest } = message;
  const chunks = tool_call_chunks.map((chunk): JsonObject => ({ ...chunk, type: 'tool_call_chunk' }));
  const fields = filledMessage(rest);
  return message.type === 'ai' ? { ...fields, tool_call_chunks: chunks } : fields;
}

const BLOCK_KEYS: { [type: string]: string } = { thinking: 'thinking', reasoning: 'reasoning' };

/** What a delta adds to its message, as a message. */
export function deltaMessage(delta: EventOf<'message.delta'>, head: EventOf<'message.head'>): MessageFields {
  const { id, type } = head.message;
  const { kind, text, block, index } = delta;
  if (kind === 'tool_args') {
    return { id, type, content: '', tool_call_chunks: [{ ...(index === undefined ? {} : { index }), args: text }] };
  }
  if (block !== undefined) {
    const key = BLOCK_KEYS[block.type] ?? 'text';
    return { id, type, content: [{ ...block, [key]: text }] };
  }
  if (kind === 'reasoning') return { id, type, content: '', additional_kwargs: { reasoning_content: text } };
  return { id, type, content: text };
}

/** A streamed message as far as it got, from its chunks in order: what mode `messages` repeats with every chunk. */
export function joinedChunk(soFar: MessageFields | undefined, chunk: MessageFields): MessageFields {
  if (soFar === undefined) return chunk;
  const reasoning = joinedText(soFar.additional_kwargs?.reasoning_content, chunk.additional_kwargs?.reasoning_content);
  const calls = joinedCalls(soFar.tool_call_chunks ?? [], chunk.tool_call_chunks ?? []);
  return {
    ...soFar,
    ...chunk,
    content: joinedContent(soFar.content, chunk.content),
    additional_kwargs: {
      ...soFar.additional_kwargs,
      ...chunk.additional_kwargs,
      ...(reasoning === undefined ? {} : { reasoning_content: reasoning }),
    },
    response_metadata: { ...soFar.response_metadata, ...chunk.response_metadata },
    ...(calls.length === 0 ? {} : { tool_call_chunks: calls, tool_calls: parsedCalls(calls) }),
  };
}

type CallChunk = NonNullable<MessageFields['tool_call_chunks']>[number];

function joinedText(before: Json | undefined, after: Json | undefined): string | undefined {
  if (typeof before !== 'string') return typeof after === 'string' ? after : undefined;
  return typeof after === 'string' ? before + after : before;
}

function joinedContent(before: Json, after: Json): Json {
  if (typeof before === 'string' && typeof after === 'string') return before + after;
  const blocks = asBlocks(before);
  for (const block of asBlocks(after)) {
    const at = blocks.findIndex((known) => sameBlock(known, block));
    const known = blocks[at];
    if (known === undefined) blocks.push(block);
    else blocks[at] = joinedBlock(known, block);
  }
  return blocks;
}

function asBlocks(content: Json): JsonObject[] {
  if (typeof content === 'string') return content === '' ? [] : [{ type: 'text', text: content }];
  if (!Array.isArray(content)) return [];
  return content.filter((block): block is JsonObject => typeof block === 'object' && block !== null);
}

function sameBlock(a: JsonObject, b: JsonObject): boolean {
  return a.type === b.type && a.index === b.index;
}

function joinedBlock(before: JsonObject, after: JsonObject): JsonObject {
  const joined = { ...before, ...after };
  for (const key of ['text', 'thinking', 'reasoning']) {
    const text = joinedText(before[key], after[key]);
    if (text !== undefined) joined[key] = text;
  }
  return joined;
}

function joinedCalls(before: CallChunk[], after: CallChunk[]): CallChunk[] {
  const calls = [...before];
  for (const chunk of after) {
    const at = chunk.index === undefined ? -1 : calls.findIndex((call) => call.index === chunk.index);
    const known = calls[at];
    if (known === undefined) calls.push(chunk);
    else calls[at] = { ...known, ...chunk, args: (known.args ?? '') + (chunk.args ?? '') };
  }
  return calls;
}

/** Calls whose arguments are complete so far. */
function parsedCalls(chunks: CallChunk[]): NonNullable<MessageFields['tool_calls']> {
  return chunks.flatMap(({ id, name, args }) => {
    try {
      return [{ id: id ?? null, name: name ?? '', args: JSON.parse(args ?? '') as Json }];
    } catch {
      return []; // not complete yet
    }
  });
}
