/** Events to frames of LangGraph's legacy event streams. A fold: pure, and the same events always give the same frames. */
import type { EventOf, Json, JsonObject, MessageFields, Namespace, RunEvent, RunFailure } from '#src/events/event.ts';
import {
  deltaMessage,
  type Frame,
  filled,
  filledChunk,
  filledMessage,
  joinedChunk,
  RESYNC,
  type StreamMode,
} from './frames.ts';

/** What a run's creator asked to see. */
export interface View {
  runId: string;
  modes: ReadonlySet<StreamMode>;
  /** Whether nested graphs are shown. */
  subgraphs: boolean;
}

export type Seen = { kind: 'event'; event: RunEvent; head: EventOf<'message.head'> | null } | { kind: 'resync' };

/** One per reader, from the beginning of the run's log: the ids are counted. */
export function createFold(view: View): (item: Seen) => Frame[] {
  const { modes } = view;
  const partials = new Map<string, MessageFields>();
  const completed = new Set<string>();
  let attempt = 0;
  let ordinal = 0;
  let counted = true;

  function numbered(frames: Frame[]): Frame[] {
    if (!counted) return frames;
    return frames.map((frame) => ({ ...frame, id: String(ordinal++) }));
  }

  /** A hole: how many frames were in it is not known. */
  function lost(): Frame[] {
    counted = false;
    return [RESYNC];
  }

  function metadata(): Frame {
    attempt += 1;
    return { event: 'metadata', data: { run_id: view.runId, attempt } };
  }

  /** The run goes on from an earlier point: clients forget what it had shown beyond that. */
  function again(dropped: string[]): Frame[] {
    for (const id of dropped) partials.delete(id);
    const removed = dropped.map(
      (id): Frame => ({ event: 'messages', data: [filledMessage({ id, type: 'remove', content: '' }), {}] }),
    );
    return [metadata(), ...(modes.has('messages-tuple') ? removed : [])];
  }

  function streamed(chunk: MessageFields, { ns, metadata: about }: EventOf<'message.head'>): Frame[] {
    const frames: Frame[] = [];
    if (modes.has('messages-tuple')) {
      frames.push({ event: named('messages', ns, view.subgraphs), data: [filledChunk(chunk), about] });
    }
    if (!modes.has('messages')) return frames;
    const before = partials.get(chunk.id);
    if (before === undefined) frames.push({ event: 'messages/metadata', data: { [chunk.id]: { metadata: about } } });
    const joined = joinedChunk(before, chunk);
    partials.set(chunk.id, joined);
    frames.push({ event: 'messages/partial', data: [filledMessage(joined)] });
    return frames;
  }

  function whole({ ns, message, metadata: about }: EventOf<'message.whole'>): Frame[] {
    if (!modes.has('messages-tuple')) return [];
    return [{ event: named('messages', ns, view.subgraphs), data: [filledMessage(message), about] }];
  }

  function part({ mode, ns, data }: EventOf<'graph.part'>): Frame[] {
    const frames: Frame[] = [];
    const visible = ns.length === 0 || view.subgraphs || mode === 'custom';
    if (visible && modes.has(mode)) {
      frames.push({ event: named(mode, ns, view.subgraphs), data: filled(partData(mode, data)) });
    }
    if (mode === 'values' && ns.length === 0 && modes.has('messages')) frames.push(...complete(data));
    return frames;
  }

  /** Messages of the state that are new since the last one. */
  function complete(data: Json): Frame[] {
    const messages = isObject(data) && Array.isArray(data.messages) ? data.messages : [];
    const fresh = messages.filter((message): message is JsonObject => {
      if (!isObject(message) || typeof message.id !== 'string' || completed.has(message.id)) return false;
      completed.add(message.id);
      return true;
    });
    return fresh.length === 0 ? [] : [{ event: 'messages/complete', data: fresh.map(filled) }];
  }

  function frames(event: RunEvent, head: EventOf<'message.head'> | null): Frame[] {
    switch (event.type) {
      case 'run.started':
        return [metadata()];
      case 'run.taken_over':
      case 'run.retry':
        return again(event.dropped);
      case 'message.head':
        return streamed(event.message, event);
      case 'message.chunk':
        return head === null ? lost() : streamed({ ...event.message, id: head.message.id }, head);
      case 'message.delta':
        return head === null ? lost() : pieces(event).flatMap((piece) => streamed(deltaMessage(piece, head), head));
      case 'message.whole':
        return whole(event);
      case 'graph.part':
        return part(event);
      case 'run.sealed':
        return event.error === null ? [] : [{ event: 'error', data: errorData(event.error) }];
      case 'log.torn':
        return lost();
      // Told by the messages themselves; a put-back run says so when it is taken over.
      case 'message.tool_calls':
      case 'run.usage':
      case 'run.steered':
      case 'run.requeued':
        return [];
      default:
        return event satisfies never;
    }
  }

  return (item) => {
    // A log that does not begin with its run (it ended while it was queued) is given a beginning.
    const first = attempt === 0 && !(item.kind === 'event' && BEGINS.has(item.event.type)) ? [metadata()] : [];
    const opening = numbered(first);
    const rest = item.kind === 'resync' ? lost() : frames(item.event, item.head);
    return [...opening, ...numbered(rest)];
  };
}

