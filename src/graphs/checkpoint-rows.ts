/** Checkpoints of a lineage as rows, past the saver: what a transaction of ours looks at, removes and copies as a whole. */
import type { JsonObject } from '#src/events/event.ts';
import type { Queryable, Tx } from '#src/postgres/pool.ts';
import { DELETE_LINEAGES, FORGET_ANSWERS_OF } from './checkpoint-sql.ts';
import { storableJson } from './json.ts';

const HAS = `select 1 from checkpoints where thread_id = $1 and checkpoint_ns = $2 and checkpoint_id = $3`;

/** Whether a lineage has this checkpoint. `ns`: '' is the root graph. */
export async function hasCheckpoint(db: Queryable, lineageId: string, ns: string, id: string): Promise<boolean> {
  const { rows } = await db.query(HAS, [lineageId, ns, id]);
  return rows.length > 0;
}

// A checkpoint that a living one is built from is never among these: the tip has gone back before the run's first.
// Values that they share with what stays are kept. Those came to the run from where it began, which is not the base when
// the run was started from another checkpoint: its first one's parent.
const ROLL_BACK = `
  with doomed as materialized (
    delete from checkpoints where thread_id = $1 and run_id = $2::uuid
    returning checkpoint_ns, checkpoint_id, parent_checkpoint_id, checkpoint -> 'channel_versions' as versions),
  staying as materialized (
    select checkpoint -> 'channel_versions' as versions
    from checkpoints
    where thread_id = $1 and checkpoint_ns = '' and run_id is distinct from $2::uuid
      and (checkpoint_id = $3
           or checkpoint_id in (select d.parent_checkpoint_id from doomed d where d.checkpoint_ns = ''))),
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
    and not exists (select 1 from staying where staying.versions ->> made.channel = made.version)`;
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

// One statement, so that it is a copy of one moment: a run of the lineage writes without holding its thread. Ordered, so
// that the copies' own order of writing is that of the originals.
const COPY = `
  with blobs as (
    insert into checkpoint_blobs (thread_id, checkpoint_ns, channel, version, type, blob)
    select $2::text, checkpoint_ns, channel, version, type, blob from checkpoint_blobs where thread_id = $1::text),
  writes as (
    insert into checkpoint_writes (thread_id, checkpoint_ns, checkpoint_id, task_id, task_path, idx, channel, type, blob)
    select $2::text, checkpoint_ns, checkpoint_id, task_id, task_path, idx, channel, type, blob
    from checkpoint_writes where thread_id = $1::text),
  copies as (
    insert into checkpoints (thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, type, checkpoint, metadata)
    select $2::text, checkpoint_ns, checkpoint_id, parent_checkpoint_id, type, checkpoint,
           case when metadata ? 'thread_id' then metadata || jsonb_build_object('thread_id', $2::text) else metadata end
    from checkpoints where thread_id = $1::text order by seq)
  update lineages l set tip_checkpoint_id = source.tip_checkpoint_id
  from lineages source where source.id = $1::text::uuid and l.id = $2::text::uuid`;

/** Copies every checkpoint of a lineage, as it is at one moment, to another that has none, tip included. */
export async function copyCheckpoints(tx: Tx, fromLineage: string, toLineage: string): Promise<void> {
  await tx.query(COPY, [fromLineage, toLineage]);
}

/** Removes the answers to interrupts that a run brought, in the transaction that ends it without the graph having taken them. */
export async function forgetAnswersOf(tx: Tx, lineageId: string, runId: string): Promise<void> {
  await tx.query(FORGET_ANSWERS_OF, [lineageId, runId]);
}

const ADD_METADATA = `
  update checkpoints c set metadata = c.metadata || $2::jsonb
  from lineages l
  where l.id = $1::text::uuid and c.thread_id = $1::text and c.checkpoint_ns = '' and c.checkpoint_id = l.tip_checkpoint_id`;

/** Adds to the metadata of the lineage's tip; false when it has none. */
export async function addMetadata(tx: Tx, lineageId: string, metadata: JsonObject): Promise<boolean> {
  const { rowCount } = await tx.query(ADD_METADATA, [lineageId, storableJson(metadata)]);
  return rowCount === 1;
}

/** Removes every checkpoint of these lineages, in the caller's transaction. */
export async function deleteCheckpoints(tx: Tx, lineageIds: string[]): Promise<void> {
  for (const statement of DELETE_LINEAGES) await tx.query(statement, [lineageIds]);
}
