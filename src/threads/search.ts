/** Threads as LangGraph clients list them: by what their metadata hold and what they are doing. */
import type { JsonObject } from '#src/events/event.ts';
import type { Queryable } from '#src/postgres/pool.ts';
import type { ListedThread, ThreadFilter, ThreadSearch, ThreadTtl } from './thread.ts';

interface ListedRow extends Omit<ListedThread, 'created_at' | 'updated_at' | 'active_at' | 'ttl'> {
  ttl_minutes: number | null;
  ttl_strategy: ThreadTtl['strategy'] | null;
  expires_at: Date | null;
  created_at: Date;
  updated_at: Date;
  active_at: Date;
}

// What a thread does is what its runs do, and nothing of its own that could contradict them.
const LISTED = `
  select t.id, t.graph_id, t.config, t.created_at, t.updated_at, t.active_at, t.ttl_minutes, t.ttl_strategy,
         greatest(t.active_at, t.ttl_set_at) + t.ttl_minutes * interval '1 minute' as expires_at,
         t.metadata || case when t.graph_id is null then '{}'::jsonb else jsonb_build_object('graph_id', t.graph_id) end as metadata,
         case when l.live then 'busy'
              when r.status = 'failed' then 'error'
              when r.status = 'interrupted' then 'interrupted'
              else 'idle' end as activity
  from threads t
  left join lateral (
    select status from runs r where r.thread_id = t.id and r.kind <> 'edit' and not r.hidden
    order by r.ordinal desc limit 1) r on true
  cross join lateral (
    select exists (select 1 from runs r where r.thread_id = t.id and r.status in ('queued', 'running')) as live) l`;

function toListed(row: ListedRow): ListedThread {
  return {
    id: row.id,
    graph_id: row.graph_id,
    metadata: row.metadata,
    config: row.config,
    activity: row.activity,
    created_at: row.created_at.toISOString(),
    updated_at: row.updated_at.toISOString(),
    active_at: row.active_at.toISOString(),
    ttl: ttlOf(row),
  };
}

function ttlOf({ ttl_minutes: minutes, ttl_strategy: strategy, expires_at }: ListedRow): ListedThread['ttl'] {
  if (minutes === null || strategy === null || expires_at === null) return null;
  return { minutes, strategy, expires_at: expires_at.toISOString() };
}

export async function selectListed(db: Queryable, owner: string, threadId: string): Promise<ListedThread | null> {
  const { rows } = await db.query<ListedRow>(`${LISTED} where t.id = $1::uuid and t.owner = $2`, [threadId, owner]);
  return rows[0] === undefined ? null : toListed(rows[0]);
}

const FOUND = `
  select * from (${LISTED} where t.owner = $1 and not t.temporary and ($2::uuid[] is null or t.id = any($2::uuid[]))) x
  where ($3::jsonb is null or x.metadata @> $3::jsonb) and ($4::text is null or x.activity = $4)
    and x.metadata @> all($5::jsonb[])`;

function filterValues(owner: string, filter: ThreadFilter): unknown[] {
  const metadata = filter.metadata === undefined ? null : JSON.stringify(filter.metadata);
  const within = (filter.within ?? []).map((wanted) => JSON.stringify(wanted));
  return [owner, filter.ids ?? null, metadata, filter.activity ?? null, within];
}

const ORDER: Record<ThreadSearch['sort_by'], string> = {
  thread_id: 'id',
  status: 'activity',
  created_at: 'created_at',
  updated_at: 'updated_at',
  state_updated_at: 'active_at',
};

/** A page of what the filter lets through, and how many there are. */
export async function searchListed(
  db: Queryable,
  owner: string,
  search: ThreadSearch,
): Promise<{ threads: ListedThread[]; total: number }> {
  const order = `x.${ORDER[search.sort_by]} ${search.sort_order === 'asc' ? 'asc' : 'desc'}, x.id`;
  const { rows } = await db.query<ListedRow>(`${FOUND} order by ${order} limit $6 offset $7`, [
    ...filterValues(owner, search),
    search.limit,
    search.offset,
  ]);
  return { threads: rows.map(toListed), total: await countListed(db, owner, search) };
}

export async function countListed(db: Queryable, owner: string, filter: ThreadFilter): Promise<number> {
  const { rows } = await db.query<{ total: number }>(
    `select count(*)::int as total from (${FOUND}) found`,
    filterValues(owner, filter),
  );
  return rows[0]?.total ?? 0;
}

const SET_TTL = `
  update threads
  set ttl_minutes = $3::float8, ttl_strategy = $4, ttl_set_at = case when $3::float8 is not null then clock_timestamp() end,
      ttl_swept = null, updated_at = clock_timestamp()
  where id = $1::uuid and owner = $2`;

/** null removes it. Returns whether there was such a thread. */
export async function setTtl(db: Queryable, owner: string, threadId: string, ttl: ThreadTtl | null): Promise<boolean> {
  const values = [threadId, owner, ttl?.minutes ?? null, ttl?.strategy ?? null];
  const { rowCount } = await db.query(SET_TTL, values);
  return rowCount === 1;
}

const MERGE = `
  update threads set metadata = metadata || $3::jsonb, updated_at = clock_timestamp()
  where id = $1::uuid and owner = $2`;

/** Returns whether there was such a thread. */
export async function mergeMetadata(
  db: Queryable,
  owner: string,
  threadId: string,
  metadata: JsonObject,
): Promise<boolean> {
  const { rowCount } = await db.query(MERGE, [threadId, owner, JSON.stringify(metadata)]);
  return rowCount === 1;
}
