/**
 * Removes old checkpoints beyond a number per lineage, and nothing that a remaining one is built from.
 *
 * Kept are: the newest `keep`, the tip, where the latest turn and the latest run began, and of these every ancestor whose
 * writes they are rebuilt from. A channel that stores differences is rebuilt from its ancestors' writes, back to the last
 * one that stores the whole value. Where that keeps much, the graph is asked how to make the value, and it is stored with
 * the oldest that are kept, in the transaction that removes the rest; a graph that cannot be asked keeps what it has.
 * Which channels need that is read from what is stored, not from the graph: a channel without a value of its own whose
 * ancestors have writes to it.
 *
 * Untouched are: lineages with an open question, threads with a live run, and namespaces of subgraphs that outlive a task.
 */
import type { Logger } from 'pino';
import { type DeltaChannels, deltaChannelsOf, storeSnapshots } from '#src/graphs/delta-snapshots.ts';
import type { GraphRegistry } from '#src/graphs/graph.ts';
import type { Pool, Tx } from '#src/postgres/pool.ts';
import { inTransaction } from '#src/postgres/transaction.ts';
import type { RunConfig } from './run.ts';
import { orStopped } from './stop.ts';
import {
  type PrunePlan,
  planPrune,
  type Snapshot,
  type StoredCheckpoint,
  type StoredLineage,
  snapshotsFor,
  withSnapshots,
} from './sweep-plan.ts';
import { eachRow } from './sweep-rows.ts';

/** Lineages looked at by one statement, and checkpoints removed by one transaction. */
const SLICE = 500;
const BATCH = 5_000;

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

export interface PrunerDeps {
  pool: Pool;
  /** Asked how to make the value of a channel that stores differences. */
  graphs: GraphRegistry;
  /** Checkpoints per lineage, at least 1. */
  keep: number;
  logger: Logger;
}

export function createPruner(deps: PrunerDeps): Pruner {
  const { pool, keep, logger } = deps;
  const first = '00000000-0000-0000-0000-000000000000';
  let after = first;
  return {
    async next() {
      const { rows } = await pool.query<Lineage & { due: boolean }>(CANDIDATES, [after, SLICE, keep]);
      const due = rows.filter((row) => row.due);
      const removed = await eachRow(due, (row) => pruneLineage(deps, row), logger);
      after = rows.length === SLICE ? (rows.at(-1)?.id ?? first) : first;
      return removed;
    },
  };
}

const OF_THREAD = `select id, thread_id from lineages where thread_id = $1::uuid`;

/** Removes old checkpoints of one thread now. A thread that is not quiet is left as it is. Returns how many were removed. */
export async function pruneThread(deps: PrunerDeps, threadId: string): Promise<number> {
  const { rows } = await deps.pool.query<Lineage>(OF_THREAD, [threadId]);
  let removed = 0;
  for (const lineage of rows) removed += await pruneLineage(deps, lineage);
  return removed;
}

async function pruneLineage(deps: PrunerDeps, lineage: Lineage): Promise<number> {
  const plain = await pruneWith(deps, lineage, null);
  if (plain.extra < plain.worth) return plain.removed;
  const channels = await askGraph(deps, lineage);
  if (channels.size === 0) return plain.removed;
  return plain.removed + (await pruneWith(deps, lineage, channels)).removed;
}

/** What has become of a lineage. */
interface Pruned {
  removed: number;
  /** How many more than asked for are left. */
  extra: number;
  /**
   * How many must go for a snapshot to be worth its bytes. It grows with the lineage, because a snapshot does: what is
   * written for snapshots then stays in proportion to what the turns write.
   */
  worth: number;
}

async function pruneWith(deps: PrunerDeps, lineage: Lineage, channels: DeltaChannels | null): Promise<Pruned> {
  for (let removed = 0; ; ) {
    const batch = await inTransaction(deps.pool, (tx) => pruneBatch(tx, lineage, deps.keep, channels));
    removed += batch.removed;
    if (batch.removed < BATCH) return { ...batch, removed };
  }
}

