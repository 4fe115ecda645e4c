/**
 * The vocabulary of a run's log. Everything a client can ever receive about a run is one of these; each dialect is a
 * fold over them. A new type does not compile until `REPLAY_HOME` and every exhaustive switch know it.
 */
import type { Cursor } from './cursor.ts';

/** JSON as it travels: no undefined, no class instances. */
export type Json = null | boolean | number | string | Json[] | { [key: string]: Json };
export type JsonObject = { [key: string]: Json };

/** Where in the graph something happened: [] is the root, one element per nested graph (LangGraph's checkpoint namespace). */
export type Namespace = string[];

/** Token counts of one model call, or summed over a run. */
export interface Usage {
  input_tokens: number;
  output_tokens: number;
  total_tokens: number;
  input_token_details?: { [key: string]: number };
  output_token_details?: { [key: string]: number };
}

export interface ToolCall {
  id: string | null;
  name: string;
  args: Json;
}

export interface ToolCallChunk {
  index?: number;
  id?: string;
  name?: string;
  args?: string;
}

/**
 * A LangChain message with the fields a client may need, picked by hand (serialising the class costs more than sending
 * it). A chunk carries only what that chunk holds. `type` is LangChain's: human, ai, tool, system, remove, ...
 */
export interface MessageFields {
  id: string;
  type: string;
  role?: string;
  name?: string;
  content: Json;
  additional_kwargs?: JsonObject;
  response_metadata?: JsonObject;
  tool_calls?: ToolCall[];
  tool_call_chunks?: ToolCallChunk[];
  invalid_tool_calls?: JsonObject[];
  usage_metadata?: Usage;
  tool_call_id?: string;
  status?: string;
  artifact?: Json;
}

/** The last word about a run. Computed from the row by `runs/outcome.ts`, so a seal and a frame made from the row agree. */
export interface TerminalFacts {
  status: 'succeeded' | 'interrupted' | 'failed' | 'cancelled';
  error: RunFailure | null;
  usage: Usage | null;
  /** Open interrupts when status is `interrupted`; otherwise empty. */
  interrupts: InterruptFacts[];
  /** Why a run was cancelled when it was not a person: SUPERSEDED, NEVER_STARTED, ...; null otherwise. */
  reason: string | null;
}

export interface RunFailure {
  code: string;
  /** Safe for the client: never third-party text. */
  message: string;
  /** retry: the server holds the input; resend: only the client does; none: neither helps. */
  recovery: 'retry' | 'resend' | 'none';
  /** What the graph threw, where the server is configured to say it: for LangGraph clients only. */
  thrown?: { name: string; message: string };
}

export interface InterruptFacts {
  id: string;
  value: Json;
}

export type GraphMode = 'updates' | 'values' | 'custom' | 'tasks' | 'debug' | 'checkpoints' | 'events' | 'tools';

export type RunEvent =
  /** The first entry of a run's first epoch. */
  | { type: 'run.started'; run_id: string; thread_id: string; turn_id: string | null; graph_id: string }
  /**
   * A worker goes on with a run another one began. `after`: last id that the former owner left in the log, or
   * gave to a step that is not run again; a reader that stands elsewhere must resync. `dropped`: ids of messages streamed so far that the checkpoint does not hold; clients forget them.
   */
  | {
      type: 'run.taken_over';
      run_id: string;
      thread_id: string;
      turn_id: string | null;
      takeover: number;
      checkpoint_id: string | null;
      after: Cursor;
      dropped: string[];
    }
  /** First chunk of a streamed message: all it holds, with its LangGraph metadata, stored once. Its cursor is the `m` of what follows. */
  | { type: 'message.head'; ns: Namespace; message: MessageFields; metadata: JsonObject }
  /**
   * More of a message, one kind of text only, so neighbours can be merged by concatenation. `m` names the head.
   * `block` is set when the text belongs to a content block (array content): its index and the block's own type.
   * kind `tool_args`: arguments of the tool call with `index`.
   */
  | {
      type: 'message.delta';
      m: Cursor;
      kind: 'text' | 'reasoning' | 'tool_args';
      text: string;
      index?: number;
      block?: { index?: number; type: string };
      /** Where in `text` each further chunk begins; only in runs whose creator wants to see chunks as they were. */
      cuts?: number[];
    }
  /** A later chunk of a streamed message that is more than one kind of text (a tool call's start, usage, the finish reason). */
  | { type: 'message.chunk'; m: Cursor; message: MessageFields }
  /** A message that was not streamed: a tool's result, a node's own message. */
  | { type: 'message.whole'; ns: Namespace; message: MessageFields; metadata: JsonObject }
  /** The complete tool calls of a finished AI message. */
  | { type: 'message.tool_calls'; ns: Namespace; message_id: string; tool_calls: ToolCall[] }
  /** What LangGraph yielded in another mode. `updates` with `__interrupt__` are appended only after the commit of the run's end. */
  | { type: 'graph.part'; mode: GraphMode; ns: Namespace; data: Json }
  /** Token usage of one finished model call. */
  | { type: 'run.usage'; ns: Namespace; message_id: string; model: string | null; usage: Usage }
  /** The run is tried again in place after a transient fault. `dropped` as in run.taken_over. */
  | { type: 'run.retry'; attempt: number; delay_ms: number; dropped: string[] }
  /** Input given to a run while it ran. */
  | { type: 'run.steered'; message: MessageFields }
  /** The run was put back; first entry of the new epoch, so the old owner is refused at once. */
  | { type: 'run.requeued'; reason: 'drain' | 'owner_dead' }
  /** The log's bound was reached; nothing more is kept until the seal. The run itself goes on. */
  | { type: 'log.torn'; reason: 'max_events' | 'max_bytes' }
  /** The end. Written once, by runs/finalize.ts, after Postgres has it. */
  | ({ type: 'run.sealed' } & TerminalFacts);

export type RunEventType = RunEvent['type'];
export type EventOf<T extends RunEventType> = Extract<RunEvent, { type: T }>;

/** Where a reader finds the same fact when the log is gone. */
export type ReplayHome = 'checkpoint' | 'table' | 'live-only';

/** Total on purpose: a new event type does not compile before it says where it can be found again. */
export const REPLAY_HOME = {
  'run.started': 'table',
  'run.taken_over': 'table',
  'message.head': 'checkpoint',
  'message.delta': 'checkpoint',
  'message.chunk': 'checkpoint',
  'message.whole': 'checkpoint',
  'message.tool_calls': 'checkpoint',
  'graph.part': 'checkpoint',
  'run.usage': 'table',
  'run.retry': 'live-only',
  'run.steered': 'table',
  'run.requeued': 'table',
  'log.torn': 'live-only',
  'run.sealed': 'table',
} as const satisfies Record<RunEventType, ReplayHome>;
