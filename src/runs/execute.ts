/** Drives a graph for one claimed run: parts become events, the end becomes an outcome. No status is written here. */
import type { Logger } from 'pino';
import type { Usage } from '#src/events/event.ts';
import type { EventLog } from '#src/events/log.ts';
import type { LogWriter, RunWriter } from '#src/events/writer.ts';
import { openSaver, type RunSaver } from '#src/graphs/checkpoints.ts';
import { classify } from '#src/graphs/failures.ts';
import type { GraphRegistry } from '#src/graphs/graph.ts';
import { createTranslator, type RunTranslator } from '#src/graphs/translate.ts';
import { addUsage } from '#src/graphs/usage.ts';
import type { Pool } from '#src/postgres/pool.ts';
import { drive } from './drive.ts';
import { failure } from './failures.ts';
import { emptyOutcome, type Outcome } from './outcome.ts';
import type { Run } from './run.ts';
import { Stop, stopOf } from './stop.ts';
import { droppedOf, progressOf, readPast } from './takeover.ts';

export interface ExecuteDeps {
  pool: Pool;
  checkpointPool: Pool;
  graphs: GraphRegistry;
  log: EventLog;
  writer: LogWriter;
  recursionLimit: number;
  maxRetries: number;
  logger: Logger;
}

/** What finalize needs of an execution; null when the run was lost or is handed back, and no end may be written. */
export interface Execution {
  outcome: Outcome;
  /** Ids the owner has given out; all of them are flushed or given up. */
  given: number;
}

/** How long the last events may take to reach the log before the end is stored without waiting for them. */
const FLUSH_MS = 2_000;
const FIRST_RETRY_MS = 500;
const LONGEST_RETRY_MS = 10_000;

/**
 * Executes a run this worker has claimed until the graph ends, asks a person, fails, or `abort` stops it.
 * The saver handle is closed before this returns: nothing the graph still does can write a checkpoint.
 * Never rejects for what a graph or a model does; that is an outcome.
 */
export async function execute(deps: ExecuteDeps, run: Run, abort: AbortController): Promise<Execution | null> {
  const { signal } = abort;
  const lost = (): void => abort.abort(new Stop('lost'));
  const writer = deps.writer.open(run.id, run.epoch, lost);
  const metadata = { ...run.config.configurable, run_id: run.id, graph_id: run.graph_id };
  const saver = openSaver(deps.checkpointPool, { runId: run.id, epoch: run.epoch, metadata }, lost);
  try {
    const usage = await openLog(deps, run, writer, saver);
    const outcome =
      run.cancel_requested_at === null
        ? await attempts(deps, run, { writer, saver, usage }, signal)
        : emptyOutcome('cancelled');
    await saver.close();
    if (stopOf(signal) === 'lost') return null;
    await writer.flush(FLUSH_MS);
    if (writer.fenced || stopOf(signal) === 'drain') return null;
    return { outcome: { ...outcome, leftCheckpoint: outcome.leftCheckpoint || saver.wrote }, given: writer.given };
  } finally {
    await saver.close();
    writer.close();
  }
}

/** The first entry of this epoch: the run begins, or another worker's run goes on. Returns the usage so far. */
async function openLog(deps: ExecuteDeps, run: Run, writer: RunWriter, saver: RunSaver): Promise<Usage | null> {
  const who = { run_id: run.id, thread_id: run.thread_id, turn_id: run.turn_id };
  if (run.epoch === 1) {
    writer.write({ type: 'run.started', ...who, graph_id: run.graph_id });
    return null;
  }
  const past = await readPast(deps.log, run, deps.logger);
  const { checkpointId } = await progressOf(deps.pool, run);
  writer.write({
    type: 'run.taken_over',
    ...who,
    takeover: run.takeovers,
    checkpoint_id: checkpointId,
    after: past.after,
    dropped: await droppedOf(saver, run, past.shown),
  });
  return past.usage;
}

interface Parts {
  writer: RunWriter;
  saver: RunSaver;
  /** Of former epochs and attempts. */
  usage: Usage | null;
}

/** Transient faults are tried again in place: same epoch, from the tip. */
async function attempts(deps: ExecuteDeps, run: Run, parts: Parts, signal: AbortSignal): Promise<Outcome> {
  let { usage } = parts;
  for (let attempt = 1; ; attempt += 1) {
    const { continues } = run.epoch > 1 || attempt > 1 ? await progressOf(deps.pool, run) : { continues: false };
    const translator = createTranslator({
      write: (event) => parts.writer.write(event),
      continued: continues || run.command !== null,
    });
    const outcome = await once(deps, run, { ...parts, translator, continues }, signal);
    usage = addUsageOrNull(usage, translator.usage());
    if (outcome.transient && attempt <= deps.maxRetries && !signal.aborted) {
      const delayMs = Math.min(FIRST_RETRY_MS * 2 ** (attempt - 1), LONGEST_RETRY_MS);
      parts.writer.write({ type: 'run.retry', attempt, delay_ms: delayMs, dropped: translator.unfinished() });
      if (await sleptThrough(delayMs, signal)) continue;
    }
    return { ...outcome.end, usage, leftCheckpoint: continues };
  }
}

interface Attempt extends Parts {
  translator: RunTranslator;
  continues: boolean;
}

async function once(
  deps: ExecuteDeps,
  run: Run,
  parts: Attempt,
  signal: AbortSignal,
): Promise<{ end: Outcome; transient: boolean }> {
  const { translator } = parts;
  try {
    const finalAnswer = await drive(deps, run, parts, signal);
    signal.throwIfAborted();
    const answer = translator.answer() ?? finalAnswer;
    if (translator.interrupts.length === 0) return { end: { ...emptyOutcome('succeeded'), answer }, transient: false };
    const { interrupts, held } = translator;
    return { end: { ...emptyOutcome('interrupted'), answer, interrupts, held }, transient: false };
  } catch (error) {
    const { end, transient } = badEnd(deps, run, error, signal);
    return { end: { ...end, answer: translator.answer() }, transient };
  }
}

function badEnd(
  deps: ExecuteDeps,
  run: Run,
  error: unknown,
  signal: AbortSignal,
): { end: Outcome; transient: boolean } {
  const stop = stopOf(signal);
  if (stop === 'cancel') return { end: emptyOutcome('cancelled'), transient: false };
  if (stop === 'timeout') return { end: emptyOutcome('failed', { error: failure('RUN_TIMEOUT') }), transient: false };
  const { code, transient } = classify(error);
  if (stop === null) {
    deps.logger.error({ err: error, runId: run.id, threadId: run.thread_id, code, transient }, 'graph failed');
  }
  return { end: emptyOutcome('failed', { error: failure(code) }), transient };
}

function addUsageOrNull(a: Usage | null, b: Usage | null): Usage | null {
  return b === null ? a : addUsage(a, b);
}

/** False when the signal aborted first. */
function sleptThrough(ms: number, signal: AbortSignal): Promise<boolean> {
  return new Promise((resolve) => {
    const finish = (): void => {
      clearTimeout(timer);
      signal.removeEventListener('abort', finish);
      resolve(!signal.aborted);
    };
    const timer = setTimeout(finish, ms);
    signal.addEventListener('abort', finish, { once: true });
    if (signal.aborted) finish();
  });
}
