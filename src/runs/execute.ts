/** Drives a graph for one claimed run: parts become events, the end becomes an outcome. No status is written here. */
import { Command } from '@langchain/langgraph';
import type { Logger } from 'pino';
import type { JsonObject } from '#src/events/event.ts';
import type { LogWriter, RunWriter } from '#src/events/writer.ts';
import { openSaver, type RunSaver } from '#src/graphs/checkpoints.ts';
import { classify } from '#src/graphs/failures.ts';
import type { GraphRegistry } from '#src/graphs/graph.ts';
import { createTranslator, type RunTranslator } from '#src/graphs/translate.ts';
import type { Pool } from '#src/postgres/pool.ts';
import { transcriptBefore } from '#src/threads/transcript.ts';
import { failure } from './failures.ts';
import { emptyOutcome, type Outcome } from './outcome.ts';
import type { Run } from './run.ts';
import { Stop, stopOf } from './stop.ts';

export interface ExecuteDeps {
  pool: Pool;
  checkpointPool: Pool;
  graphs: GraphRegistry;
  writer: LogWriter;
  recursionLimit: number;
  logger: Logger;
}

/** What finalize needs of an execution; null when the run was lost, and nothing may be written for it. */
export interface Execution {
  outcome: Outcome;
  /** Ids the owner has given out; all of them are flushed or given up. */
  given: number;
}

/** How long the last events may take to reach the log before the end is stored without waiting for them. */
const FLUSH_MS = 2_000;
const ALWAYS_RECORDED = ['messages', 'updates', 'custom'];

/**
 * Executes a run this worker has claimed until the graph ends, asks a person, fails, or `signal` stops it.
 * The saver handle is closed before this returns: nothing the graph still does can write a checkpoint.
 * Never rejects for what a graph or a model does; that is an outcome.
 */
export async function execute(deps: ExecuteDeps, run: Run, abort: AbortController): Promise<Execution | null> {
  const { signal } = abort;
  const writer = deps.writer.open(run.id, run.epoch, () => abort.abort(new Stop('lost')));
  const metadata = { ...run.config.configurable, run_id: run.id, graph_id: run.graph_id };
  const owner = { runId: run.id, epoch: run.epoch, metadata };
  const saver = openSaver(deps.checkpointPool, owner, () => abort.abort(new Stop('lost')));
  const translator = createTranslator({ write: (event) => writer.write(event) });
  writer.write({
    type: 'run.started',
    run_id: run.id,
    thread_id: run.thread_id,
    turn_id: run.turn_id,
    graph_id: run.graph_id,
  });
  try {
    const outcome =
      run.cancel_requested_at === null
        ? await attempt(deps, run, { writer, saver, translator }, signal)
        : emptyOutcome('cancelled');
    await saver.close();
    if (stopOf(signal) === 'lost') return null;
    await writer.flush(FLUSH_MS);
    if (writer.fenced) return null;
    return { outcome: { ...outcome, leftCheckpoint: saver.wrote }, given: writer.given };
  } finally {
    await saver.close();
    writer.close();
  }
}

interface Attempt {
  writer: RunWriter;
  saver: RunSaver;
  translator: RunTranslator;
}

async function attempt(deps: ExecuteDeps, run: Run, parts: Attempt, signal: AbortSignal): Promise<Outcome> {
  const { translator } = parts;
  try {
    await drive(deps, run, parts, signal);
    signal.throwIfAborted();
    const answered = { usage: translator.usage(), answer: translator.answer() };
    if (translator.interrupts.length === 0) return { ...emptyOutcome('succeeded'), ...answered };
    return { ...emptyOutcome('interrupted'), ...answered, interrupts: translator.interrupts, held: translator.held };
  } catch (error) {
    return { ...failed(deps, run, error, signal), usage: translator.usage(), answer: translator.answer() };
  }
}

function failed(deps: ExecuteDeps, run: Run, error: unknown, signal: AbortSignal): Outcome {
  const stop = stopOf(signal);
  if (stop === 'cancel') return emptyOutcome('cancelled');
  if (stop === 'timeout') return emptyOutcome('failed', { error: failure('RUN_TIMEOUT') });
  const { code } = classify(error);
  deps.logger.error({ err: error, runId: run.id, threadId: run.thread_id, code }, 'run failed');
  return emptyOutcome('failed', { error: failure(code) });
}

async function drive(deps: ExecuteDeps, run: Run, parts: Attempt, signal: AbortSignal): Promise<void> {
  const { writer, saver, translator } = parts;
  const configurable: JsonObject = {
    ...run.config.configurable,
    thread_id: run.lineage_id,
    run_id: run.id,
    graph_id: run.graph_id,
    user_id: run.owner,
  };
  const graph = await deps.graphs.instantiate(run.graph_id, saver.saver, { configurable });
  const stream = await graph.stream(await inputOf(deps.pool, run), {
    configurable,
    metadata: { ...run.config.metadata, run_id: run.id, thread_id: run.thread_id, graph_id: run.graph_id },
    ...(run.config.tags === undefined ? {} : { tags: run.config.tags }),
    recursionLimit: run.config.recursion_limit ?? deps.recursionLimit,
    streamMode: [...ALWAYS_RECORDED, ...run.stream_modes.filter((mode) => !ALWAYS_RECORDED.includes(mode))],
    subgraphs: true,
    durability: 'sync',
    callbacks: [translator.usageCallback],
    signal,
  });
  for await (const part of stream) {
    translator.part(part);
    const room = writer.room();
    if (room !== undefined) await untilAborted(room, signal);
  }
}

/** What the graph is started with: the answer's command, or the message, with the past if the graph asks for a transcript. */
async function inputOf(pool: Pool, run: Run): Promise<unknown> {
  if (run.command !== null) return new Command(run.command);
  const ownLineage = run.lineage_id !== run.thread_id;
  if (run.kind !== 'message' || run.turn_id === null || !ownLineage) return run.input;
  const past = await transcriptBefore(pool, run.thread_id, run.turn_id);
  const { messages } = run.input as { messages: JsonObject[] };
  return { messages: [...past, ...messages] };
}

function untilAborted(promise: Promise<void>, signal: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const onAbort = (): void => reject(signal.reason);
    if (signal.aborted) return onAbort();
    signal.addEventListener('abort', onAbort, { once: true });
    promise.then(resolve, reject).finally(() => signal.removeEventListener('abort', onAbort));
  });
}
