/** What the rest of the server knows of a graph and of what it yields. */
import type { BaseCheckpointSaver } from '@langchain/langgraph-checkpoint';
import type { Cursor } from '#src/events/cursor.ts';
import type { Json, JsonObject, Namespace, RunEvent, Usage } from '#src/events/event.ts';

/** A compiled LangGraph graph, as far as we drive it (Pregel). */
export interface DrivenGraph {
  /** What graph.stream yields, without the streams around it; @see parts.ts */
  _streamIterator(input: unknown, config: object): AsyncGenerator<unknown>;
  /** LangChain's events, version v2: what the graph yields is in the `on_chain_stream` of its own run. */
  streamEvents(input: unknown, options: object): AsyncIterable<unknown>;
  getState(config: object, options?: object): Promise<unknown>;
  getStateHistory(config: object, options?: object): AsyncIterable<unknown>;
  updateState(config: object, values: unknown, asNode?: string): Promise<unknown>;
  bulkUpdateState(config: object, supersteps: object[]): Promise<unknown>;
  getGraphAsync(config: object): Promise<{ toJSON(): unknown }>;
  getSubgraphsAsync(namespace?: string, recurse?: boolean): AsyncIterable<[string, DrivenGraph]>;
  readonly channels?: { readonly [name: string]: unknown };
  checkpointer?: unknown;
  store?: unknown;
  name?: string | undefined;
}

/** What a graph is made for, as a factory is told. `context` is the run's. */
export type GraphUse =
  | { access: 'threads.create_run'; context: Json | undefined }
  | { access: 'assistants.read' | 'threads.read' | 'threads.update' };

/** JSON schemas; null where nothing says what it is. */
export interface GraphSchemas {
  state: Json;
  input: Json;
  output: Json;
  config: Json;
}

export interface GraphRegistry {
  /** Ids of the configured graphs, in config order. */
  ids(): string[];
  has(graphId: string): boolean;
  /** How a new turn gets its past (design section 3). */
  contextOf(graphId: string): 'checkpoint' | 'transcript';
  /**
   * A graph of its own for one execution, with the saver attached; never a shared object that is changed.
   * A factory export is called with the run's `configurable` and, second, what the graph is for.
   * @throws GraphLoadError with our own words; the cause is for the server's log
   */
  instantiate(
    graphId: string,
    saver: BaseCheckpointSaver,
    use: GraphUse & { configurable: JsonObject },
  ): Promise<DrivenGraph>;
}

/**
 * A fold from what `graph.stream` yields to events. One per run and epoch. `write` gives an event its id.
 * It never throws on what a graph yields: what JSON cannot hold (a cycle, a BigInt, a function) becomes a string that says so.
 */
export interface Translator {
  /** One item as LangGraph yields it with several modes and subgraphs: [namespace, mode, data]. */
  part(item: unknown): void;
  /** updates parts with __interrupt__, held until the run's end is committed. */
  readonly held: RunEvent[];
  /** Interrupts seen at the root: {id, value}, ids distinct. */
  readonly interrupts: { id: string; value: Json }[];
  /** True once the root graph stopped to ask, or at a breakpoint (`interruptBefore`), which has no interrupt. */
  readonly paused: boolean;
  /** The answer so far: the last AI text after the last tool call, at the root if the root has any. */
  answer(): { stream_id: string; content: Json } | null;
  /** Ids of AI messages streamed so far that no node has yet returned: what a retry or a takeover drops. */
  unfinished(): string[];
  /** What people saw of those of the root: id and text, where there is any. Kept in the lineage when the run ends badly. */
  partials(): { id: string; text: string }[];
  /**
   * The unfinished ids, which are then forgotten with their text, held parts and interrupts: for the `dropped` of a run.retry, before
   * the graph is started again in place. Updates that LangGraph repeats after that are dropped.
   */
  forgetUnfinished(): string[];
  /** AI messages told so far and not forgotten, by id, with the namespace they were told in. */
  shown(): Map<string, Namespace>;
  /** Forgets messages that clients are told to drop, and that the graph may tell again. */
  forget(ids: string[]): void;
  /** To be called when the stream has ended, well or not: writes usage of finished calls that was still owed. */
  end(): void;
  /** Usage summed over finished model calls, one count per call; null when no call reported any. */
  usage(): Usage | null;
  /** True when this very error object was thrown by a model call of the run. For `classify`. */
  fromModel(error: unknown): boolean;
}

export type WriteEvent = (event: Exclude<RunEvent, { type: 'run.sealed' }>) => Cursor;
