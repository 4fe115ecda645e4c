/**
 * Removes old checkpoints beyond a number per lineage, and nothing that a remaining one is built from.
 *
 * Kept are: the newest `keep`, the tip, where the latest turn and the latest run began, and of these every ancestor whose
 * writes they are rebuilt from. A channel that stores differences is rebuilt from its ancestors' writes, back to the last
 * one that stores the whole value; no snapshot is written here to cut that short, because only the graph knows how to
 * make one. So a lineage of such a graph is pruned up to its last snapshots and not further. Which channels those are is
 * read from what is stored, not from the graph: a channel without a value of its own whose ancestors have writes to it.
 *
 * Untouched are: lineages with an open question, threads with a live run, and namespaces of subgraphs that outlive a task.
 */
import type { Logger } from 'pino';
import type { Pool, Tx } from '#src/postgres/pool.ts';
import { inTransaction } from '#src/postgres/transaction.ts';
import { eachRow } from './sweep-rows.ts';

/** Lineages looked at by one statement, and checkpoints removed by one transaction. */
const SLICE = 500;
const BATCH = 1_000;

const QUIET = `
  not exists (
    select 1 from runs r where r.thread_id = l.thread_id and r.status in ('prepared', 'queued', 'running'))
  and not exists (select 1 from interrupts i where i.lineage_id = l.id and i.status <> 'closed')`;

// Two probes of an index: are there more than are kept, and has the lineage grown since it was last pruned? Where much had
// to stay, by as much again, so that looking costs a checkpoint the same however many stay.
const CANDIDATES = `
  with slice as (select * from lineages where id > $1::uuid order by id limit $2)
  select l.id, l.thread_id,
         exists (
           select 1 from checkpoints c where c.thread_id = l.id::text and c.checkpoint_ns = ''
           order by c.seq desc offset $3 limit 1)
         and exists (
           select 1 from checkpoints c where c.thread_id = l.id::text and c.checkpoint_ns = '' and c.seq > l.pruned_seq
           order by c.seq desc offset l.kept_extra limit 1)
         and ${QUIET} as due
  from slice l
  order by l.id`;

interface Lineage {
  id: string;
  thread_id: string;
}

export interface Pruner {
  /** Looks at the next lineages, from the first again after the last. Returns how many checkpoints were removed. */
  next(): Promise<number>;
}

/** @param keep checkpoints per lineage, at least 1 */
export function createPruner(pool: Pool, keep: number, logger: Logger): Pruner {
  const first = '00000000-0000-0000-0000-000000000000';
  let after = first;
  return {
    async next() {
      const { rows } = await pool.query<Lineage & { due: boolean }>(CANDIDATES, [after, SLICE, keep]);
      const due = rows.filter((row) => row.due);
      const removed = await eachRow(due, (row) => pruneLineage(pool, row, keep), logger);
      after = rows.length === SLICE ? (rows.at(-1)?.id ?? first) : first;
      return removed;
    },
  };
}

async function pruneLineage(pool: Pool, lineage: Lineage, keep: number): Promise<number> {
  for (let removed = 0; ; ) {
    const batch = await inTransaction(pool, (tx) => pruneBatch(tx, lineage, keep));
    removed += batch;
    if (batch < BATCH) return removed;
  }
}

// With the thread's row nothing can be admitted or claimed on it; that nothing lives on it is looked at under the lock.
const LOCK = `
  select 1 from threads where id = $1::uuid for no key update skip locked`;
const STILL_QUIET = `select 1 from lineages l where l.id = $1::uuid and ${QUIET}`;

/** Returns how many were removed; fewer than BATCH means that the lineage is done, or is left to another time. */
async function pruneBatch(tx: Tx, lineage: Lineage, keep: number): Promise<number> {
  const locked = await tx.query(LOCK, [lineage.thread_id]);
  if (locked.rows.length === 0) return 0;
  const quiet = await tx.query(STILL_QUIET, [lineage.id]);
  if (quiet.rows.length === 0) return 0;
  const kept = await keptOf(tx, lineage.id, keep);
  const { rowCount } = await tx.query(REMOVE, [lineage.id, kept, BATCH]);
  const removed = rowCount ?? 0;
  if (removed < BATCH) {
    await tx.query(REMOVE_BLOBS, [lineage.id]);
    await tx.query(REMOVE_SUBGRAPHS, [lineage.id]);
    await tx.query(MARK, [lineage.id, keep]);
  }
  return removed;
}

const ROOTS = `
  (select checkpoint_id from checkpoints where thread_id = $1::text and checkpoint_ns = '' order by seq desc limit $2)
  union
  select tip_checkpoint_id from lineages where id = $1::uuid and tip_checkpoint_id <> ''
  union
  -- a rerun of the latest turn starts there
  select r.base_checkpoint_id from runs r
  where r.lineage_id = $1::uuid and r.base_checkpoint_id <> ''
    and (r.ordinal = (select max(x.ordinal) from runs x where x.lineage_id = $1::uuid and x.kind <> 'edit')
         or r.turn_id = (
           select t.id from turns t join lineages l on l.thread_id = t.thread_id
           where l.id = $1::uuid order by t.ordinal desc limit 1))`;

const STORED = `
  exists (
    select 1 from checkpoint_blobs b
    where b.thread_id = $1::text and b.checkpoint_ns = '' and b.channel = c.channel
      and b.version = x.checkpoint -> 'channel_versions' ->> c.channel and b.type <> 'empty')`;

