/** What became of one batch, judged the same way by every log. */
import type { AppendResult } from './log.ts';

/**
 * What the log says of one entry after an append. held: it was added now, or was there with the same bytes. other: the
 * id is there with other bytes. absent: refused because the log holds a greater id, and this id is not in it.
 */
export type EntryOutcome = 'held' | 'other' | 'absent';

/**
 * fenced when any entry met other bytes, or was refused and nothing after it in the batch is held: a greater id came
 * from someone else. A refused entry *before* one of ours that is held is not that: an earlier try left the hole (Redis
 * was out of memory for a moment), the entry can never be added any more, and readers see a gap.
 */
export function verdict(outcomes: readonly EntryOutcome[]): AppendResult {
  if (outcomes.includes('other')) return 'fenced';
  return outcomes.at(-1) === 'absent' ? 'fenced' : 'appended';
}
