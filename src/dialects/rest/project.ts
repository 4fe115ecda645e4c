/** Events to REST frames. Pure and stateless: a reader can begin at any cursor. */
import type { Cursor } from '#src/events/cursor.ts';
import type { EventOf, Json, MessageFields, Namespace, RunEvent, RunFailure } from '#src/events/event.ts';
import type { RestFrame, RestFrameBody } from './frames.ts';

/** An event as a follower gets it. `head` belongs to `message.delta` and `message.chunk`. */
export interface Entry {
  cursor: Cursor;
  event: RunEvent;
  head: EventOf<'message.head'> | null;
}

export const RESYNC: RestFrame = { event: 'resync_required', data: {} };

/** The frame every stream begins with. Without an id: it is no event of the log. */
export function openingOf(run: {
  id: string;
  thread_id: string;
  turn_id: string | null;
  takeovers: number;
}): RestFrame[] {
  return [metadata({ run_id: run.id, thread_id: run.thread_id, turn_id: run.turn_id }, run.takeovers)];
}

/** The frames of one event, often none; the last one carries the event's cursor as id. */
export function project(entry: Entry): RestFrame[] {
  const frames: RestFrame[] = bodiesOf(entry);
  const last = frames.at(-1);
  if (last !== undefined) last.id = entry.cursor;
  return frames;
}

function bodiesOf({ event, head }: Entry): RestFrameBody[] {
  switch (event.type) {
    case 'run.started':
      return [metadata(event, 0)];
    case 'run.taken_over':
      return [metadata(event, event.takeover, event.dropped)];
    case 'message.head':
      return messageFrames(event.message, event.message.id, event.ns);
    case 'message.chunk':
      return head === null ? [] : messageFrames(event.message, head.message.id, head.ns);
    case 'message.delta':
      return head === null ? [] : deltaFrames(event, head);
    case 'message.whole':
      return event.message.type === 'tool'
        ? [toolResult(event.message, event.ns)]
        : messageFrames(event.message, event.message.id, event.ns);
    case 'message.tool_calls':
      return [
        { event: 'tool_calls', data: { message_id: event.message_id, tool_calls: event.tool_calls, ...at(event.ns) } },
      ];
    case 'graph.part':
      return partFrames(event);
    case 'run.usage':
      return [
        {
          event: 'usage',
          data: { message_id: event.message_id, model: event.model, usage: event.usage, ...at(event.ns) },
        },
      ];
    case 'run.retry':
      return [{ event: 'retry', data: { attempt: event.attempt, delay_ms: event.delay_ms, dropped: event.dropped } }];
    // What follows until the seal was not kept, so no reconnect can bring it: the client must read the state.
    case 'log.torn':
      return [{ ...RESYNC }];
    case 'run.sealed':
      return sealFrames(event);
    // Input of people is read from /turns; a put-back run says so when it is taken over.
    case 'run.steered':
    case 'run.requeued':
      return [];
    default:
      return event satisfies never;
  }
}

function metadata(
  event: { run_id: string; thread_id: string; turn_id: string | null },
  takeover: number,
  dropped?: string[],
): RestFrameBody {
  const { run_id, thread_id, turn_id } = event;
  return { event: 'metadata', data: { run_id, thread_id, turn_id, takeover, ...(dropped && { dropped }) } };
}

function deltaFrames(event: EventOf<'message.delta'>, head: EventOf<'message.head'>): RestFrameBody[] {
  const { id, type } = head.message;
  if (!isFromAi(type)) return [];
  if (event.kind !== 'tool_args') return [textFrame(id, event.kind, event.text, head.ns)];
  const chunk = { ...(event.index !== undefined && { index: event.index }), args: event.text };
  return [{ event: 'tool_call_chunks', data: { message_id: id, tool_call_chunks: [chunk], ...at(head.ns) } }];
}

