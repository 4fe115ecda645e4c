/**
 * Messages of a run -> message events. A streamed message is a message.head (its first chunk, with the metadata) and then deltas and
 * chunks that name it. LangGraph gives all chunks of one model call the same metadata object, so that object is the
 * identity of the stream; the id is the first chunk's, which is also the one LangChain stores.
 */
import { randomUUID } from 'node:crypto';
import type { Cursor } from '#src/events/cursor.ts';
import type { EventOf, JsonObject, Namespace } from '#src/events/event.ts';
import type { AnswerFold, StreamedText } from './answer.ts';
import { chunkFields, type DeltaFields, deltaOf, headFields, type ToldMetadata } from './chunk.ts';
import type { WriteEvent } from './graph.ts';
import { toJson } from './json.ts';
import { contentText, isChunk, type MessageView, messageFields, toolCalls } from './message-fields.ts';
import type { FinishedCall } from './model-calls.ts';
import type { Told } from './told.ts';

export interface MessageFold {
  /** A part of mode `messages`. */
  part(ns: Namespace, message: MessageView, metadata: JsonObject): void;
  /** Messages of a repeated update: those that were lost on their way are told whole. */
  retell(ns: Namespace, messages: MessageView[]): void;
  /** A node has returned this message: from here on it is in the checkpoint. */
  returned(ns: Namespace, message: MessageView): void;
  /** A model call has ended: its usage is written after the last of its parts, which may still be unread. */
  finished(call: FinishedCall): void;
  /** Ids of AI messages told to clients that no node has returned yet. */
  unfinished(): string[];
  /** Text of the root's unfinished messages that streamed any. */
  partials(): { id: string; text: string }[];
  /** Forgets these messages, whose ids clients are told to drop, and all that are unfinished. */
  forget(ids: string[]): void;
  /** Writes usage that is still owed. */
  end(): void;
}

interface Stream extends StreamedText {
  ns: Namespace;
  head: Cursor;
  /** Response metadata told so far. */
  metadata: ToldMetadata;
  callsTools: boolean;
  /** Message parts read so far. */
  parts: number;
  finished: FinishedCall | null;
}

/** @param cuts whether deltas that are stored as one keep their places */
export function createMessageFold(write: WriteEvent, answers: AnswerFold, known: Told, cuts: boolean): MessageFold {
  const streams = new WeakMap<object, Stream>();
  /** By message id; null for a message told whole. */
  const open = new Map<string, Stream | null>();
  const owed = new Map<string, FinishedCall>();

  function firstChunk(ns: Namespace, chunk: MessageView, metadata: JsonObject): void {
    const told: ToldMetadata = new Map();
    const id = chunk.id ?? randomUUID();
    const event: EventOf<'message.head'> = {
      type: 'message.head',
      ns,
      message: headFields(chunk, id, told),
      metadata: toJson(metadata) as JsonObject,
    };
    const stream: Stream = {
      id,
      ns,
      head: write(event),
      metadata: told,
      text: '',
      callsTools: false,
      parts: 0,
      finished: owed.get(id) ?? null,
    };
    known.note(event);
    owed.delete(id);
    streams.set(metadata, stream);
    open.set(id, stream);
    note(stream, chunk, null);
  }

  function nextChunk(stream: Stream, chunk: MessageView): void {
    const delta = deltaOf(chunk, stream.metadata);
    if (delta !== null) write({ type: 'message.delta', m: stream.head, ...delta, ...(cuts && { cuts: [] }) });
    else {
      const message = chunkFields(chunk, stream.id, stream.metadata);
      if (message !== null) write({ type: 'message.chunk', m: stream.head, message });
    }
    note(stream, chunk, delta);
  }

  function note(stream: Stream, chunk: MessageView, delta: DeltaFields | null): void {
    if (delta === null) noteText(stream, contentText(chunk.content));
    else if (delta.kind === 'text') noteText(stream, delta.text);
    if (delta === null && !stream.callsTools && callsTools(chunk)) {
      stream.callsTools = true;
      answers.reset(stream.ns.length);
    }
    stream.parts += 1;
    if (stream.finished !== null && stream.parts >= stream.finished.parts) settle(stream);
  }

  function noteText(stream: Stream, text: string): void {
    if (text === '') return;
    stream.text += text;
    if (!stream.callsTools) answers.text(stream.ns.length, stream);
  }

  function wholeMessage(ns: Namespace, message: MessageView, metadata: JsonObject, fromModel: boolean): void {
    const fields = messageFields(message);
    const { id, type, tool_calls } = fields;
    const event: EventOf<'message.whole'> = {
      type: 'message.whole',
      ns,
      message: fields,
      metadata: toJson(metadata) as JsonObject,
    };
    write(event);
    known.note(event);
    if (type === 'ai' && tool_calls !== undefined)
      write({ type: 'message.tool_calls', ns, message_id: id, tool_calls });
    if (fromModel && type === 'ai') open.set(id, null);
    answers.message(ns.length, message);
    const call = owed.get(id);
    owed.delete(id);
    if (call !== undefined) writeUsage(call);
  }

  function settle(stream: Stream): void {
    if (stream.finished !== null) writeUsage(stream.finished);
    stream.finished = null;
  }

  function writeUsage({ message_id, ns, model, usage }: FinishedCall): void {
    if (usage !== null) write({ type: 'run.usage', ns, message_id, model, usage });
  }

  function end(): void {
    for (const call of owed.values()) writeUsage(call);
    owed.clear();
    for (const stream of open.values()) if (stream !== null) settle(stream);
  }

  return {
    part(ns, message, metadata) {
      const stream = streams.get(metadata);
      // Only a model's own callback carries ls_model_type; a chunk without it is a finished message that a node returned.
      const fromModel = typeof metadata.ls_model_type === 'string';
      if (stream !== undefined) nextChunk(stream, message);
      else if (fromModel && isChunk(message)) firstChunk(ns, message, metadata);
      else wholeMessage(ns, message, metadata, fromModel);
    },
    retell(ns, messages) {
      // A node may return the past again; what is new comes after the last thing a person said.
      const from = messages.findLastIndex((message) => message._getType() === 'human') + 1;
      for (const message of messages.slice(from)) {
        if (message.id === undefined || !known.hasMessage(message.id)) wholeMessage(ns, message, {}, false);
      }
    },
    returned(ns, message) {
      answers.message(ns.length, message);
      const { id } = message;
      const stream = id === undefined ? undefined : open.get(id);
      if (id === undefined || stream === undefined) return;
      open.delete(id);
      if (stream === null) return; // told whole, and its calls with it
      settle(stream);
      const tool_calls = toolCalls(message);
      if (tool_calls.length > 0) write({ type: 'message.tool_calls', ns, message_id: id, tool_calls });
    },
    finished(call) {
      const stream = open.get(call.message_id);
      if (call.parts === 0 || (stream != null && stream.parts >= call.parts)) writeUsage(call);
      else if (stream != null) stream.finished = call;
      else owed.set(call.message_id, call);
    },
    unfinished: () => [...open.keys()],
    partials: () =>
      [...open.values()].flatMap((stream) =>
        stream === null || stream.ns.length > 0 || stream.text === '' ? [] : [{ id: stream.id, text: stream.text }],
      ),
    forget(ids) {
      end();
      known.drop(ids);
      open.clear();
      answers.forgetStreamed();
    },
    end,
  };
}

function callsTools(chunk: MessageView): boolean {
  return (chunk.tool_call_chunks?.length ?? 0) > 0 || (chunk.tool_calls?.length ?? 0) > 0;
}
