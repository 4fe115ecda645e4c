/** How an execution ended, and the one way a terminal row becomes the last event of its log. */
import type { EventOf, InterruptFacts, Json, RunEvent, RunFailure, TerminalFacts, Usage } from '#src/events/event.ts';
import { isTerminal, type TerminalStatus } from './run.ts';
import type { RunEnd } from './run-end.ts';

/** The answer of a turn as far as it got. */
export interface Answer {
  content: Json;
  /** The id it was streamed with, so that a client finds the bubble it already shows. */
  stream_id: string | null;
}

/** What an execution hands to finalize. */
export interface Outcome {
  status: TerminalStatus;
  error: RunFailure | null;
  reason: string | null;
  usage: Usage | null;
  answer: Answer | null;
  /** Open questions to a person; only for status `interrupted`. */
  interrupts: InterruptFacts[];
  /** Events that may be seen only after the end is committed (updates with __interrupt__). */
  held: RunEvent[];
  /** Whether the run wrote a checkpoint of its own; if not, interrupts it answered are open again. */
  leftCheckpoint: boolean;
  /** The state it left, where a webhook tells it. */
  values?: Json;
}

/** The outcome of a run that nobody executed, or whose execution left nothing. */
export function emptyOutcome(status: TerminalStatus, facts: { error?: RunFailure; reason?: string } = {}): Outcome {
  return {
    status,
    error: facts.error ?? null,
    reason: facts.reason ?? null,
    usage: null,
    answer: null,
    interrupts: [],
    held: [],
    leftCheckpoint: false,
  };
}

/**
 * The facts of the end, from the row alone. The seal and a terminal frame that a reader makes when the log is gone are
 * both built here, so they cannot differ.
 * @throws when the row is not terminal: a terminal frame before the commit would be a lie
 */
export function terminalFacts(run: RunEnd): TerminalFacts {
  if (!isTerminal(run.status)) throw new Error(`run ${run.id} is ${run.status}, not terminal`);
  return {
    status: run.status,
    error: run.error,
    usage: run.usage,
    interrupts: run.interrupts,
    reason: run.reason,
  };
}

export function sealOf(run: RunEnd): EventOf<'run.sealed'> {
  return { type: 'run.sealed', ...terminalFacts(run) };
}
