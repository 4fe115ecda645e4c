/**
 * The statements of our saver: one per put, one per putWrites, one per read. Every write begins with the fence: the
 * run's row, found only while this epoch owns it, locked `for share` so that a put-back or an end either waits for this
 * write or is seen by it. Each returns whether the row was found; a repeated write inserts nothing and is no fence.
 *
 * `thread_id` is LangGraph's word for a lineage. The parameter `lineage` is the same id as uuid, null when it is not one.
 */

const FENCE = `
  with fence as (
    select id from runs
    where id = $1::uuid
      -- guard: this epoch still owns the run
      and epoch = $2 and status = 'running'
    for share)`;

/** run, epoch, thread, ns, channels, versions, types, blobs, checkpoint id, parent id, checkpoint, metadata, lineage, event cursor */
export const PUT = `${FENCE},
  saved_blobs as (
    insert into checkpoint_blobs (thread_id, checkpoint_ns, channel, version, type, blob)
    select $3, $4, b.channel, b.version, b.type, b.blob
    from fence, unnest($5::text[], $6::text[], $7::text[], $8::bytea[]) as b(channel, version, type, blob)
    on conflict do nothing),
  saved as (
    insert into checkpoints
      (thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, checkpoint, metadata, run_id, log_cursor)
    select $3, $4, $9, $10, $11::jsonb, $12::jsonb, fence.id, $14::bigint from fence
    on conflict (thread_id, checkpoint_ns, checkpoint_id) do update
    set checkpoint = excluded.checkpoint, metadata = excluded.metadata, log_cursor = excluded.log_cursor),
  tip as (
    update lineages set tip_checkpoint_id = $9
    from fence
    where lineages.id = $13::uuid and $4 = '')
  select exists (select 1 from fence) as owned`;

const WRITES = `${FENCE},
  saved as (
    insert into checkpoint_writes (thread_id, checkpoint_ns, checkpoint_id, task_id, task_path, idx, channel, type, blob, run_id)
    select $3, $4, $5, $6, $7, w.idx, w.channel, w.type, w.blob, fence.id
    from fence, unnest($8::int[], $9::text[], $10::text[], $11::bytea[]) as w(idx, channel, type, blob)
    on conflict (thread_id, checkpoint_ns, checkpoint_id, task_id, idx) do `;
const OWNED = `)
  select exists (select 1 from fence) as owned`;

/** run, epoch, thread, ns, checkpoint id, task id, task path, indexes, channels, types, blobs; a repeated write is kept as it was. */
export const PUT_WRITES = `${WRITES} nothing${OWNED}`;
/** The same for special channels (errors, interrupts, resumes), whose last write counts. */
export const UPSERT_WRITES = `${WRITES} update
    set channel = excluded.channel, type = excluded.type, blob = excluded.blob, run_id = excluded.run_id${OWNED}`;

/**
 * thread, ns, checkpoint id or null, lineage. Without an id: the lineage's tip for the root namespace ('' = before the
 * first checkpoint; null = never set, as in data of the stock saver), else the one written last.
 */
const TARGET = `
  with target as (
    select cp.* from checkpoints cp
    where cp.thread_id = $1 and cp.checkpoint_ns = $2 and cp.checkpoint_id = coalesce(
      $3,
      (select l.tip_checkpoint_id from lineages l where $2 = '' and l.id = $4::uuid),
      (select n.checkpoint_id from checkpoints n where n.thread_id = $1 and n.checkpoint_ns = $2 order by n.seq desc limit 1)))`;

const TUPLE_ROWS = `
  select 'checkpoint' as kind, checkpoint_id, parent_checkpoint_id as parent_id, checkpoint, metadata,
         null::text as task_path, null::text as task_id, null::int as idx, null::text as channel, null::text as type, null::bytea as blob
  from target
  union all
  select 'value', target.checkpoint_id, null, null, null, null, null, null, b.channel, b.type, b.blob
  from target
  cross join lateral jsonb_each_text(target.checkpoint -> 'channel_versions') as v(channel, version)
  join checkpoint_blobs b
    on b.thread_id = target.thread_id and b.checkpoint_ns = target.checkpoint_ns
   and b.channel = v.channel and b.version = v.version and b.type <> 'empty'
  union all
  select 'write', target.checkpoint_id, null, null, null, w.task_path, w.task_id, w.idx, w.channel, w.type, w.blob
  from target
  join checkpoint_writes w
    on w.thread_id = target.thread_id and w.checkpoint_ns = target.checkpoint_ns and w.checkpoint_id = target.checkpoint_id`;

export const GET_TUPLE = `${TARGET}${TUPLE_ROWS}`;

/**
 * thread or null, ns or null, checkpoint id or null, metadata filter or null, id of `before` or null, limit or null.
 * Newest first by the order of writing. `before`: rows written before that checkpoint of the same thread and namespace.
 */
export const LIST_IDS = `
  select cp.thread_id, cp.checkpoint_ns, cp.checkpoint_id
  from checkpoints cp
  where ($1::text is null or cp.thread_id = $1)
    and ($2::text is null or cp.checkpoint_ns = $2)
    and ($3::text is null or cp.checkpoint_id = $3)
    and ($4::jsonb is null or cp.metadata @> $4::jsonb)
    and ($5::text is null or cp.seq < (
      select max(b.seq) from checkpoints b
      where b.checkpoint_id = $5 and ($1::text is null or b.thread_id = $1) and ($2::text is null or b.checkpoint_ns = $2)))
  order by cp.seq desc
  limit $6`;

