/** Which neighbours of a run's events may become one entry. */
import type { EventOf } from './event.ts';

export type Delta = EventOf<'message.delta'>;

/** A merged delta holds at most this much text, and nothing is added to one that is this old. */
const MAX_TEXT_CHARS = 4096;
const MAX_AGE_MS = 10;

/**
 * Whether `next`, written right after `open`, may be added to it by concatenation: the same message, the same kind of
 * text, the same tool call or content block; and `open` neither full nor old.
 * @param ageMs since `open` was begun
 */
export function canMerge(open: Delta, next: Delta, ageMs: number): boolean {
  return (
    open.m === next.m &&
    open.kind === next.kind &&
    open.index === next.index &&
    open.block?.index === next.block?.index &&
    open.block?.type === next.block?.type &&
    ageMs <= MAX_AGE_MS &&
    open.text.length + next.text.length <= MAX_TEXT_CHARS
  );
}
