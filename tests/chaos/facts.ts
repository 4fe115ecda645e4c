/** Everything the checker judges by: plain data, so that a violation of each invariant can be planted in a test. */
import type { HookCall, NodeRun, Reading, Submission } from './history.ts';

export interface RunFact {
  id: string;
  threadId: string;
  lineageId: string;
  graphId: string;
  status: string;
  hasWebhook: boolean;
  epoch: number;
  takeovers: number;
  requestKey: string | null;
  /** Cursor of the seal. */
  logEnd: number | null;
  /** What the run was asked, as the thread has it; '' when it was nobody's question. */
  question: string;
  /** The answer people read in the thread, that this run gave. */
  answer: { text: string; partial: boolean } | null;
}

/** A change of a run's status or epoch, oldest first. `writer`: pid of the server that made it; null: not a server. */
export interface StatusFact {
  runId: string;
  from: string | null;
  to: string;
  fromEpoch: number | null;
  toEpoch: number;
  /** The pid of the run's owner at that moment. */
  owner: number | null;
  writer: number | null;
}

/** A checkpoint or a pending write that Postgres accepted, oldest first. */
export interface WriteFact {
  runId: string;
  kind: 'checkpoint' | 'write';
  checkpointId: string;
  parentId: string | null;
  /** '' for the root. */
  ns: string;
  step: number | null;
  source: string | null;
  /** The run's epoch and its owner's pid at that moment; null when the run had no row. */
  epoch: number | null;
  owner: number | null;
  writer: number | null;
  /** Milliseconds since the Unix epoch, by Postgres' clock. */
  at: number;
}

export interface LogFact {
  runId: string;
  /** Of the entries, oldest first. */
  cursors: number[];
  types: string[];
  /** -1: it never expires. */
  ttlMs: number;
}

export interface ReplayFact {
  runId: string;
  /** null: 410. */
  frames: { event: string; id: number | null; data: string }[] | null;
}

export interface OutboxFact {
  id: string;
  runId: string;
  status: string;
}

/** A call of the model: after how many AI messages of the turn, and when it began. */
export interface ModelFact {
  tag: string;
  depth: number;
  at: number;
}

export interface ServerFact {
  name: string;
  viewers: number;
  streams: number;
  rssMb: number;
}

export interface Facts {
  /** Whether a reader may have been told to resync, and a replay be incomplete or gone. */
  mayResync: boolean;
  submissions: Submission[];
  readings: Reading[];
  runs: RunFact[];
  statuses: StatusFact[];
  writes: WriteFact[];
  /** Runs without a log in Redis have none. */
  logs: LogFact[];
  replays: ReplayFact[];
  hookCalls: HookCall[];
  outbox: OutboxFact[];
  nodeRuns: NodeRun[];
  modelCalls: ModelFact[];
  servers: ServerFact[];
  /** Connections of servers that are idle in a transaction for seconds. */
  idleInTransaction: number;
}

/** A broken promise, with what shows it. */
export interface Violation {
  invariant: 'I1' | 'I2' | 'I3' | 'I4' | 'I5' | 'I6' | 'I7' | 'I8' | 'I9' | 'I10';
  runId: string | null;
  evidence: string;
}