/**
 * thread, ns, checkpoint id, channels. Walks the ancestors of a checkpoint once for all channels: every write to them,
 * back to the nearest ancestor that stores the channel's value (the seed). Order of writes: oldest checkpoint first,
 * within one by (task_path, task_id, idx) in code point order, which is how the live run applied them.
 *
 * The plan must not depend on statistics: of a thread that grew since the last analyze Postgres knows nothing, and a
 * join in the wrong order makes a walk of n steps cost n^3. So every step is a lateral look-up of its own, and the one of
 * the parent is `>= … order by … limit 1`, which only the primary key can answer.
 */
export const DELTA_HISTORY = `
  with recursive seeds as materialized (
    select b.channel, b.version, b.type, b.blob
    from checkpoint_blobs b
    where b.thread_id = $1 and b.checkpoint_ns = $2 and b.channel = any($4::text[]) and b.type <> 'empty'),
  chain as (
    select t.checkpoint_id, t.parent_checkpoint_id, null::jsonb as versions, -1 as depth, $4::text[] as wanted
    from checkpoints t
    where t.thread_id = $1 and t.checkpoint_ns = $2 and t.checkpoint_id = $3
    union all
    select p.checkpoint_id, p.parent_checkpoint_id, p.checkpoint -> 'channel_versions', chain.depth + 1, rest.wanted
    from chain
    cross join lateral (
      select array(
        select c.channel from unnest(chain.wanted) as c(channel)
        where not exists (
          select 1 from seeds s where s.channel = c.channel and s.version = chain.versions ->> c.channel)) as wanted
    ) rest
    cross join lateral (
      select * from checkpoints p
      where p.thread_id = $1 and p.checkpoint_ns = $2 and p.checkpoint_id >= chain.parent_checkpoint_id
      order by p.thread_id, p.checkpoint_ns, p.checkpoint_id
      limit 1
    ) p
    where p.checkpoint_id = chain.parent_checkpoint_id and cardinality(rest.wanted) > 0)
  select * from (
  select 'write' as kind, chain.depth, w.task_path, w.task_id, w.idx, w.channel, w.type, w.blob
  from chain
  cross join lateral (
    select * from checkpoint_writes w
    where w.thread_id = $1 and w.checkpoint_ns = $2 and w.checkpoint_id = chain.checkpoint_id and w.channel = any(chain.wanted)
    offset 0
  ) w
  where chain.depth >= 0
  union all
  select 'seed', chain.depth, null, null, null, s.channel, s.type, s.blob
  from chain
  cross join lateral unnest(chain.wanted) as c(channel)
  join seeds s on s.channel = c.channel and s.version = chain.versions ->> c.channel
  where chain.depth >= 0
  ) found
  order by depth desc, task_path collate "C" nulls first, task_id collate "C", idx`;

/**
 * run, thread: what is asked at the tip by tasks that have taken no answer of this run. Nothing where a graph within a graph, or
 * a task within a task (a path with two `~`), has ever asked on this lineage: what they ask stands beside them too, at those
 * they are in, and is still there when it has been answered.
 */
export const STILL_ASKED = `
  select w.channel, w.type, w.blob
  from lineages l
  join checkpoint_writes w
    on w.thread_id = l.id::text and w.checkpoint_ns = '' and w.checkpoint_id = l.tip_checkpoint_id and w.channel = '__interrupt__'
  where l.id = $2::uuid and not exists (
    select 1 from checkpoint_writes r
    where r.thread_id = w.thread_id and r.run_id = $1::uuid and r.channel = '__resume__'
      and r.checkpoint_ns = '' and r.task_id = w.task_id)
    and not exists (
      select 1 from checkpoint_writes n
      where n.thread_id = w.thread_id and n.channel in ('__interrupt__', '__resume__')
        and (n.checkpoint_ns <> '' or n.task_path like '~%~%'))`;

/** run, epoch, thread: removes the answers (resume writes) this run brought. */
export const FORGET_ANSWERS = `${FENCE},
  gone as (
    delete from checkpoint_writes w using fence
    where w.thread_id = $3 and w.channel = '__resume__' and w.run_id = fence.id)
  select exists (select 1 from fence) as owned`;

/** thread, run: the same in the transaction that ends the run, which holds its row. */
export const FORGET_ANSWERS_OF = `
  delete from checkpoint_writes where thread_id = $1 and channel = '__resume__' and run_id = $2::uuid`;

/** run, epoch, thread: removes a lineage's checkpoints under the fence. */
export const DELETE_THREAD = `${FENCE},
  blobs as (delete from checkpoint_blobs b using fence where b.thread_id = $3),
  writes as (delete from checkpoint_writes w using fence where w.thread_id = $3),
  gone as (delete from checkpoints c using fence where c.thread_id = $3),
  tip as (update lineages set tip_checkpoint_id = null from fence where lineages.id = $4::uuid)
  select exists (select 1 from fence) as owned`;

/** thread ids */
export const DELETE_LINEAGES = ['checkpoint_writes', 'checkpoint_blobs', 'checkpoints'].map(
  (table) => `delete from ${table} where thread_id = any($1::text[])`,
);
