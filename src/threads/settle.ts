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

// One statement, because each is a trip that the end of every run waits for. Its parts touch different rows.
const SETTLE = `
  with former as (
    update messages set replaced = true
    where $5::uuid is not null and turn_id = $2::uuid and role = 'assistant' and not replaced),
  answer as (
    insert into messages (id, thread_id, turn_id, run_id, role, content, stream_id, partial)
    select $5::uuid, $1::uuid, $2::uuid, $4::uuid, 'assistant', $6::json, $7::text, $8::boolean
    where $5::uuid is not null),
  -- The graph has gone on: what it does not ask any more, nobody can answer.
  closed as (
    update interrupts set status = 'closed'
    where $9::boolean and lineage_id = $3::uuid and status <> 'closed' and id <> all ($10::text[])),
  reopened as (
    update interrupts set status = 'open', answered_by = null
    where not $9::boolean and answered_by = $4::uuid and status = 'answered'),
  -- One task that asks twice in a row asks under the same id: the row is opened again with the new question.
  opened as (
    insert into interrupts (lineage_id, id, thread_id, turn_id, run_id, value)
    select $3::uuid, i.id, $1::uuid, $2::uuid, $4::uuid, i.value
    from unnest($10::text[], $11::json[]) as i(id, value)
    on conflict (lineage_id, id) do update
    set status = 'open', value = excluded.value, run_id = excluded.run_id, turn_id = excluded.turn_id, answered_by = null)
  update threads set active_at = clock_timestamp() where id = $1::uuid`;

/** @param tx finalize's transaction, which holds the thread's row */
export async function settleTurn(tx: Tx, end: Settlement): Promise<void> {
  const answer = end.turnId === null ? null : end.answer;
  await tx.query({
    name: 'settle_turn',
    text: SETTLE,
    values: [
      end.threadId,
      end.turnId,
      end.lineageId,
      end.runId,
      answer === null ? null : randomUUID(),
      answer === null ? null : JSON.stringify(answer.content),
      storableText(answer?.stream_id ?? null),
      answer?.partial ?? false,
      end.taken,
      end.interrupts.map((interrupt) => interrupt.id),
      end.interrupts.map((interrupt) => JSON.stringify(interrupt.value)),
    ],
  });
}

/** A graph chooses its messages' ids, and `text` takes neither NUL nor lone surrogates: they become U+FFFD. */
function storableText(text: string | null): string | null {
  return text === null ? null : text.toWellFormed().replaceAll('\0', '\uFFFD');
}
