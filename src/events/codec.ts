/** RunEvent <-> the payload of a log entry. */
import { REPLAY_HOME, type RunEvent } from './event.ts';

/** No log takes a longer payload, and no reader inflates to more. */
export const MAX_PAYLOAD_BYTES = 256 * 1024 ** 2;

/** The payload of an event: its JSON, well-formed also where a text holds a lone surrogate. @throws TypeError on a cycle */
export function encodeEvent(event: RunEvent): string {
  return JSON.stringify(event);
}

/**
 * The event of a payload. null when its type is none this version knows: a newer version wrote it, readers pass over it
 * and its id counts. Only `type` is checked: the log is written by this program alone.
 * @throws Error when it is no event at all
 */
export function decodeEvent(payload: string): RunEvent | null {
  const value: unknown = JSON.parse(payload);
  if (typeof value !== 'object' || value === null || !('type' in value) || typeof value.type !== 'string') {
    throw new Error('a log entry that is no event');
  }
  return isKnown(value) ? value : null;
}

function isKnown(value: { type: unknown }): value is RunEvent {
  return Object.hasOwn(REPLAY_HOME, String(value.type));
}
