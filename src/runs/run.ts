/** What a run is: its statuses, its row as the rest of the server sees it, and what a dialect asks for. */
import type { Cursor } from '#src/events/cursor.ts';
import type {
  EventOf,
  GraphMode,
  InterruptFacts,
  Json,
  JsonObject,
  RunEvent,
  RunFailure,
  Usage,
} from '#src/events/event.ts';
import type { ThreadTtl } from '#src/threads/thread.ts';

export const LIVE_STATUSES = ['queued', 'running'] as const;
export const TERMINAL_STATUSES = ['succeeded', 'interrupted', 'failed', 'cancelled'] as const;

export type TerminalStatus = (typeof TERMINAL_STATUSES)[number];
export type RunStatus = 'prepared' | (typeof LIVE_STATUSES)[number] | TerminalStatus;

/**
 * message: a new turn; answer: answers interrupts of a turn; rerun: a turn tried again; plain: no turn;
 * edit: a checkpoint write by API (no log, no turn, no webhook, left out of lists).
 */
export type RunKind = 'message' | 'answer' | 'rerun' | 'plain' | 'edit';

export type OnDisconnect = 'continue' | 'cancel';

/** A run as stored. Times are Postgres' times, ISO 8601. */
export interface Run {
  id: string;
  owner: string;
  thread_id: string;
  turn_id: string | null;
  lineage_id: string;
  graph_id: string;
  kind: RunKind;
  status: RunStatus;
  /** How often the run changed hands: the fencing token. 0 before the first claim. */
  epoch: number;
  /** Position among the runs of its thread, from 1. */
  ordinal: number;
  takeovers: number;
  /** What the graph is started with; null when `command` is set. */
  input: Json;
  /** `{resume: {interrupt id: value}}` for an answer. */
  command: JsonObject | null;
  config: RunConfig;
  /** The assistant it was asked of; null when it was asked of a graph. */
  assistant_id: string | null;
  /** What the dialect that admitted it wants to know again of its request; nothing else reads it. */
  wire: JsonObject | null;
  /** Recorded modes beyond the ones that always are (messages, updates, custom). */
  stream_modes: GraphMode[];
  on_disconnect: OnDisconnect;
  request_key: string | null;
  webhook: string | null;
  cancel_requested_at: string | null;
  cancel_action: 'interrupt' | 'rollback' | null;
  error: RunFailure | null;
  reason: string | null;
  usage: Usage | null;
  /** Interrupts this run ended with; empty unless status is `interrupted`. */
  interrupts: InterruptFacts[];
  /** The cursor of the seal; null while the run is not terminal. */
  log_end: Cursor | null;
  created_at: string;
  started_at: string | null;
  ended_at: string | null;
}

/** What a client may set for one run. `configurable` reaches the graph; ids of ours in it are refused at the edge. */
export interface RunConfig {
  configurable?: JsonObject;
  recursion_limit?: number;
  tags?: string[];
  metadata?: JsonObject;
  /** LangGraph's runtime context. */
  context?: Json;
  /** Nodes before or after which the graph stops; '*' is every node. */
  interrupt_before?: '*' | string[];
  interrupt_after?: '*' | string[];
  /** When checkpoints are written; `sync` without it. */
  durability?: 'sync' | 'async' | 'exit';
  /** Chunks of a model's messages can be told apart as the model gave them, although neighbours are stored as one. */
  keeps_chunks?: boolean;
  /** Where the run starts from instead of its lineage's tip. */
  checkpoint?: CheckpointRef;
}

/** A checkpoint of a lineage in LangGraph's words. Without an id: the newest of the namespace. */
export interface CheckpointRef {
  checkpoint_id?: string;
  checkpoint_ns?: string;
  checkpoint_map?: JsonObject;
}

export function isTerminal(status: RunStatus): status is TerminalStatus {
  return (TERMINAL_STATUSES as readonly string[]).includes(status);
}

/** A new turn: one message of a person. `content` is a string or LangChain content parts. */
export interface MessageRequest {
  owner: string;
  /** null: open a new thread. */
  thread_id: string | null;
  /** For a thread that is opened. */
  thread_metadata?: JsonObject | undefined;
  /** What is known of who asks, for the graph's configurable. It is no part of what a request key stands for. */
  user?: JsonObject | undefined;
  graph_id?: string | undefined;
  content: string | JsonObject[];
  request_key?: string | undefined;
  config?: RunConfig | undefined;
  stream_modes?: GraphMode[] | undefined;
  on_disconnect?: OnDisconnect | undefined;
  /** Where the run's end is told, signed; at least once. */
  webhook?: string | undefined;
  /** The run waits for its start, and is cancelled when that does not come in time or something comes before it. */
  prepared?: boolean | undefined;
}

