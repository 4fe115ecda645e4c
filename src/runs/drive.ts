/** One pass of a graph: its input, its config, and the loop that hands every part to the translator. */
import { Command } from '@langchain/langgraph';
import type { JsonObject } from '#src/events/event.ts';
import type { RunWriter } from '#src/events/writer.ts';
import { hasCheckpoint } from '#src/graphs/checkpoint-rows.ts';
import type { RunSaver } from '#src/graphs/checkpoints.ts';
import type { GraphRegistry } from '#src/graphs/graph.ts';
import { eachEvent, eachPart } from '#src/graphs/parts.ts';
import { answerInState } from '#src/graphs/state-answer.ts';
import type { RunTranslator } from '#src/graphs/translate.ts';
import type { Pool } from '#src/postgres/pool.ts';
import { createGraphStore } from '#src/store/graph-store.ts';
import { createStoreService, type StoreTtl } from '#src/store/service.ts';
import { transcriptBefore } from '#src/threads/transcript.ts';
import { commandOf } from './command.ts';
import type { LeaseGate } from './lease-gate.ts';
import type { Answer } from './outcome.ts';
import type { Run, RunConfig } from './run.ts';
import { orStopped } from './stop.ts';

/** What every run records, whatever its creator asked for. */
const ALWAYS_RECORDED = ['messages', 'updates', 'custom'];
/** Modes that LangGraph is not asked for, or not twice: `events` are not parts of its stream but what is around them. */
const NOT_ASKED_FOR = new Set<string>([...ALWAYS_RECORDED, 'events']);

export interface DriveDeps {
  pool: Pool;
  graphs: GraphRegistry;
  recursionLimit: number;
  /** For items a graph stores; without it they stay. */
  storeTtl?: StoreTtl | undefined;
  /** Nobody is asked who they are, so a run may say itself whose it is (`configurable.user_id`). */
  trustsUserId: boolean;
}

export interface DriveParts {
  writer: RunWriter;
  saver: RunSaver;
  translator: RunTranslator;
  gate: LeaseGate;
  /** The graph has taken the run's input or answer already: it goes on from the tip. */
  continues: boolean;
  /** Of a run that goes on: its answers, by interrupt id, that no task has taken yet. */
  untaken: JsonObject | null;
}

/**
 * Runs the graph to its end, or throws what it threw; `signal` reaches model calls and tools.
 * Returns the answer in the final state when the pass itself showed none (a run that was taken over at its very end).
 */
export async function drive(deps: DriveDeps, run: Run, parts: DriveParts, signal: AbortSignal): Promise<Answer | null> {
  const { writer, saver, translator, gate, untaken } = parts;
  const configurable = configurableOf(deps, run, parts.continues);
  if (!parts.continues) await assertBeginning(deps.pool, run);
  // A user's factory may hang; a stop must reach it all the same.
  const use = { access: 'threads.create_run', context: run.config.context, configurable } as const;
  const graph = await orStopped(deps.graphs.instantiate(run.graph_id, saver.saver, use), signal);
  // A run that goes on puts no checkpoint before its first step.
  await gate.pass();
  const rest = untaken === null ? null : new Command({ resume: untaken });
  const input = parts.continues ? rest : await inputOf(deps.pool, run);
  const options = {
    configurable,
    metadata: { ...run.config.metadata, run_id: run.id, thread_id: run.thread_id, graph_id: run.graph_id },
    ...optionsOf(run.config),
    recursionLimit: run.config.recursion_limit ?? deps.recursionLimit,
    runId: run.id,
    streamMode: [...ALWAYS_RECORDED, ...run.stream_modes.filter((mode) => !NOT_ASKED_FOR.has(mode))],
    subgraphs: true,
    durability: run.config.durability ?? 'sync',
    // A graph that was compiled with a store of its own keeps it.
    ...(graph.store === undefined
      ? { store: createGraphStore(createStoreService({ pool: deps.pool, ttl: deps.storeTtl }), run.owner) }
      : {}),
    callbacks: [gate, translator.usageCallback],
  };
  const onPart = (part: unknown): Promise<void> | undefined => {
    translator.part(part);
    return writer.room();
  };
  if (run.stream_modes.includes('events')) await eachEvent(graph, input, options, signal, onPart);
  else await eachPart(graph, input, options, signal, onPart);
  if (!parts.continues || translator.answer() !== null) return null;
  return answerInState(await graph.getState({ configurable: { thread_id: run.lineage_id } }));
}

/** LangGraph would begin an empty state. The checkpoint was there at admission, but its run may have been rolled back since. */
async function assertBeginning(pool: Pool, run: Run): Promise<void> {
  const { checkpoint_id: id, checkpoint_ns: ns = '' } = run.config.checkpoint ?? {};
  if (id === undefined || (await hasCheckpoint(pool, run.lineage_id, ns, id))) return;
  throw new Error(`run ${run.id} was to begin at a checkpoint that is gone`);
}

/** A run that goes on has a checkpoint of its own: it does not go back to the one it was started from. */
function configurableOf(deps: DriveDeps, run: Run, continues: boolean): JsonObject {
  const { configurable, checkpoint } = run.config;
  return {
    ...configurable,
    ...(continues ? {} : checkpoint),
    thread_id: run.lineage_id,
    run_id: run.id,
    graph_id: run.graph_id,
    ...(run.assistant_id === null ? {} : { assistant_id: run.assistant_id }),
    user_id: deps.trustsUserId ? (configurable?.user_id ?? run.owner) : run.owner,
  };
}

/** Only what is set: LangGraph takes undefined for a value of its own. */
function optionsOf({ tags, context, interrupt_before, interrupt_after }: RunConfig): object {
  return {
    ...(tags === undefined ? {} : { tags }),
    ...(context === undefined ? {} : { context }),
    ...(interrupt_before === undefined ? {} : { interruptBefore: interrupt_before }),
    ...(interrupt_after === undefined ? {} : { interruptAfter: interrupt_after }),
  };
}

/** What the graph is started with: the answer's command, or the message, with the past if the graph asks for a transcript. */
async function inputOf(pool: Pool, run: Run): Promise<unknown> {
  if (run.command !== null) return new Command(commandOf(run.command));
  const ownLineage = run.lineage_id !== run.thread_id;
  const opensLineage = run.kind === 'message' || run.kind === 'rerun';
  if (!opensLineage || run.turn_id === null || !ownLineage) return run.input;
  const past = await transcriptBefore(pool, run.thread_id, run.turn_id);
  const { messages } = run.input as { messages: JsonObject[] };
  return { messages: [...past, ...messages] };
}