const LATEST_RUN = `
  select graph_id, config from runs where lineage_id = $1::uuid and kind <> 'edit' order by ordinal desc limit 1`;
/** A user's factory may hang. */
const FACTORY_MS = 10_000;

/** The delta channels of the lineage's graph; none when it cannot be made: then nothing is removed for its sake. */
async function askGraph({ pool, graphs, logger }: PrunerDeps, { id }: Lineage): Promise<DeltaChannels> {
  const { rows } = await pool.query<{ graph_id: string; config: RunConfig }>(LATEST_RUN, [id]);
  const [run] = rows;
  if (run === undefined || !graphs.has(run.graph_id)) return new Map();
  try {
    const asked = deltaChannelsOf(graphs, pool, run.graph_id, run.config.configurable ?? {});
    return await orStopped(asked, AbortSignal.timeout(FACTORY_MS));
  } catch (error) {
    logger.warn({ err: error, lineageId: id, graphId: run.graph_id }, 'graph not made; its old checkpoints stay');
    return new Map();
  }
}

// With the thread's row nothing can be admitted or claimed on it; that nothing lives on it is looked at under the lock.
const LOCK = `
  select 1 from threads where id = $1::uuid for no key update skip locked`;
const STILL_QUIET = `select 1 from lineages l where l.id = $1::uuid and ${QUIET}`;

const UNTOUCHED: Pruned = { removed: 0, extra: 0, worth: 1 };

/** Fewer removed than BATCH: the lineage is done, or is left to another time. `channels`: those that may get snapshots. */
async function pruneBatch(
  tx: Tx,
  { id, thread_id }: Lineage,
  keep: number,
  channels: DeltaChannels | null,
): Promise<Pruned> {
  const locked = await tx.query(LOCK, [thread_id]);
  if (locked.rows.length === 0) return UNTOUCHED;
  const quiet = await tx.query(STILL_QUIET, [id]);
  if (quiet.rows.length === 0) return UNTOUCHED;
  const stored = await readLineage(tx, id);
  const pinned = await tx.query<{ id: string }>(PINNED, [id]);
  const roots = [...stored.checkpoints.slice(0, keep), ...pinned.rows].map((row) => row.id);
  const worth = Math.max(keep, Math.ceil((stored.checkpoints[0]?.step ?? 0) / 4));
  const { plan, snapshots } = planWith(stored, roots, channels, worth);
  if (channels !== null) await storeSnapshots(tx, id, snapshots, channels);
  // Newest first: if it takes several transactions, whatever is left in between still has its ancestors.
  const batch = plan.checkpoints.slice(0, BATCH);
  await tx.query(REMOVE_WRITES, [id, batch]);
  await tx.query(REMOVE_CHECKPOINTS, [id, batch]);
  if (plan.checkpoints.length > BATCH) return { removed: BATCH, extra: 0, worth };
  await tx.query(REMOVE_BLOBS, [
    id,
    plan.blobs.map(({ channel }) => channel),
    plan.blobs.map(({ version }) => version),
  ]);
  const removed = new Set(batch);
  const left = stored.checkpoints.flatMap((checkpoint) => (removed.has(checkpoint.id) ? [] : [checkpoint.id]));
  await removeSubgraphs(tx, id, new Set(left));
  const extra = Math.max(left.length - keep, 0);
  await tx.query(MARK, [id, channels === null ? extra : Math.max(extra, worth)]);
  return { removed: batch.length, extra, worth };
}

/** With snapshots when they let enough go, else without. */
function planWith(
  stored: StoredLineage,
  roots: string[],
  channels: DeltaChannels | null,
  worth: number,
): { plan: PrunePlan; snapshots: Snapshot[] } {
  const plan = planPrune(stored, roots);
  if (channels === null) return { plan, snapshots: [] };
  const snapshots = snapshotsFor(stored, roots, channels.keys());
  const better = planPrune(withSnapshots(stored, snapshots), roots);
  return better.checkpoints.length - plan.checkpoints.length < worth
    ? { plan, snapshots: [] }
    : { plan: better, snapshots };
}

