/** Server-sent events as bytes. Nothing a graph, a model or a user says can end a line or begin a frame. */

export interface SseFrame {
  /** The event's name; left out it is `message` to clients. */
  event?: string | undefined;
  /** Any JSON value; it becomes one line. A frame without data is not dispatched by clients. */
  data?: unknown;
  id?: number | string | undefined;
  comment?: string | undefined;
  /** How long a client waits before it reconnects, in milliseconds; a whole number. */
  retry?: number | undefined;
}

/**
 * Not allowed in a name, id or comment: CR and LF end a line by the standard, others where text is split by Unicode's
 * rules, and a NUL makes clients ignore an id.
 */
const NOT_IN_A_FIELD = /[\p{Cc}\u2028\u2029]/gu;
/** Line ends for some clients that JSON.stringify leaves as they are. */
const RAW_LINE_ENDS_IN_JSON = /[\u0085\u2028\u2029]/g;

/**
 * The frames, each ended by an empty line. Control characters in names, ids and comments become U+FFFD; in data they are escaped,
 * so the parsed value is unchanged.
 * @throws TypeError when `retry` is no whole number or `data` is no JSON value
 */
export function encodeFrames(frames: readonly SseFrame[]): Buffer {
  let text = '';
  for (const frame of frames) text += frameText(frame);
  return Buffer.from(text, 'utf8');
}

function frameText(frame: SseFrame): string {
  let text = '';
  if (frame.comment !== undefined) text += `: ${frame.comment.replace(NOT_IN_A_FIELD, '\uFFFD')}\n`;
  if (frame.retry !== undefined) {
    if (!Number.isSafeInteger(frame.retry) || frame.retry < 0) throw new TypeError('retry must be a whole number');
    text += `retry: ${frame.retry}\n`;
  }
  if (frame.event !== undefined) text += `event: ${frame.event.replace(NOT_IN_A_FIELD, '\uFFFD')}\n`;
  if (frame.id !== undefined) text += `id: ${String(frame.id).replace(NOT_IN_A_FIELD, '\uFFFD')}\n`;
  if (frame.data !== undefined) text += `data: ${jsonLine(frame.data)}\n`;
  return `${text}\n`;
}

function jsonLine(value: unknown): string {
  const json: string | undefined = JSON.stringify(value);
  if (json === undefined) throw new TypeError('data must be a JSON value');
  return json.replace(RAW_LINE_ENDS_IN_JSON, (char) => `\\u${char.charCodeAt(0).toString(16).padStart(4, '0')}`);
}
