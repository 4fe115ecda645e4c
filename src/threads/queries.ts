/** Reading threads and turns: one statement each, however many turns there are. */
import type { InterruptFacts, Json, JsonObject, RunFailure } from '#src/events/event.ts';
import type { Queryable } from '#src/postgres/pool.ts';
import type { Thread, Turn } from './thread.ts';

interface ThreadRow extends Omit<Thread, 'created_at' | 'updated_at' | 'status'> {
  created_at: Date;
  updated_at: Date;
  active_at: Date;
  status: Thread['status'] | null;
}

const THREAD = `
  select t.id, t.owner, t.title, t.graph_id, t.metadata, t.archived, t.pinned, t.created_at, t.updated_at, t.active_at,
         r.id as latest_run_id, r.status
  from threads t
  left join lateral (
    select id, status from runs where thread_id = t.id and kind <> 'edit' and not hidden order by ordinal desc limit 1
  ) r on true`;

function toThread(row: ThreadRow): Thread {
  return {
    id: row.id,
    owner: row.owner,
    title: row.title,
    graph_id: row.graph_id,
    metadata: row.metadata as JsonObject,
    archived: row.archived,
    pinned: row.pinned,
    created_at: row.created_at.toISOString(),
    updated_at: row.updated_at.toISOString(),
    status: row.status ?? 'idle',
    latest_run_id: row.latest_run_id,
  };
}

export async function selectThread(db: Queryable, owner: string, threadId: string): Promise<Thread | null> {
  const { rows } = await db.query<ThreadRow>(`${THREAD} where t.id = $1::uuid and t.owner = $2`, [threadId, owner]);
  return rows[0] === undefined ? null : toThread(rows[0]);
}

/** Where a page of the list ended; microseconds, because JavaScript's dates would round them away. */
export interface ListPosition {
  active_at: string;
  id: string;
}

const PAGE = `
  select x.*, to_char(x.active_at at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') as position
  from (${THREAD}
    where t.owner = $1 and not t.temporary and ($2::boolean is null or t.archived = $2)
      and t.metadata @> all($6::jsonb[])
      and ($3::timestamptz is null or (t.active_at, t.id) < ($3::timestamptz, $4::uuid))
    order by t.active_at desc, t.id desc
    limit $5) x
  order by x.active_at desc, x.id desc`;

/** Up to `limit` threads after `from`, by recent activity, each with the position of its row. */
export async function selectThreads(
  db: Queryable,
  owner: string,
  page: { archived: boolean | null; within: readonly JsonObject[]; from: ListPosition | null; limit: number },
): Promise<{ thread: Thread; position: ListPosition }[]> {
  const { rows } = await db.query<ThreadRow & { position: string }>(PAGE, [
    owner,
    page.archived,
    page.from?.active_at ?? null,
    page.from?.id ?? null,
    page.limit,
    page.within.map((wanted) => JSON.stringify(wanted)),
  ]);
  return rows.map((row) => ({ thread: toThread(row), position: { active_at: row.position, id: row.id } }));
}

const UPDATE = `
  update threads
  set title = case when $3::boolean then $4 else title end,
      metadata = case when $8::boolean then metadata else '{}' end || coalesce($5::jsonb, metadata),
      archived = coalesce($6, archived),
      pinned = coalesce($7, pinned),
      updated_at = clock_timestamp()
  where id = $1::uuid and owner = $2`;

/** Returns whether there was such a thread. `title: undefined` keeps it, null removes it. Metadata replace what is there, or are added to it. */
export async function updateThread(
  db: Queryable,
  owner: string,
  threadId: string,
  fields: {
    title?: string | null | undefined;
    metadata?: JsonObject | undefined;
    adds_metadata?: boolean | undefined;
    archived?: boolean | undefined;
    pinned?: boolean | undefined;
  },
): Promise<boolean> {
  const { rowCount } = await db.query(UPDATE, [
    threadId,
    owner,
    fields.title !== undefined,
    fields.title ?? null,
    fields.metadata === undefined ? null : JSON.stringify(fields.metadata),
    fields.archived ?? null,
    fields.pinned ?? null,
    fields.adds_metadata ?? false,
  ]);
  return (rowCount ?? 0) > 0;
}

