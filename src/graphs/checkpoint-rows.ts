/** Checkpoints of a lineage as rows, past the saver: what a transaction of ours looks at, removes and copies as a whole. */
import type { Queryable, Tx } from '#src/postgres/pool.ts';
import { FORGET_ANSWERS_OF } from './checkpoint-sql.ts';

const HAS = `select 1 from checkpoints where thread_id = $1 and checkpoint_ns = $2 and checkpoint_id = $3`;

/** Whether a lineage has this checkpoint. `ns`: '' is the root graph. */
export async function hasCheckpoint(db: Queryable, lineageId: string, ns: string, id: string): Promise<boolean> {
  const { rows } = await db.query(HAS, [lineageId, ns, id]);
  return rows.length > 0;
}

// A checkpoint that a living one is built from is never among these: the tip has gone back before the run's first.
const ROLL_BACK = `
  with doomed as materialized (
    delete from checkpoints where thread_id = $1 and run_id = $2::uuid
    returning checkpoint_ns, checkpoint_id, checkpoint -> 'channel_versions' as versions),
  base as (
    select checkpoint -> 'channel_versions' as versions
    from checkpoints where thread_id = $1 and checkpoint_ns = '' and checkpoint_id = $3),
  -- what was asked before the run began is still asked
  writes as (
    delete from checkpoint_writes w
    where w.thread_id = $1
      and (w.run_id = $2::uuid and w.channel <> '__interrupt__'
           or exists (select 1 from doomed d where d.checkpoint_ns = w.checkpoint_ns and d.checkpoint_id = w.checkpoint_id)))
  delete from checkpoint_blobs b
  using (
    select distinct d.checkpoint_ns, v.channel, v.version
    from doomed d cross join lateral jsonb_each_text(d.versions) as v(channel, version)
    where d.checkpoint_ns = '') made
  where b.thread_id = $1 and b.checkpoint_ns = '' and b.channel = made.channel and b.version = made.version
    and not exists (select 1 from base where base.versions ->> made.channel = made.version)`;
const EMPTY_NAMESPACES = `
  delete from checkpoint_blobs b
  where b.thread_id = $1 and b.checkpoint_ns <> ''
    and not exists (select 1 from checkpoints c where c.thread_id = b.thread_id and c.checkpoint_ns = b.checkpoint_ns)`;

/**
 * Removes what a run wrote on a lineage, in a transaction that has put the tip back to `baseId`, where the run began.
 * @param baseId '' when the lineage had no checkpoint then
 */
export async function removeCheckpointsOf(tx: Tx, lineageId: string, runId: string, baseId: string): Promise<void> {
  await tx.query(ROLL_BACK, [lineageId, runId, baseId]);
  await tx.query(EMPTY_NAMESPACES, [lineageId]);
}

const IS_HEAD = `
  select 1 from lineages l
  join checkpoints tip on tip.thread_id = $1::text and tip.checkpoint_ns = '' and tip.checkpoint_id = l.tip_checkpoint_id
  where l.id = $1::text::uuid and tip.run_id = $2::uuid
    -- nobody wrote after it: a fork from one of its checkpoints may have been left behind
    and not exists (
      select 1 from checkpoints later
      where later.thread_id = $1::text and later.seq > tip.seq and later.run_id is distinct from tip.run_id)`;

/** Whether the lineage ends in checkpoints of this run. */
export async function isHead(tx: Tx, lineageId: string, runId: string): Promise<boolean> {
  const { rows } = await tx.query(IS_HEAD, [lineageId, runId]);
  return rows.length > 0;
}

// Ordered, so that the copies' own order of writing is that of the originals.
const COPY = [
  `insert into checkpoint_blobs (thread_id, checkpoint_ns, channel, version, type, blob)
   select $2, checkpoint_ns, channel, version, type, blob from checkpoint_blobs where thread_id = $1`,
  `insert into checkpoint_writes (thread_id, checkpoint_ns, checkpoint_id, task_id, task_path, idx, channel, type, blob)
   select $2, checkpoint_ns, checkpoint_id, task_id, task_path, idx, channel, type, blob from checkpoint_writes where thread_id = $1`,
  `insert into checkpoints (thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, type, checkpoint, metadata)
   select $2, checkpoint_ns, checkpoint_id, parent_checkpoint_id, type, checkpoint,
          case when metadata ? 'thread_id' then metadata || jsonb_build_object('thread_id', $2::text) else metadata end
   from checkpoints where thread_id = $1 order by seq`,
];
const COPY_TIP = `
  update lineages l set tip_checkpoint_id = source.tip_checkpoint_id
  from lineages source where source.id = $1::uuid and l.id = $2::uuid`;

/** Copies every checkpoint of a lineage to another that has none, tip included. */
export async function copyCheckpoints(tx: Tx, fromLineage: string, toLineage: string): Promise<void> {
  for (const statement of COPY) await tx.query(statement, [fromLineage, toLineage]);
  await tx.query(COPY_TIP, [fromLineage, toLineage]);
}

/** Removes the answers to interrupts that a run brought, in the transaction that ends it without the graph having taken them. */
export async function forgetAnswersOf(tx: Tx, lineageId: string, runId: string): Promise<void> {
  await tx.query(FORGET_ANSWERS_OF, [lineageId, runId]);
}
