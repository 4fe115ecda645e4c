/** RunEvent <-> the payload of a log entry. */
import { REPLAY_HOME, type RunEvent } from './event.ts';

/** No log takes a longer payload, and no reader inflates to more. */
export const MAX_PAYLOAD_BYTES = 256 * 1024 ** 2;

/** The payload of an event: its JSON, well-formed also where a text holds a lone surrogate. @throws TypeError on a cycle */
export function encodeEvent(event: RunEvent): string {
  return JSON.stringify(event);
}

/**
 * The event of a payload. null when it is none this version knows: a newer version's type, or not an event at all.
 * Readers pass over such an entry; its id still counts.
 */
export function decodeEvent(payload: string): RunEvent | null {
  let value: unknown;
  try {
    value = JSON.parse(payload);
  } catch {
    return null;
  }
  return isEvent(value) ? value : null;
}

/** Only `type` is checked: the log is written by this program alone. */
function isEvent(value: unknown): value is RunEvent {
  if (typeof value !== 'object' || value === null || !('type' in value)) return false;
  return typeof value.type === 'string' && Object.hasOwn(REPLAY_HOME, value.type);
}
