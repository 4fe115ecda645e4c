/** What the end of a run changes for people, inside finalize's transaction: the answer, the questions, the activity. */
import { randomUUID } from 'node:crypto';
import type { InterruptFacts, Json } from '#src/events/event.ts';
import type { Tx } from '#src/postgres/pool.ts';

export interface SettledRun {
  id: string;
  thread_id: string;
  /** null: the run has no turn; its answer is not shown to people. */
  turn_id: string | null;
  lineage_id: string;
}

export interface Settlement {
  answer: { content: Json; stream_id: string | null; partial: boolean } | null;
  /** Questions that are open from now on. */
  interrupts: InterruptFacts[];
  /** When false, the graph never took what the run brought: interrupts it was to answer are open again. */
  taken: boolean;
}

/** What `settleParts` reads beside the run's row, in this order. */
const PARAMETERS = ['answerId', 'content', 'streamId', 'partial', 'taken', 'asked', 'questions'] as const;

/**
 * The parts of a statement that settle a turn. They read the run from its part `run` (id, thread_id, turn_id, lineage_id)
 * and do nothing when that has no row. They touch different rows, so their order does not matter.
 * @param first number of the first parameter; the values are `settleValues`
 */
export function settleParts(first: number): string {
  const at = Object.fromEntries(PARAMETERS.map((name, index) => [name, `$${first + index}`]));
  return `
  former as (
    update messages m set replaced = true from run
    where ${at.answerId}::uuid is not null and m.turn_id = run.turn_id and m.role = 'assistant' and not m.replaced),
  answer as (
    insert into messages (id, thread_id, turn_id, run_id, role, content, stream_id, partial)
    select ${at.answerId}::uuid, run.thread_id, run.turn_id, run.id, 'assistant', ${at.content}::json, ${at.streamId}::text,
           ${at.partial}::boolean
    from run where ${at.answerId}::uuid is not null and run.turn_id is not null),
  -- The graph has gone on: what it does not ask any more, nobody can answer.
  closed as (
    update interrupts i set status = 'closed' from run
    where ${at.taken}::boolean and i.lineage_id = run.lineage_id and i.status <> 'closed' and i.id <> all (${at.asked}::text[])),
  reopened as (
    update interrupts i set status = 'open', answered_by = null from run
    where not ${at.taken}::boolean and i.answered_by = run.id and i.status = 'answered'),
  -- One task that asks twice in a row asks under the same id: the row is opened again with the new question.
  opened as (
    insert into interrupts (lineage_id, id, thread_id, turn_id, run_id, value)
    select run.lineage_id, question.id, run.thread_id, run.turn_id, run.id, question.value
    from run, unnest(${at.asked}::text[], ${at.questions}::json[]) as question(id, value)
    on conflict (lineage_id, id) do update
    set status = 'open', value = excluded.value, run_id = excluded.run_id, turn_id = excluded.turn_id, answered_by = null),
  active as (update threads t set active_at = clock_timestamp() from run where t.id = run.thread_id)`;
}

/** The parameters of `settleParts`. */
export function settleValues({ answer, taken, interrupts }: Settlement): unknown[] {
  return [
    answer === null ? null : randomUUID(),
    answer === null ? null : JSON.stringify(answer.content),
    storableText(answer?.stream_id ?? null),
    answer?.partial ?? false,
    taken,
    interrupts.map((interrupt) => interrupt.id),
    interrupts.map((interrupt) => JSON.stringify(interrupt.value)),
  ];
}

// One statement, because each is a trip that the end of a run waits for.
const SETTLE = `
  with run as (select $1::uuid as id, $2::uuid as thread_id, $3::uuid as turn_id, $4::uuid as lineage_id),${settleParts(5)}
  select`;

/** @param tx finalize's transaction, which holds the thread's row */
export async function settleTurn(tx: Tx, run: SettledRun, end: Settlement): Promise<void> {
  await tx.query({
    name: 'settle_turn',
    text: SETTLE,
    values: [run.id, run.thread_id, run.turn_id, run.lineage_id, ...settleValues(end)],
  });
}

/** A graph chooses its messages' ids, and `text` takes neither NUL nor lone surrogates: they become U+FFFD. */
function storableText(text: string | null): string | null {
  return text === null ? null : text.toWellFormed().replaceAll('\0', '\uFFFD');
}
