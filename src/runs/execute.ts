/** Drives a graph for one claimed run: parts become events, the end becomes an outcome. No status is written here. */
import type { Logger } from 'pino';
import { BEFORE_START } from '#src/events/cursor.ts';
import type { JsonObject, Usage } from '#src/events/event.ts';
import type { EventLog } from '#src/events/log.ts';
import type { LogWriter, RunWriter } from '#src/events/writer.ts';
import type { RunSaver } from '#src/graphs/checkpoints.ts';
import { classify } from '#src/graphs/failures.ts';
import type { GraphRegistry } from '#src/graphs/graph.ts';
import type { Told } from '#src/graphs/told.ts';
import { createTranslator, type RunTranslator } from '#src/graphs/translate.ts';
import { addUsage } from '#src/graphs/usage.ts';
import type { Pool } from '#src/postgres/pool.ts';
import { isUnavailable } from '#src/postgres/sqlstate.ts';
import type { StoreTtl } from '#src/store/service.ts';
import { type DriveParts, drive } from './drive.ts';
import { type FailureCode, failure, type failureOf } from './failures.ts';
import { type Lease, LeaseGate } from './lease-gate.ts';
import { closeAfter, repairBefore } from './lineage.ts';
import { emptyOutcome, type Outcome } from './outcome.ts';
import type { Run } from './run.ts';
import { openRunSaver } from './run-saver.ts';
import { createSaverHandles, type SaverHandles } from './saver-handles.ts';
import { Stop, sleptThrough, stopOf } from './stop.ts';
import {
  notStored,
  type PartialText,
  partialsOf,
  progressOf,
  readPast,
  reconcile,
  untakenAnswers,
} from './takeover.ts';