interface TurnRow {
  id: string;
  ordinal: number;
  created_at: Date;
  question: (Stored & { created_at: string }) | null;
  answer: (Stored & { partial: boolean; stream_id: string | null; created_at: string }) | null;
  run: { id: string; status: Turn['status']; error: RunFailure | null } | null;
  interrupts: InterruptFacts[];
  is_latest: boolean;
}
interface Stored {
  id: string;
  content: Json;
}

// json, not jsonb, all the way: content may hold NUL and lone surrogates.
const TURNS = `
  select u.id, u.ordinal, u.created_at, q.message as question, a.message as answer, r.run,
         coalesce(i.interrupts, '[]'::json) as interrupts,
         u.ordinal = max(u.ordinal) over () as is_latest
  from turns u
  left join lateral (
    select json_build_object('id', m.id, 'content', m.content, 'created_at', m.created_at) as message
    from messages m where m.turn_id = u.id and m.role = 'user' and not m.replaced order by m.seq desc limit 1) q on true
  left join lateral (
    select json_build_object('id', m.id, 'content', m.content, 'partial', m.partial, 'stream_id', m.stream_id,
                             'created_at', m.created_at) as message
    from messages m where m.turn_id = u.id and m.role = 'assistant' and not m.replaced order by m.seq desc limit 1) a on true
  left join lateral (
    select json_build_object('id', r.id, 'status', r.status, 'error', r.error) as run
    from runs r where r.turn_id = u.id and not r.hidden order by r.ordinal desc limit 1) r on true
  left join lateral (
    select json_agg(json_build_object('id', i.id, 'value', i.value) order by i.seq) as interrupts
    from interrupts i where i.turn_id = u.id and i.status = 'open') i on true
  where u.thread_id = $1::uuid
    -- a turn all of whose runs were rolled back or deleted is none
    and r.run is not null
  order by u.ordinal`;

const LIVE = new Set<Turn['status']>(['queued', 'running']);
const RERUNNABLE = new Set<Turn['status']>(['failed', 'cancelled']);

export async function selectTurns(db: Queryable, threadId: string): Promise<Turn[]> {
  const { rows } = await db.query<TurnRow>(TURNS, [threadId]);
  return rows.map((row) => {
    const status = row.run?.status ?? 'idle';
    return {
      id: row.id,
      ordinal: row.ordinal,
      question: row.question === null ? null : { ...row.question, created_at: iso(row.question.created_at) },
      answer: row.answer === null ? null : { ...row.answer, created_at: iso(row.answer.created_at) },
      status,
      active_run_id: row.run !== null && LIVE.has(status) ? row.run.id : null,
      latest_run_id: row.run?.id ?? null,
      interrupts: row.interrupts,
      error: row.run?.error ?? null,
      is_latest: row.is_latest,
      can_rerun: row.is_latest && RERUNNABLE.has(status),
      created_at: row.created_at.toISOString(),
    };
  });
}

/** json_build_object writes times in the session's zone; clients get UTC. */
function iso(time: string): string {
  return new Date(time).toISOString();
}

const LOCK = `select id from threads where id = $1::uuid and owner = $2 for update`;
const LINEAGES = `select id from lineages where thread_id = $1::uuid`;
const RUN_IDS = `select id from runs where thread_id = $1::uuid`;

/** Locks the thread for its deletion and names what hangs on it; null when there is none. */
export async function lockForDeletion(
  tx: Queryable,
  owner: string,
  threadId: string,
): Promise<{ lineageIds: string[]; runIds: string[] } | null> {
  const locked = await tx.query(LOCK, [threadId, owner]);
  if (locked.rows.length === 0) return null;
  const lineages = await tx.query<{ id: string }>(LINEAGES, [threadId]);
  const runs = await tx.query<{ id: string }>(RUN_IDS, [threadId]);
  return { lineageIds: lineages.rows.map((row) => row.id), runIds: runs.rows.map((row) => row.id) };
}

/** Deletes the thread and, by cascade, its turns, messages, runs, lineages and interrupts. */
export async function deleteThread(tx: Queryable, threadId: string): Promise<void> {
  await tx.query('delete from threads where id = $1::uuid', [threadId]);
}