// Walks from each kept checkpoint, for each channel it stores no value of, up to the ancestor that does. Where writes to
// the channel are met on the way, the channel is rebuilt from them, and the whole way is needed. Names that begin with
// __ and are no channel are LangGraph's own marks (errors, interrupts, answers).
const NEEDED = `
  with recursive channels as materialized (
    select distinct channel from checkpoint_writes where thread_id = $1::text and checkpoint_ns = ''),
  walk as (
    select p.checkpoint_id, c.channel
    from checkpoints x
    cross join channels c
    join checkpoints p on p.thread_id = $1::text and p.checkpoint_ns = '' and p.checkpoint_id = x.parent_checkpoint_id
    where x.thread_id = $1::text and x.checkpoint_ns = '' and x.checkpoint_id = any($2::text[])
      and (left(c.channel, 2) <> '__' or x.checkpoint -> 'channel_versions' ? c.channel)
      and not ${STORED}
    union
    select p.checkpoint_id, c.channel
    from walk c
    join checkpoints x on x.thread_id = $1::text and x.checkpoint_ns = '' and x.checkpoint_id = c.checkpoint_id
    join checkpoints p on p.thread_id = $1::text and p.checkpoint_ns = '' and p.checkpoint_id = x.parent_checkpoint_id
    where not ${STORED}),
  rebuilt as materialized (
    select distinct walk.channel
    from walk
    join checkpoint_writes w
      on w.thread_id = $1::text and w.checkpoint_ns = '' and w.checkpoint_id = walk.checkpoint_id
     and w.channel = walk.channel)
  select walk.checkpoint_id from walk join rebuilt using (channel) where walk.checkpoint_id <> all ($2::text[])
  union
  -- checkpoints of format 3 and older find their pending sends in their parent's writes
  select p.checkpoint_id
  from checkpoints x
  join checkpoints p on p.thread_id = $1::text and p.checkpoint_ns = '' and p.checkpoint_id = x.parent_checkpoint_id
  where x.thread_id = $1::text and x.checkpoint_ns = '' and x.checkpoint_id = any($2::text[])
    and coalesce((x.checkpoint ->> 'v')::numeric, 0) < 4 and p.checkpoint_id <> all ($2::text[])`;

/** Ids to keep. What is kept because others need it can be read too, so it needs its own ancestors: repeated until none is added. */
async function keptOf(tx: Tx, lineageId: string, keep: number): Promise<string[]> {
  const roots = await tx.query<{ checkpoint_id: string }>(ROOTS, [lineageId, keep]);
  const kept = roots.rows.map((row) => row.checkpoint_id);
  for (;;) {
    const { rows } = await tx.query<{ checkpoint_id: string }>(NEEDED, [lineageId, kept]);
    if (rows.length === 0) return kept;
    kept.push(...rows.map((row) => row.checkpoint_id));
  }
}

// Newest first: if it takes several transactions, whatever is left in between still has its ancestors.
const REMOVE = `
  with old as materialized (
    select checkpoint_id from checkpoints
    where thread_id = $1::text and checkpoint_ns = '' and checkpoint_id <> all ($2::text[])
    order by seq desc
    limit $3),
  writes as (
    delete from checkpoint_writes w using old
    where w.thread_id = $1::text and w.checkpoint_ns = '' and w.checkpoint_id = old.checkpoint_id)
  delete from checkpoints c using old
  where c.thread_id = $1::text and c.checkpoint_ns = '' and c.checkpoint_id = old.checkpoint_id`;

const REMOVE_BLOBS = `
  with used as materialized (
    select distinct v.key as channel, v.value as version
    from checkpoints c
    cross join lateral jsonb_each_text(c.checkpoint -> 'channel_versions') v
    where c.thread_id = $1::text and c.checkpoint_ns = '')
  delete from checkpoint_blobs b
  where b.thread_id = $1::text and b.checkpoint_ns = ''
    and not exists (select 1 from used where used.channel = b.channel and used.version = b.version)`;

// A namespace with a colon belongs to one task of one checkpoint; it goes when none of its checkpoints has that any more.
const REMOVE_SUBGRAPHS = `
  with gone as materialized (
    select c.checkpoint_ns
    from checkpoints c
    where c.thread_id = $1::text and c.checkpoint_ns like '%:%'
    group by c.checkpoint_ns
    having bool_and(
      coalesce(c.metadata -> 'parents' ? '', false)
      and not exists (
        select 1 from checkpoints r
        where r.thread_id = $1::text and r.checkpoint_ns = '' and r.checkpoint_id = c.metadata -> 'parents' ->> ''))),
  writes as (delete from checkpoint_writes w using gone where w.thread_id = $1::text and w.checkpoint_ns = gone.checkpoint_ns),
  blobs as (delete from checkpoint_blobs b using gone where b.thread_id = $1::text and b.checkpoint_ns = gone.checkpoint_ns)
  delete from checkpoints c using gone where c.thread_id = $1::text and c.checkpoint_ns = gone.checkpoint_ns`;

const MARK = `
  update lineages
  set pruned_seq = left_over.seq, kept_extra = greatest(left_over.count - $2, 0)
  from (
    select coalesce(max(seq), 0) as seq, count(*)::int as count
    from checkpoints where thread_id = $1::text and checkpoint_ns = '') left_over
  where id = $1::uuid`;
