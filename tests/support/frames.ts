/** Reading what an event stream of the REST dialect said. */
import type { Frame, SseStream } from './sse.ts';

type Frames = Pick<SseStream, 'frames'>;

/** The data of all frames with this event, oldest first. */
export function dataOf<T = Record<string, unknown>>({ frames }: Frames, event: string): T[] {
  return frames.filter((frame) => frame.event === event).map((frame) => JSON.parse(frame.data) as T);
}

/** The ids of thread and run from the stream's first frame. */
export function idsOf({ frames }: Frames): { thread_id: string; run_id: string } {
  const [first] = frames;
  if (first?.event !== 'metadata') throw new Error(`the first frame is ${first?.event ?? 'not there yet'}`);
  return JSON.parse(first.data) as { thread_id: string; run_id: string };
}

/** Text or reasoning as a client puts it together: by message id, in order of appearance. */
export function spoken(stream: Frames, type: 'text' | 'reasoning'): Map<string, string> {
  const texts = new Map<string, string>();
  for (const chunk of dataOf<{ message_id: string; type: string; delta: string }>(stream, 'message_chunk')) {
    if (chunk.type === type) texts.set(chunk.message_id, (texts.get(chunk.message_id) ?? '') + chunk.delta);
  }
  return texts;
}

/** Every line end that some client splits at: those of the standard, and those of Unicode, as Python and others do. */
const ANY_LINE_END = /\r\n|[\n\r\v\f\u0085\u2028\u2029]/;

/**
 * The stream as a client reads it that ends lines wherever Unicode does. Comments are left out.
 * @throws when a line is no field of a frame: then some text broke out of its data line
 */
export function parseWithUnicodeLines(raw: string): Pick<Frame, 'event' | 'id' | 'data'>[] {
  const frames: Pick<Frame, 'event' | 'id' | 'data'>[] = [];
  let fields: Record<string, string> = {};
  for (const line of raw.split(ANY_LINE_END)) {
    if (line === '') {
      if (fields.data !== undefined) {
        frames.push({ event: fields.event ?? 'message', id: fields.id, data: fields.data });
      }
      fields = {};
      continue;
    }
    if (line.startsWith(':')) continue;
    const [, name, value] = /^(event|id|data|retry): (.*)$/s.exec(line) ?? [];
    if (name === undefined || value === undefined) throw new Error(`a line that is no field: ${line.slice(0, 200)}`);
    if (name in fields) throw new Error(`the field ${name} twice in one frame`);
    fields[name] = value;
  }
  return frames;
}
