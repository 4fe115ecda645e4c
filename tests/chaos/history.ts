/** What the clients of one world sent and received. The checker compares it with what the services hold. */
import type { Question } from './questions.ts';

/** One request to start a run, with all its tries. */
export interface Submission {
  question: Question;
  requestKey: string;
  /** The run of each answer 202, in order; more than one when the answer to an earlier try was lost. */
  runIds: string[];
  /** Statuses of the tries; 0 for one without an answer. */
  statuses: number[];
}

export interface ReaderFrame {
  event: string;
  /** null: the frame had no id. */
  id: number | null;
  data: string;
  /** `performance.now()` of the tests when it was parsed. */
  atMs: number;
  /** Which of the reader's connections it came on, from 0. */
  connection: number;
}

/** One client that reads a run, over as many connections as it takes. */
export interface Reading {
  name: string;
  runId: string;
  /** The cursor it began after; null: from the start. */
  from: number | null;
  frames: ReaderFrame[];
  /** end: it saw run_end; expired: 410; stopped: it was told to stop; lost: it gave up, which is a violation. */
  ended: 'end' | 'expired' | 'stopped' | 'lost' | null;
}

/** One telling of a run's end. */
export interface HookCall {
  deliveryId: string;
  runId: string;
  /** What the receiver answered. */
  answered: number;
  /** The run's status in the ledger when it was told; null: no such run; unread: Postgres did not answer. */
  statusThen: string | null;
}

/** A node that ran, as it said itself. */
export interface NodeRun {
  tag: string;
  node: string;
  step: number | null;
  /** Milliseconds since the Unix epoch. */
  at: number;
}

export interface History {
  submissions: Submission[];
  readings: Reading[];
}

export function createHistory(): History {
  return { submissions: [], readings: [] };
}
