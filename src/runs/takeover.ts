/**
 * Going on with a run that another worker, or another attempt, began: from the tip of its lineage, without running
 * finished nodes again and without giving an answer to an interrupt a second time.
 */
import type { Logger } from 'pino';
import { decodeEvent } from '#src/events/codec.ts';
import { BEFORE_START, type Cursor, cursorOf } from '#src/events/cursor.ts';
import type { JsonObject, Namespace, RunEvent, Usage } from '#src/events/event.ts';
import type { EventLog } from '#src/events/log.ts';
import type { RunSaver } from '#src/graphs/checkpoints.ts';
import { contentText, messageFields, toolCalls } from '#src/graphs/message-fields.ts';
import { storedBeside } from '#src/graphs/stored-messages.ts';
import { createTold, type Told } from '#src/graphs/told.ts';
import { addUsage } from '#src/graphs/usage.ts';
import type { Queryable } from '#src/postgres/pool.ts';
import { isByInterrupt } from './resume.ts';
import type { Run } from './run.ts';

/** What the log says of a run's former epochs. */
export interface Past {
  /** The last id that a former owner left in the log; a reader that stands elsewhere must resync. */
  after: Cursor;
  /** AI messages shown so far: id -> namespace. */
  shown: Map<string, string[]>;
  /** What clients were told; null when the log could not be read. */
  told: Told | null;
  /** Their text as it was shown. */
  texts: Map<string, string>;
  usage: Usage | null;
  /** What is in the log: its limits are the run's. */
  written: { events: number; bytes: number; torn: boolean };
}

/** What was shown of a message that no node returned. */
export interface PartialText {
  id: string;
  text: string;
}

const PAGE = 1_000;

/**
 * Reads the log of the former epochs. When it cannot be read (Redis is away) nothing is known of it: `after` is then the
 * highest id they can have given out, so that every reader resyncs.
 */
export async function readPast(log: EventLog, run: Run, logger: Logger): Promise<Past> {
  const told = createTold();
  const written = { events: 0, bytes: 0, torn: false };
  const past: Past = { after: BEFORE_START, shown: new Map(), told, texts: new Map(), usage: null, written };
  const heads = new Map<Cursor, string>();
  try {
    for (let read = BEFORE_START; ; ) {
      const { entries } = await log.read(run.id, read, PAGE);
      for (const entry of entries) {
        read = entry.cursor;
        written.events += 1;
        written.bytes += Buffer.byteLength(entry.payload);
        const event = decodeEvent(entry.payload);
        // Put there by whoever put the run back.
        if (event?.type !== 'run.requeued') past.after = entry.cursor;
        if (event !== null) told.note(event);
        if (event?.type === 'message.head' || event?.type === 'message.whole') {
          if (event.message.type === 'ai') past.shown.set(event.message.id, event.ns);
          heads.set(entry.cursor, event.message.id);
          past.texts.set(event.message.id, contentText(event.message.content));
        } else if (event?.type === 'message.delta' && event.kind === 'text') {
          const id = heads.get(event.m);
          if (id !== undefined) past.texts.set(id, (past.texts.get(id) ?? '') + event.text);
        } else if (event?.type === 'run.usage') {
          past.usage = addUsage(past.usage, event.usage);
        } else if (event?.type === 'log.torn') {
          written.torn = true;
        }
      }
      if (entries.length < PAGE) return past;
    }
  } catch (error) {
    logger.warn({ err: error, runId: run.id }, 'past of a taken-over run not readable; its readers resync');
    return { ...past, told: null, after: cursorOf(run.epoch, 0) - 1 };
  }
}

/** Texts of the root's messages that were shown without their end, oldest first. */
export function partialsOf(past: Past): PartialText[] {
  return (past.told?.unfinished() ?? []).flatMap((id) => {
    const text = past.texts.get(id) ?? '';
    return text === '' || (past.shown.get(id)?.length ?? 1) > 0 ? [] : [{ id, text }];
  });
}

/** What clients must forget, and what they are then told anew because the checkpoints hold it. */
export interface Reconciled {
  dropped: string[];
  retold: Exclude<RunEvent, { type: 'run.sealed' }>[];
}

/**
 * Compares what was shown with what is stored. Forgotten is what is in neither the checkpoints nor their pending writes,
 * and what was shown without its end: the last of its text may not have reached the log. Of that, what a checkpoint holds
 * is told whole; what only pending writes hold LangGraph repeats itself.
 */
export async function reconcile(saver: RunSaver, run: Run, past: Past): Promise<Reconciled> {
  if (past.shown.size === 0) return { dropped: [], retold: [] };
  const stored = await storedBeside(saver.saver, run.lineage_id, past.shown);
  const cut = new Set(past.told?.unfinished() ?? []);
  const dropped = [...past.shown.keys()].filter((id) => !stored.has(id) || cut.has(id));
  const retold = dropped.flatMap((id): Reconciled['retold'] => {
    const kept = stored.get(id);
    if (kept === undefined || kept.pending) return [];
    const ns = past.shown.get(id) ?? [];
    const calls = toolCalls(kept.message);
    const whole = { type: 'message.whole', ns, message: messageFields(kept.message), metadata: {} } as const;
    return calls.length === 0
      ? [whole]
      : [whole, { type: 'message.tool_calls', ns, message_id: id, tool_calls: calls }];
  });
  return { dropped, retold };
}

