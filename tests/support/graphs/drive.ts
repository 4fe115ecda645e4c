/** Drives a graph as the executor does, with a translator that writes into an array; and puts messages together from events. */
import { MemorySaver } from '@langchain/langgraph';
import type { Cursor } from '#src/events/cursor.ts';
import type { EventOf, GraphMode, JsonObject, RunEvent, RunEventType } from '#src/events/event.ts';
import type { DrivenGraph, GraphRegistry, GraphUse } from '#src/graphs/graph.ts';
import type { ModelConfig } from '#src/graphs/models.ts';
import { eachPart } from '#src/graphs/parts.ts';
import type { Told } from '#src/graphs/told.ts';
import { createTranslator, type RunTranslator } from '#src/graphs/translate.ts';

export interface Driven {
  events: RunEvent[];
  translator: RunTranslator;
  /** What the graph threw. */
  error: unknown;
  /** Events of one type, in order. */
  of<T extends RunEventType>(type: T): EventOf<T>[];
}

export interface DriveOptions {
  threadId?: string;
  modes?: GraphMode[];
  signal?: AbortSignal;
  continued?: boolean;
  told?: Told;
  /** Goes on with this one's translator and events, as a retry in place does. */
  after?: Driven;
  configurable?: JsonObject;
  onEvent?: (event: RunEvent, events: RunEvent[]) => void;
}

/** Runs the graph to its end, whatever that is. */
export async function drive(graph: DrivenGraph, input: unknown, options: DriveOptions = {}): Promise<Driven> {
  const events: RunEvent[] = options.after?.events ?? [];
  const write = (event: RunEvent): Cursor => {
    events.push(structuredClone(event)); // a copy, as the log keeps one
    options.onEvent?.(event, events);
    return events.length - 1;
  };
  const { continued = false, told } = options;
  const translator =
    options.after?.translator ?? createTranslator({ write, continued, ...(told === undefined ? {} : { told }) });
  let error: unknown;
  try {
    const settings = {
      configurable: { ...options.configurable, thread_id: options.threadId ?? 'thread' },
      recursionLimit: 25,
      streamMode: ['messages', 'updates', 'custom', ...(options.modes ?? [])],
      subgraphs: true,
      durability: 'sync',
      callbacks: [translator.usageCallback],
    };
    const signal = options.signal ?? new AbortController().signal;
    await eachPart(graph, input, settings, signal, (part) => {
      translator.part(part);
      return undefined;
    });
  } catch (thrown) {
    error = thrown;
  }
  translator.end();
  return { events, translator, error, of: (type) => events.filter((event) => event.type === type) as never };
}

/** The graph of a registry with a saver of its own. */
export function instantiate(
  registry: GraphRegistry,
  graphId: string,
  configurable: JsonObject = {},
  use: GraphUse = { access: 'threads.create_run', context: undefined },
): Promise<DrivenGraph> {
  return registry.instantiate(graphId, new MemorySaver(), { configurable, ...use });
}

export function modelConfig(baseUrl: string | null, limits: Partial<ModelConfig> = {}): ModelConfig {
  return { apiKey: null, baseUrl, name: 'fake', chunkTimeoutMs: 10_000, callTimeoutMs: 60_000, ...limits };
}

/** A message as a client puts it together from head, deltas and chunks. */
export interface Assembled {
  id: string;
  ns: string[];
  text: string;
  reasoning: string;
  /** Argument texts by tool call index. */
  args: { [index: number]: string };
  calls: { [index: number]: { id?: string; name?: string } };
}

/** The streamed messages, in the order of their heads. */
export function assemble(events: RunEvent[]): Assembled[] {
  const byHead = new Map<Cursor, Assembled>();
  for (const [cursor, event] of events.entries()) {
    if (event.type === 'message.head') {
      byHead.set(cursor, { id: event.message.id, ns: event.ns, text: '', reasoning: '', args: {}, calls: {} });
      addFields(byHead.get(cursor) as Assembled, event.message);
    } else if (event.type === 'message.chunk') addFields(byHead.get(event.m) as Assembled, event.message);
    else if (event.type === 'message.delta') addDelta(byHead.get(event.m) as Assembled, event);
  }
  return [...byHead.values()];
}

function addDelta(message: Assembled, delta: EventOf<'message.delta'>): void {
  if (delta.kind === 'text') message.text += delta.text;
  else if (delta.kind === 'reasoning') message.reasoning += delta.text;
  else message.args[delta.index ?? -1] = (message.args[delta.index ?? -1] ?? '') + delta.text;
}

function addFields(message: Assembled, fields: EventOf<'message.head'>['message']): void {
  if (typeof fields.content === 'string') message.text += fields.content;
  const reasoning = fields.additional_kwargs?.reasoning_content;
  if (typeof reasoning === 'string') message.reasoning += reasoning;
  for (const { index = -1, id, name, args } of fields.tool_call_chunks ?? []) {
    message.calls[index] = { ...message.calls[index], ...(id ? { id } : {}), ...(name ? { name } : {}) };
    message.args[index] = (message.args[index] ?? '') + (args ?? '');
  }
}

interface StoredMessage {
  id: string;
  content: unknown;
  type: string;
  additional_kwargs: Record<string, unknown>;
  response_metadata: Record<string, unknown>;
  tool_calls?: { id: string; name: string; args: unknown }[];
  invalid_tool_calls?: { id: string; args: string }[];
  usage_metadata?: unknown;
  tool_call_id?: string;
}

/** The messages of a thread as its checkpoint holds them. */
export async function storedMessages(graph: DrivenGraph, threadId = 'thread'): Promise<StoredMessage[]> {
  const state = (await graph.getState({ configurable: { thread_id: threadId } })) as {
    values: { messages?: StoredMessage[] };
  };
  return state.values.messages ?? [];
}