/** All a message or a chunk of one holds: reasoning and text in its order, then tool calls. Only the AI's are shown. */
function messageFrames(message: MessageFields, id: string, ns: Namespace): RestFrameBody[] {
  if (!isFromAi(message.type)) return [];
  const frames: RestFrameBody[] = spokenIn(message).map(({ type, text }) => textFrame(id, type, text, ns));
  const chunks = message.tool_call_chunks;
  if (chunks !== undefined && chunks.length > 0) {
    frames.push({ event: 'tool_call_chunks', data: { message_id: id, tool_call_chunks: chunks, ...at(ns) } });
  }
  return frames;
}

function textFrame(message_id: string, type: 'text' | 'reasoning', delta: string, ns: Namespace): RestFrameBody {
  return { event: 'message_chunk', data: { message_id, type, delta, ...at(ns) } };
}

function toolResult(message: MessageFields, ns: Namespace): RestFrameBody {
  return {
    event: 'tool_call_result',
    data: {
      message_id: message.id,
      tool_call_id: message.tool_call_id ?? null,
      name: message.name ?? null,
      status: message.status ?? null,
      content: message.content,
      ...at(ns),
    },
  };
}

function partFrames(event: EventOf<'graph.part'>): RestFrameBody[] {
  if (event.mode === 'custom') return [{ event: 'custom', data: { data: event.data, ...at(event.ns) } }];
  // A question inside a nested graph is told again by every graph around it; the root's is the one to answer.
  if (event.mode !== 'updates' || event.ns.length > 0 || !isObject(event.data)) return [];
  const asked = event.data.__interrupt__;
  if (!Array.isArray(asked)) return [];
  const interrupts = asked
    .filter(isObject)
    .flatMap(({ id, value }) => (typeof id === 'string' ? [{ id, value: value ?? null }] : []));
  return interrupts.length === 0 ? [] : [{ event: 'interrupt', data: { interrupts } }];
}

function sealFrames({ status, usage, error, interrupts, reason }: EventOf<'run.sealed'>): RestFrameBody[] {
  const end: RestFrameBody = {
    event: 'run_end',
    data: {
      status,
      usage,
      ...(interrupts.length > 0 && { interrupts }),
      ...(error !== null && { error: withoutThrown(error) }),
      ...(reason !== null && { reason }),
    },
  };
  return error === null ? [end] : [{ event: 'error', data: withoutThrown(error) }, end];
}

/** This dialect's clients are told our own words only. */
function withoutThrown({ thrown: _thrown, ...error }: RunFailure): RunFailure {
  return error;
}

interface Spoken {
  type: 'text' | 'reasoning';
  text: string;
}

/** The text and reasoning of a message: content as a string or as blocks, and reasoning that a provider keeps beside it. */
function spokenIn(message: MessageFields): Spoken[] {
  const beside = message.additional_kwargs?.reasoning_content;
  const { content } = message;
  const blocks = Array.isArray(content) ? content : [{ type: 'text', text: content }];
  const spoken = [{ type: 'reasoning', reasoning: beside ?? null }, ...blocks].map(blockText);
  return spoken.filter((part) => part !== null);
}

function blockText(block: Json): Spoken | null {
  if (typeof block === 'string') return block === '' ? null : { type: 'text', text: block };
  if (!isObject(block)) return null;
  const [type, text] = 'text' in block ? (['text', block.text] as const) : (['reasoning', reasoningIn(block)] as const);
  return typeof text === 'string' && text !== '' ? { type, text } : null;
}

/** `reasoning` (LangChain's standard block), `thinking` (Anthropic's), or a list of summary parts (OpenAI's). */
function reasoningIn(block: { [key: string]: Json }): Json | undefined {
  const { reasoning, thinking, summary } = block;
  if (!Array.isArray(summary)) return reasoning ?? thinking;
  return summary.map((part) => (isObject(part) && typeof part.text === 'string' ? part.text : '')).join('');
}

function isFromAi(type: string): boolean {
  return type === 'ai' || type === 'AIMessageChunk';
}

function at(ns: Namespace): { ns?: Namespace } {
  return ns.length === 0 ? {} : { ns };
}

function isObject(value: Json | undefined): value is { [key: string]: Json } {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}