const CHECKPOINTS = `
  select checkpoint_id as id, parent_checkpoint_id as parent, coalesce((checkpoint ->> 'v')::numeric, 0) < 4 as old_format,
         coalesce((metadata ->> 'step')::int, 0) as step,
         coalesce(
           (select jsonb_object_agg(v.key, v.value) from jsonb_each_text(checkpoint -> 'channel_versions') v),
           '{}'::jsonb) as versions
  from checkpoints where thread_id = $1 and checkpoint_ns = '' order by seq desc`;
const BLOBS = `
  select channel, version, type <> 'empty' as holds_value
  from checkpoint_blobs where thread_id = $1 and checkpoint_ns = ''`;
const WRITES = `
  select distinct checkpoint_id, channel from checkpoint_writes where thread_id = $1 and checkpoint_ns = ''`;

async function readLineage(tx: Tx, id: string): Promise<StoredLineage> {
  const checkpoints = await tx.query<StoredCheckpoint>(CHECKPOINTS, [id]);
  const blobs = await tx.query<StoredLineage['blobs'][number]>(BLOBS, [id]);
  const writes = await tx.query<StoredLineage['writes'][number]>(WRITES, [id]);
  return { checkpoints: checkpoints.rows, blobs: blobs.rows, writes: writes.rows };
}

// The tip, and where a rerun of the latest turn or of the latest run starts.
const PINNED = `
  select tip_checkpoint_id as id from lineages where id = $1::uuid and tip_checkpoint_id <> ''
  union
  select r.base_checkpoint_id from runs r
  where r.lineage_id = $1::uuid and r.base_checkpoint_id <> ''
    and (r.ordinal = (select max(x.ordinal) from runs x where x.lineage_id = $1::uuid and x.kind <> 'edit')
         or r.turn_id = (
           select t.id from turns t join lineages l on l.thread_id = t.thread_id
           where l.id = $1::uuid order by t.ordinal desc limit 1))`;

const REMOVE_WRITES = `
  delete from checkpoint_writes where thread_id = $1 and checkpoint_ns = '' and checkpoint_id = any($2::text[])`;
const REMOVE_CHECKPOINTS = `
  delete from checkpoints where thread_id = $1 and checkpoint_ns = '' and checkpoint_id = any($2::text[])`;
const REMOVE_BLOBS = `
  delete from checkpoint_blobs b
  using unnest($2::text[], $3::text[]) as unused(channel, version)
  where b.thread_id = $1 and b.checkpoint_ns = '' and b.channel = unused.channel and b.version = unused.version`;

const SUBGRAPHS = `
  select distinct checkpoint_ns as ns, metadata -> 'parents' ->> '' as root
  from checkpoints where thread_id = $1 and checkpoint_ns like '%:%'`;
const REMOVE_NAMESPACES = ['checkpoint_writes', 'checkpoint_blobs', 'checkpoints'].map(
  (table) => `delete from ${table} where thread_id = $1 and checkpoint_ns = any($2::text[])`,
);

/** A namespace with a colon belongs to a task of a root checkpoint; it goes when none of its checkpoints has that any more. */
async function removeSubgraphs(tx: Tx, id: string, roots: ReadonlySet<string>): Promise<void> {
  const { rows } = await tx.query<{ ns: string; root: string | null }>(SUBGRAPHS, [id]);
  const held = new Set(rows.flatMap(({ ns, root }) => (root === null || roots.has(root) ? [ns] : [])));
  const gone = rows.flatMap(({ ns }) => (held.has(ns) ? [] : [ns]));
  if (gone.length === 0) return;
  for (const statement of REMOVE_NAMESPACES) await tx.query(statement, [id, gone]);
}

const MARK = `
  update lineages
  set kept_extra = $2, pruned_seq = coalesce(
    (select c.seq from checkpoints c where c.thread_id = $1::text and c.checkpoint_ns = '' order by c.seq desc limit 1), 0)
  where id = $1::uuid`;