const BEGINS = new Set<RunEvent['type']>(['run.started', 'run.taken_over']);

/** A delta as the chunks it was put together from. */
function pieces(delta: EventOf<'message.delta'>): EventOf<'message.delta'>[] {
  const { text, cuts = [] } = delta;
  const starts = [0, ...cuts];
  return starts.map((start, index) => ({ ...delta, text: text.slice(start, starts[index + 1]) }));
}

function named(mode: string, ns: Namespace, subgraphs: boolean): string {
  return subgraphs && ns.length > 0 ? `${mode}|${ns.join('|')}` : mode;
}

/** LangGraph's own names of failures where its clients look at them; else our code. */
const ERROR_NAMES: { [code: string]: string } = { RECURSION_LIMIT: 'GraphRecursionError' };

/** The failure of a run as this dialect tells it: what the graph threw, if that may be said. */
export function errorData({ thrown, ...error }: Pick<RunFailure, 'code' | 'message' | 'thrown'>): {
  error: string;
  message: string;
} {
  if (thrown !== undefined) return { error: thrown.name, message: thrown.message };
  return { error: ERROR_NAMES[error.code] ?? error.code, message: error.message };
}

function partData(mode: string, data: Json): Json {
  if (!isObject(data)) return data;
  if (mode === 'checkpoints') {
    const { values = null, metadata = null, next = [] } = data;
    return { values, metadata, next };
  }
  if (mode === 'tasks') return taskData(data);
  if (mode !== 'debug' || !isObject(data.payload)) return data;
  if (data.type === 'task_result') return { ...data, payload: taskData(data.payload) };
  return data.type === 'checkpoint' ? { ...data, payload: checkpointData(data.payload) } : data;
}

/** A nested graph's place is told as a checkpoint. */
function taskData(task: JsonObject): JsonObject {
  if (!('state' in task)) return task;
  const { state, ...rest } = task;
  return { ...rest, checkpoint: placeOf(state, true) };
}

function checkpointData({ parentConfig, ...payload }: JsonObject): JsonObject {
  return {
    ...payload,
    ...(parentConfig === undefined ? {} : { parent_config: parentConfig }),
    checkpoint: placeOf(payload.config, false),
    parent_checkpoint: placeOf(parentConfig, false),
    tasks: Array.isArray(payload.tasks) ? payload.tasks.map((task) => (isObject(task) ? taskData(task) : task)) : [],
  };
}

function placeOf(config: Json | undefined, ofTask: boolean): Json {
  if (!isObject(config) || !isObject(config.configurable)) return null;
  const { thread_id, checkpoint_id = null, checkpoint_ns = '', checkpoint_map = null } = config.configurable;
  if (thread_id === undefined || (checkpoint_id === null && !ofTask)) return null;
  return { thread_id, checkpoint_id, checkpoint_ns, checkpoint_map };
}

function isObject(value: Json | undefined): value is JsonObject {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}
