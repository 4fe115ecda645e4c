/** What an admission needs of threads, interrupts and lineages, inside its transaction. */
import type { JsonObject } from '#src/events/event.ts';
import type { Queryable, Tx } from '#src/postgres/pool.ts';
import type { ThreadTtl } from './thread.ts';

/** What admission needs of the thread's row, which it holds. */
export interface LockedThread {
  id: string;
  graph_id: string | null;
}

const INSERT_THREAD = `
  with thread as (
    insert into threads (id, owner, title, graph_id, metadata)
    values ($1::uuid, $2, $3, $4, $5::jsonb)
    returning id)
  -- the thread's own lineage has the thread's id
  insert into lineages (id, thread_id) select id, id from thread`;

/** Inserts a thread and its own lineage, in one statement. */
export async function insertThread(
  db: Queryable,
  thread: {
    id: string;
    owner: string;
    title?: string | undefined;
    graphId?: string | undefined;
    metadata?: JsonObject | undefined;
  },
): Promise<void> {
  await db.query(INSERT_THREAD, [
    thread.id,
    thread.owner,
    thread.title ?? null,
    thread.graphId ?? null,
    JSON.stringify(thread.metadata ?? {}),
  ]);
}

const LOCK_THREAD = `select id, graph_id from threads where id = $1::uuid and owner = $2 for no key update`;

/** Locks the owner's thread for the rest of the transaction; null when there is none. */
export async function lockThread(tx: Tx, owner: string, threadId: string): Promise<LockedThread | null> {
  const { rows } = await tx.query<LockedThread>({ name: 'thread_lock', text: LOCK_THREAD, values: [threadId, owner] });
  return rows[0] ?? null;
}

/** A thread as a run of a LangGraph client needs it. */
export interface ConfiguredThread {
  id: string;
  /** What former runs were configured with. */
  config: { configurable?: JsonObject };
  metadata: JsonObject;
}

const LOCK_CONFIGURED = `
  select id, config, metadata from threads where id = $1::uuid and owner = $2 for no key update`;

/** Locks the owner's thread for the rest of the transaction; null when there is none. */
export async function lockConfiguredThread(tx: Tx, owner: string, threadId: string): Promise<ConfiguredThread | null> {
  const values = [threadId, owner];
  const { rows } = await tx.query<ConfiguredThread>({ name: 'thread_configured', text: LOCK_CONFIGURED, values });
  return rows[0] ?? null;
}

const INSERT_IF_NEW = `
  with thread as (
    insert into threads (id, owner, temporary, metadata, graph_id, ttl_minutes, ttl_strategy, ttl_set_at)
    values ($1::uuid, $2, $3, $4::jsonb, $5, $6::float8, $7, case when $6::float8 is not null then clock_timestamp() end)
    on conflict (id) do nothing
    returning id)
  insert into lineages (id, thread_id) select id, id from thread`;

/** Inserts a thread and its own lineage. Returns false when the id is taken, by whomever. */
export async function insertThreadIfNew(
  tx: Queryable,
  thread: {
    id: string;
    owner: string;
    temporary?: boolean;
    metadata?: JsonObject;
    graphId?: string | undefined;
    ttl?: ThreadTtl | null | undefined;
  },
): Promise<boolean> {
  const { id, owner, temporary = false, metadata = {}, graphId = null, ttl } = thread;
  const values = [id, owner, temporary, JSON.stringify(metadata), graphId, ttl?.minutes ?? null, ttl?.strategy ?? null];
  const { rowCount } = await tx.query({ name: 'thread_if_new', text: INSERT_IF_NEW, values });
  return rowCount === 1;
}

const OPEN_INTERRUPTS = `
  select id, lineage_id, turn_id, status from interrupts where thread_id = $1::uuid and status <> 'closed' order by seq`;

export interface PendingInterrupt {
  id: string;
  lineage_id: string;
  turn_id: string | null;
  status: 'open' | 'answered';
}

/** Interrupts of the thread that are open, or answered by a run that has not ended. */
export async function pendingInterrupts(db: Queryable, threadId: string): Promise<PendingInterrupt[]> {
  const { rows } = await db.query<PendingInterrupt>(OPEN_INTERRUPTS, [threadId]);
  return rows;
}

const ANSWER = `
  update interrupts set status = 'answered', answered_by = $3::uuid
  where lineage_id = $1::uuid and id = any($2::text[])
    -- guard: nobody answered meanwhile
    and status = 'open'`;

/** open -> answered by this run. Returns how many were open; fewer than asked means the caller lost a race. */
export async function answerInterrupts(tx: Tx, lineageId: string, ids: string[], runId: string): Promise<number> {
  const { rowCount } = await tx.query(ANSWER, [lineageId, ids, runId]);
  return rowCount ?? 0;
}

const CLOSE = `
  update interrupts set status = 'closed', answered_by = null where lineage_id = $1::uuid and status <> 'closed'`;

/** Nobody will answer these any more: the lineage goes on without them. */
export async function closeInterrupts(tx: Tx, lineageId: string): Promise<void> {
  await tx.query(CLOSE, [lineageId]);
}

/** Moves a lineage's tip to one of its checkpoints; '' is before the first. */
export async function moveTip(tx: Tx, lineageId: string, checkpointId: string): Promise<void> {
  await tx.query('update lineages set tip_checkpoint_id = $2 where id = $1::uuid', [lineageId, checkpointId]);
}
