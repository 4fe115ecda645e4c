/**
 * What of a run was told to clients. After a takeover or a retry LangGraph repeats the updates of a step's finished nodes,
 * marked cached: those that were told before must not be told twice, and those that were lost on the way must be told.
 */
import { createHash } from 'node:crypto';
import type { Json, JsonObject, Namespace, RunEvent } from '#src/events/event.ts';

export interface Told {
  /** Takes note of an event of the run, of this epoch or read from the log of a former one. */
  note(event: RunEvent): void;
  /** Clients were told to forget these messages. */
  drop(ids: readonly string[]): void;
  /** True when this very update was told. */
  hasUpdate(ns: Namespace, data: Json): boolean;
  /** True when the message was told (begun or whole) and not dropped since. */
  hasMessage(id: string): boolean;
  /** Ids of streamed messages that are in no update that was told: their text may not be whole. */
  unfinished(): string[];
  /** AI messages that were told, by id, with the namespace they were told in. */
  shown(): Map<string, Namespace>;
}

export function createTold(): Told {
  const updates = new Set<string>();
  /** By message id: true when it was told whole, or an update that holds it was told. */
  const messages = new Map<string, boolean>();
  const shown = new Map<string, Namespace>();

  function drop(ids: readonly string[]): void {
    for (const id of ids) {
      messages.delete(id);
      shown.delete(id);
    }
  }

  return {
    drop,
    note(event) {
      switch (event.type) {
        case 'message.head':
        case 'message.whole':
          messages.set(event.message.id, event.type === 'message.whole');
          if (event.message.type === 'ai') shown.set(event.message.id, event.ns);
          break;
        case 'graph.part':
          if (event.mode !== 'updates') break;
          updates.add(keyOf(event.ns, event.data));
          for (const id of messageIdsIn(event.data)) if (messages.has(id)) messages.set(id, true);
          break;
        case 'run.retry':
        case 'run.taken_over':
          drop(event.dropped);
          break;
        default:
          break;
      }
    },
    hasUpdate: (ns, data) => updates.has(keyOf(ns, data)),
    hasMessage: (id) => messages.has(id),
    shown: () => new Map(shown),
    unfinished: () => [...messages].filter(([, isReturned]) => !isReturned).map(([id]) => id),
  };
}

/** The messages in an update tell it apart from others; one without messages is known by its content. */
function keyOf(ns: Namespace, data: Json): string {
  const { __metadata__: _cached, ...nodes } = isObject(data) ? data : { value: data };
  const ids = messageIdsIn(nodes);
  const what = ids.length > 0 ? ids.join() : createHash('sha1').update(JSON.stringify(nodes)).digest('base64');
  return JSON.stringify([ns, Object.keys(nodes), what]);
}

/** Ids of the messages (MessageFields) anywhere in the data, in order. */
function messageIdsIn(data: Json): string[] {
  const ids: string[] = [];
  const visit = (value: Json): void => {
    if (Array.isArray(value)) for (const item of value) visit(item);
    else if (isObject(value)) {
      if (isMessageFields(value)) ids.push(value.id);
      else for (const item of Object.values(value)) visit(item);
    }
  };
  visit(data);
  return ids;
}

function isMessageFields(value: JsonObject): value is JsonObject & { id: string } {
  return typeof value.id === 'string' && typeof value.type === 'string' && 'content' in value;
}

function isObject(value: Json): value is JsonObject {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}