export interface ExecuteDeps {
  pool: Pool;
  checkpointPool: Pool;
  graphs: GraphRegistry;
  log: EventLog;
  writer: LogWriter;
  recursionLimit: number;
  trustsUserId: boolean;
  storeTtl?: StoreTtl | undefined;
  failureOf: typeof failureOf;
  maxRetries: number;
  maxTakeovers: number;
  lease: Lease;
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
 * @throws what Postgres throws when it is away: the run is to be handed back
 */
export async function execute(deps: ExecuteDeps, run: Run, abort: AbortController): Promise<Execution | null> {
  const { signal } = abort;
  const lost = (): void => abort.abort(new Stop('lost'));
  const writer = deps.writer.open(run.id, run.epoch, lost);
  const gate = new LeaseGate(deps.lease, signal);
  const savers = createSaverHandles(() => openRunSaver(deps.checkpointPool, run, lost, { writer, gate }));
  try {
    const outcome = await outcomeOf(deps, run, { writer, savers, gate, lost }, signal);
    await savers.close();
    if (stopOf(signal) === 'lost') return null;
    await writer.flush(FLUSH_MS);
    if (writer.fenced || stopOf(signal) === 'drain') return null;
    // A cancel that came after the graph had ended is stored as one, so its lineage is closed as one.
    const endsBadly = outcome.status === 'failed' || outcome.status === 'cancelled' || stopOf(signal) === 'cancel';
    if (endsBadly) await closeAfter(deps, run, outcome, lost);
    if (stopOf(signal) === 'lost') return null;
    // The end comes after all of it: what the log has not got yet is sent first.
    writer.leave();
    return { outcome, given: writer.given };
  } finally {
    await savers.close();
    writer.close();
  }
}

/** What an execution writes with. */
interface Means {
  writer: RunWriter;
  savers: SaverHandles;
  gate: LeaseGate;
  /** To be called when a write was refused. */
  lost: () => void;
}

/** A fault of our own code ends the run; only a database that is away leaves it to be handed back. */
async function outcomeOf(deps: ExecuteDeps, run: Run, means: Means, signal: AbortSignal): Promise<Ending> {
  const { writer, savers, gate } = means;
  try {
    const past = await begin(deps, run, means);
    return await attempts(deps, run, { writer, savers, gate, past }, signal);
  } catch (error) {
    if (isUnavailable(error)) throw error;
    deps.logger.error({ err: error, runId: run.id }, 'execution failed');
    const end = stopped(signal) ?? emptyOutcome('failed', { error: failure('INTERNAL') });
    return { ...end, leftCheckpoint: savers.wrote, partials: [] };
  }
}

interface Begun {
  /** Of former epochs. */
  usage: Usage | null;
  /** The graph has taken the run's input or answer already; what it has not taken of several answers. */
  continues: boolean;
  untaken: JsonObject | null;
  /** A former epoch left a checkpoint. */
  own: boolean;
  /** A former epoch ended badly and closed the lineage. */
  closed: boolean;
  /** What clients were told by former epochs; null when it is not known, or there was none. */
  told: Told | null;
  /** What they saw of messages of the root that no node returned, oldest first. */
  partials: PartialText[];
}

/** The first entry of this epoch: the run begins, or a run of another worker goes on. */
async function begin(deps: ExecuteDeps, run: Run, { writer, savers, lost }: Means): Promise<Begun> {
  const who = { run_id: run.id, thread_id: run.thread_id, turn_id: run.turn_id };
  if (run.epoch === 1) {
    writer.write({ type: 'run.started', ...who, graph_id: run.graph_id });
    await repairBefore(deps, run, lost);
    return { usage: null, continues: false, untaken: null, own: false, closed: false, told: null, partials: [] };
  }
  const past = await readPast(deps.log, run, deps.logger);
  const progress = await progressOf(deps.pool, run);
  const { checkpointId, continues, own, closed, logged } = progress;
  const untaken = await untakenAnswers(savers.current, run, progress);
  if (!continues) await repairBefore(deps, run, lost);
  if (!continues) await takeAnswersBack(run, savers.current);
  const partials = partialsOf(past);
  const { dropped, retold } = await reconcile(savers.current, run, past);
  const { told, usage } = past;
  // What finished steps have told is not told again: where the log lacks it, every reader must know.
  const after = Math.max(past.after, logged ?? BEFORE_START);
  const events = [
    { type: 'run.taken_over', ...who, takeover: run.takeovers, checkpoint_id: checkpointId, after, dropped } as const,
    ...retold,
  ];
  for (const event of events) {
    writer.write(event);
    told?.note(event);
  }
  writer.count(past.written);
  return { usage, continues, untaken, own, closed, told, partials };
}

interface Parts {
  writer: RunWriter;
  savers: SaverHandles;
  gate: LeaseGate;
  past: Begun;
}

/** Transient faults are tried again in place: same epoch, from the tip. */
async function attempts(deps: ExecuteDeps, run: Run, parts: Parts, signal: AbortSignal): Promise<Ending> {
  const { writer, savers, gate, past } = parts;
  const translator = createTranslator({
    write: (event) => writer.write(event),
    continued: past.continues || run.command !== null,
    cuts: run.config.keeps_chunks === true,
    ...(past.told === null ? {} : { told: past.told }),
  });
  const ending = (end: Outcome): Ending => ({
    ...end,
    usage: sum(past.usage, translator.usage()),
    answer: end.answer ?? translator.answer(),
    leftCheckpoint: past.own || savers.wrote,
    partials: translator.partials(),
  });
  const unexecuted = notExecuted(deps, run, past);
  if (unexecuted !== null) return { ...ending(unexecuted), answer: answerOf(past.partials), partials: past.partials };
  for (let attempt = 1, { continues, untaken } = past; ; attempt += 1) {
    const attemptParts = { writer, saver: savers.current, translator, gate, continues, untaken };
    const { end, transient } = await once(deps, run, attemptParts, signal);
    if (!transient || attempt > deps.maxRetries || signal.aborted) return ending(end);
    const delayMs = Math.min(FIRST_RETRY_MS * 2 ** (attempt - 1), LONGEST_RETRY_MS);
    writer.write({ type: 'run.retry', attempt, delay_ms: delayMs, dropped: translator.forgetUnfinished() });
    if (!(await sleptThrough(delayMs, signal))) return ending(stopped(signal) ?? end);
    await savers.renew();
    const progress = await progressOf(deps.pool, run);
    continues = progress.continues;
    untaken = await untakenAnswers(savers.current, run, progress);
    if (!continues) await takeAnswersBack(run, savers.current);
    if (!mayLackSteps(run, end)) continue;
    const dropped = await notStored(savers.current, run, translator.shown());
    if (dropped.length === 0) continue;
    translator.forget(dropped);
    writer.write({ type: 'run.retry', attempt, delay_ms: 0, dropped });
  }
}

/** Whether steps that have ended may not be in the checkpoints, and are therefore run again. */
function mayLackSteps({ config }: Run, { error }: Outcome): boolean {
  return error?.code === 'STORAGE_UNAVAILABLE' || (config.durability ?? 'sync') !== 'sync';
}

/**
 * Before an answer is given again. A task may have kept it at the checkpoint the run was started from, which is not the
 * tip; given it once more, it would take it for the answer to its next question.
 */
async function takeAnswersBack(run: Run, saver: RunSaver): Promise<void> {
  if (run.command !== null) await saver.forgetAnswers(run.lineage_id);
}

/** The end of a run that goes straight to closing; what its former owners showed is kept. Null: it is executed. */
function notExecuted(deps: ExecuteDeps, run: Run, past: Begun): Outcome | null {
  if (run.cancel_requested_at !== null) return emptyOutcome('cancelled');
  const code = whyGivenUp(deps, run, past);
  return code === null ? null : emptyOutcome('failed', { error: failure(code) });
}

/**
 * Why a run that was put back is not executed. Whoever put it back gives it up after too many takeovers, but a worker may
 * be quicker to claim it. And what a former owner closed has ended badly: gone on with, it would seem to have succeeded.
 */
function whyGivenUp(deps: ExecuteDeps, run: Run, past: Begun): FailureCode | null {
  if (past.closed) return 'INTERNAL';
  return run.takeovers > deps.maxTakeovers ? 'TAKEOVERS_EXHAUSTED' : null;
}

/** An outcome, and what people saw of messages that no node returned. */
interface Ending extends Outcome {
  partials: PartialText[];
}

async function once(
  deps: ExecuteDeps,
  run: Run,
  parts: DriveParts,
  signal: AbortSignal,
): Promise<{ end: Outcome; transient: boolean }> {
  const { translator } = parts;
  try {
    const answer = await drive(deps, run, parts, signal).finally(() => translator.end());
    signal.throwIfAborted();
    const { interrupts, held, paused } = translator;
    if (paused) return { end: { ...emptyOutcome('interrupted'), interrupts, held }, transient: false };
    return { end: { ...emptyOutcome('succeeded'), answer }, transient: false };
  } catch (error) {
    const stop = stopped(signal);
    if (stop !== null) return { end: stop, transient: false };
    const { code, transient } = faultOf(error, translator);
    deps.logger.error({ err: error, runId: run.id, threadId: run.thread_id, code, transient }, 'graph failed');
    return { end: emptyOutcome('failed', { error: deps.failureOf(code, error) }), transient };
  }
}

/** Our own database is no fault of the graph. */
function faultOf(error: unknown, translator: RunTranslator): { code: FailureCode; transient: boolean } {
  if (!translator.fromModel(error) && isUnavailable(error)) return { code: 'STORAGE_UNAVAILABLE', transient: true };
  return classify(error, translator.fromModel);
}

/** The end of a run that was stopped from outside; null when it was not. What is lost or handed back gets no end. */
function stopped(signal: AbortSignal): Outcome | null {
  const stop = stopOf(signal);
  if (stop === null) return null;
  return stop === 'timeout' ? emptyOutcome('failed', { error: failure('RUN_TIMEOUT') }) : emptyOutcome('cancelled');
}

function answerOf(partials: PartialText[]): Outcome['answer'] {
  const last = partials.at(-1);
  return last === undefined ? null : { content: last.text, stream_id: last.id };
}

function sum(a: Usage | null, b: Usage | null): Usage | null {
  return b === null ? a : addUsage(a, b);
}