/**
 * Of the AI messages shown so far, those that neither the checkpoints nor their pending writes hold: a step that could not be
 * stored is run again in place, and says something else.
 */
export async function notStored(saver: RunSaver, run: Run, shown: Map<string, Namespace>): Promise<string[]> {
  if (shown.size === 0) return [];
  const stored = await storedBeside(saver.saver, run.lineage_id, shown);
  return [...shown.keys()].filter((id) => !stored.has(id));
}

// Checkpoints of source 'update' are ours, not the graph's: a repair before the run's input, or the closing of its lineage.
const PROGRESS = `
  select l.tip_checkpoint_id as checkpoint_id,
         coalesce(tip.run_id = $2::uuid and (tip.metadata ->> 'source' is distinct from 'update' or ran.yes), false) as own,
         coalesce(tip.run_id = $2::uuid and tip.metadata ->> 'source' = 'update' and ran.yes, false) as closed,
         (select max(c.log_cursor) from checkpoints c
          where c.thread_id = l.id::text and c.run_id = $2::uuid) as logged,
         exists (
           select 1 from checkpoint_writes w
           where w.thread_id = l.id::text and w.checkpoint_ns = '' and w.checkpoint_id = l.tip_checkpoint_id
             and w.channel = '__resume__' and w.run_id = $2::uuid
             -- under an interrupt's id is what was given to LangGraph, under a task's id what a task has taken
             and w.task_id <> all ($3::text[])) as answered
  from lineages l
  left join checkpoints tip
    on tip.thread_id = l.id::text and tip.checkpoint_ns = '' and tip.checkpoint_id = l.tip_checkpoint_id
  left join lateral (
    select true as yes from checkpoints c
    where tip.run_id = $2::uuid and tip.metadata ->> 'source' = 'update'
      and c.thread_id = l.id::text and c.checkpoint_ns = '' and c.run_id = $2::uuid
      and c.metadata ->> 'source' is distinct from 'update'
    limit 1) ran on true
  where l.id = $1::uuid`;

export interface Progress {
  checkpointId: string | null;
  /** The tip is a checkpoint of the run's own. */
  own: boolean;
  /**
   * The run's input or its answer is in the checkpoints already (the tip is its own, or has a resume write made by it), so
   * the graph is given null; giving it again would answer the next interrupt.
   */
  continues: boolean;
  /** The run ended badly and its lineage was closed, but its owner did not live to store the end. */
  closed: boolean;
  /** The last event of the steps that its checkpoints hold, graphs in graphs included; null when they do not say. */
  logged: Cursor | null;
}

interface ProgressRow {
  checkpoint_id: string | null;
  own: boolean;
  answered: boolean;
  closed: boolean;
  logged: string | null;
}

/** Where the run stands on its lineage. */
export async function progressOf(db: Queryable, run: Run): Promise<Progress> {
  const values = [run.lineage_id, run.id, Object.keys(answersOf(run))];
  const { rows } = await db.query<ProgressRow>(PROGRESS, values);
  const [row] = rows;
  if (row === undefined) return { checkpointId: null, own: false, continues: false, closed: false, logged: null };
  const { own, answered, closed } = row;
  const logged = row.logged === null ? null : Number(row.logged);
  return { checkpointId: row.checkpoint_id, own, continues: own || answered, closed, logged };
}

/**
 * Of a run that goes on: its answers that no task has taken yet. Tasks that ask side by side take theirs one by one, and a
 * crash may come between.
 */
export async function untakenAnswers(
  saver: RunSaver,
  run: Run,
  { own, continues }: Pick<Progress, 'own' | 'continues'>,
): Promise<JsonObject | null> {
  const resume = run.command?.resume;
  if (own || !continues || !isByInterrupt(resume)) return null;
  const asked = await saver.stillAsked(run.lineage_id);
  const untaken = Object.entries(resume).filter(([id]) => asked.has(id));
  return untaken.length === 0 ? null : Object.fromEntries(untaken);
}

/** `{interrupt id: value}` of a run that answers. */
function answersOf(run: Run): object {
  const resume = run.command?.resume;
  return typeof resume === 'object' && resume !== null ? resume : {};
}

const FORMER = `
  select status from runs
  where lineage_id = $1::uuid and ordinal < $2 and not hidden
  order by ordinal desc limit 1`;

/** True when the lineage's former run ended badly: its owner may not have lived to close the lineage. */
export async function needsRepair(db: Queryable, run: Run): Promise<boolean> {
  if (run.ordinal === 1) return false;
  const { rows } = await db.query<{ status: Run['status'] }>(FORMER, [run.lineage_id, run.ordinal]);
  return rows[0]?.status === 'failed' || rows[0]?.status === 'cancelled';
}
