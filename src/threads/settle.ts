/** What the end of a run changes for people, inside finalize's transaction: the answer, the questions, the activity. */
import { randomUUID } from 'node:crypto';
import type { InterruptFacts, Json } from '#src/events/event.ts';
import type { Tx } from '#src/postgres/pool.ts';

export interface Settlement {
  threadId: string;
  /** null: the run has no turn; nothing is shown to people. */
  turnId: string | null;
  lineageId: string;
  runId: string;
  answer: { content: Json; stream_id: string | null; partial: boolean } | null;
  /** Questions that are open from now on. */
  interrupts: InterruptFacts[];
  /** When false, the graph never took what the run brought: interrupts it was to answer are open again. */
  taken: boolean;
}

const ANSWER = `
  insert into messages (id, thread_id, turn_id, run_id, role, content, stream_id, partial)
  values ($1::uuid, $2::uuid, $3::uuid, $4::uuid, 'assistant', $5::json, $6, $7)`;

const REPLACE_FORMER = `
  update messages set replaced = true where turn_id = $1::uuid and role = 'assistant' and not replaced`;

const REOPEN = `
  update interrupts set status = 'open', answered_by = null where answered_by = $1::uuid and status = 'answered'`;

// The graph has gone on: what it does not ask any more, nobody can answer.
const CLOSE_REST = `
  update interrupts set status = 'closed'
  where lineage_id = $1::uuid and status <> 'closed' and id <> all ($2::text[])`;

// One task that asks twice in a row asks under the same id: the row is opened again with the new question.
const OPEN = `
  insert into interrupts (lineage_id, id, thread_id, turn_id, run_id, value)
  select $1::uuid, i.id, $2::uuid, $3::uuid, $4::uuid, i.value
  from unnest($5::text[], $6::json[]) as i(id, value)
  on conflict (lineage_id, id) do update
  set status = 'open', value = excluded.value, run_id = excluded.run_id, turn_id = excluded.turn_id, answered_by = null`;

const ACTIVITY = `update threads set active_at = clock_timestamp() where id = $1::uuid`;

/** @param tx finalize's transaction, which holds the thread's row */
export async function settleTurn(tx: Tx, end: Settlement): Promise<void> {
  if (end.turnId !== null && end.answer !== null) {
    await tx.query(REPLACE_FORMER, [end.turnId]);
    await tx.query(ANSWER, [
      randomUUID(),
      end.threadId,
      end.turnId,
      end.runId,
      JSON.stringify(end.answer.content),
      storableText(end.answer.stream_id),
      end.answer.partial,
    ]);
  }
  if (end.taken) await tx.query(CLOSE_REST, [end.lineageId, end.interrupts.map((interrupt) => interrupt.id)]);
  else await tx.query(REOPEN, [end.runId]);
  if (end.interrupts.length > 0) {
    await tx.query(OPEN, [
      end.lineageId,
      end.threadId,
      end.turnId,
      end.runId,
      end.interrupts.map((interrupt) => interrupt.id),
      end.interrupts.map((interrupt) => JSON.stringify(interrupt.value)),
    ]);
  }
  await tx.query(ACTIVITY, [end.threadId]);
}

/** A graph chooses its messages' ids, and `text` takes neither NUL nor lone surrogates: they become U+FFFD. */
function storableText(text: string | null): string | null {
  return text === null ? null : text.toWellFormed().replaceAll('\0', '\uFFFD');
}