/** Answers to open interrupts of the thread's latest turn: `{interrupt id: value}`. */
export interface AnswerRequest {
  owner: string;
  thread_id: string;
  /** @see MessageRequest.user */
  user?: JsonObject | undefined;
  interrupts: { [id: string]: Json };
  request_key?: string | undefined;
  config?: RunConfig | undefined;
  on_disconnect?: OnDisconnect | undefined;
  /** Where the run's end is told, signed; at least once. */
  webhook?: string | undefined;
}

/** The thread's latest turn, tried again. Without `config` the first try's is used. */
export interface RerunRequest {
  owner: string;
  thread_id: string;
  /** @see MessageRequest.user */
  user?: JsonObject | undefined;
  request_key?: string | undefined;
  config?: RunConfig | undefined;
  on_disconnect?: OnDisconnect | undefined;
  /** Where the run's end is told, signed; at least once. */
  webhook?: string | undefined;
}

/**
 * A run of a graph with any input, as LangGraph clients ask for it. An input that ends in a message of a person opens a
 * turn; a command that resumes open interrupts joins the turn that asked; any other run has no turn.
 */
export interface StartRequest {
  owner: string;
  /** null: a thread of its own. */
  thread_id: string | null;
  /** Whether a thread that does not exist is made, with this id. */
  if_missing: 'reject' | 'create';
  /** For a thread that is made: shown nowhere, and removed some time after the run's end. */
  temporary: boolean;
  /** For a thread that is made. */
  thread_metadata?: JsonObject | undefined;
  thread_ttl?: ThreadTtl | null | undefined;
  /** Of the server's own making: whoever has the key means the same request. A second one gets the first one's run. */
  request_key?: string | undefined;
  graph_id: string;
  /** What the run is configured with where neither its thread nor the run itself says otherwise. */
  assistant: { id: string | null; config: RunConfig; context: Json; metadata: JsonObject };
  input: Json;
  command: JsonObject | null;
  config: RunConfig;
  /**
   * What happens when a run of the thread has not ended. reject: refused; enqueue: waits its turn; interrupt, rollback: the
   * others are cancelled, and with rollback they and what they wrote are as if they had never been.
   */
  strategy: 'reject' | 'enqueue' | 'interrupt' | 'rollback';
  /** Not claimed before so many milliseconds have passed. */
  delay_ms: number;
  stream_modes: GraphMode[];
  on_disconnect: OnDisconnect;
  webhook?: string | undefined;
  wire: JsonObject;
}

/** One write of a node, as `updateState` takes it. */
export interface StateUpdate {
  /** An object, a list of them, or null. */
  values: Json;
  /** LangGraph's command in place of values; @see StartRequest.command */
  command?: JsonObject | undefined;
  as_node?: string | undefined;
}

/** The result of an admission. `replayed`: the same request key was admitted before; this is that run. */
export interface Admitted {
  run: Run;
  /** The person's message; null for a run that brings none. */
  message_id: string | null;
  replayed: boolean;
}

/** One thing a follower is told. Order is by cursor; a cursor is never repeated to one follower. */
export type Followed =
  | {
      kind: 'event';
      cursor: Cursor;
      event: RunEvent;
      /** The message.head that `event.m` names, for message.delta and message.chunk; null for every other event. */
      head: EventOf<'message.head'> | null;
      /** Identity of the stored entry, shared by all followers on this process: a key for caches of rendered frames. */
      entry: object;
    }
  /** What lies between the last cursor and the next event can no longer be replayed; the client must read the state again. */
  | { kind: 'resync' };

export interface CancelResult {
  /** The run that was asked to stop, as it is now; null when there was nothing to stop. */
  run: Run | null;
  /** stopping: the request is stored and the owner will see it; stopped: the run is terminal; idle: nothing was live. */
  outcome: 'stopping' | 'stopped' | 'idle';
}

/** One delivery of a run's webhook, as its owner sees it. Times are Postgres' times, ISO 8601. */
export interface WebhookDelivery {
  /** The same at every attempt: what the receiver knows it by. */
  id: string;
  run_id: string;
  url: string | null;
  status: 'pending' | 'delivered' | 'dead';
  attempts: number;
  /** Why the last attempt failed, in our own words. */
  last_error: string | null;
  created_at: string;
  next_attempt_at: string | null;
  ended_at: string | null;
}
