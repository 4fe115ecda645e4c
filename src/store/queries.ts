/** The statements of the store. What has expired is not there, whether or not a sweep has come by. */
import type { JsonObject } from '#src/events/event.ts';
import { storableJson } from '#src/graphs/json.ts';
import type { Queryable } from '#src/postgres/pool.ts';
import { filterConditions } from './filter.ts';
import type { NamespaceSearch, StoreItem, StoreSearch } from './item.ts';

interface ItemRow extends Omit<StoreItem, 'created_at' | 'updated_at'> {
  created_at: Date;
  updated_at: Date;
}

const COLUMNS = 'namespace, key, value, created_at, updated_at';
const LIVES = '(expires_at is null or expires_at > clock_timestamp())';

function toItem(row: ItemRow): StoreItem {
  return { ...row, created_at: row.created_at.toISOString(), updated_at: row.updated_at.toISOString() };
}

// What has expired is as if it were not there: its creation is now.
const PUT = `
  insert into store_items as i (owner, namespace, key, value, ttl, expires_at)
  values ($1, $2::text[], $3, $4::jsonb, $5 * interval '1 minute', clock_timestamp() + $5 * interval '1 minute')
  on conflict (owner, namespace, key) do update
  set value = excluded.value, ttl = excluded.ttl, expires_at = excluded.expires_at, updated_at = clock_timestamp(),
      created_at = case when i.expires_at <= clock_timestamp() then clock_timestamp() else i.created_at end`;

/** @param ttlMinutes null: it stays */
export async function putItem(
  db: Queryable,
  owner: string,
  item: { namespace: string[]; key: string; value: JsonObject; ttlMinutes: number | null },
): Promise<void> {
  const values = [owner, item.namespace, item.key, storableJson(item.value), item.ttlMinutes];
  await db.query({ name: 'store_put', text: PUT, values });
}

const GET = `select ${COLUMNS} from store_items where owner = $1 and namespace = $2::text[] and key = $3 and ${LIVES}`;
const REFRESH = `
  update store_items set expires_at = clock_timestamp() + ttl
  where owner = $1 and namespace = $2::text[] and key = $3 and ttl is not null and expires_at > clock_timestamp()`;

export async function getItem(
  db: Queryable,
  owner: string,
  at: { namespace: string[]; key: string; refresh: boolean },
): Promise<StoreItem | null> {
  const values = [owner, at.namespace, at.key];
  const { rows } = await db.query<ItemRow>({ name: 'store_get', text: GET, values });
  const [row] = rows;
  if (row === undefined) return null;
  if (at.refresh) await db.query({ name: 'store_refresh', text: REFRESH, values });
  return toItem(row);
}

/** Does nothing when there is none. */
export async function deleteItem(
  db: Queryable,
  owner: string,
  at: { namespace: string[]; key: string },
): Promise<void> {
  await db.query('delete from store_items where owner = $1 and namespace = $2::text[] and key = $3', [
    owner,
    at.namespace,
    at.key,
  ]);
}

const WITHIN = `value || jsonb_build_object('namespace', to_jsonb(namespace), 'key', key) @> all`;

function withinValue(within: readonly JsonObject[] | undefined): string[] {
  return (within ?? []).map((wanted) => JSON.stringify(wanted));
}

/** The most recently written first. @throws INVALID_REQUEST for a filter that is none */
export async function searchItems(db: Queryable, owner: string, search: StoreSearch): Promise<StoreItem[]> {
  const values: unknown[] = [owner, search.prefix, search.limit, search.offset, withinValue(search.within)];
  const conditions = filterConditions(search.filter ?? {}, values);
  const found = `
    select ${COLUMNS} from store_items
    where owner = $1 and namespace[1:cardinality($2::text[])] = $2::text[] and ${LIVES}
      and ${WITHIN} ($5::jsonb[])
      ${conditions.map((condition) => `and ${condition}`).join('\n')}
    order by updated_at desc, namespace, key
    limit $3 offset $4`;
  const { rows } = await db.query<ItemRow>(found, values);
  if (search.refresh) {
    for (const { namespace, key } of rows) await db.query(REFRESH, [owner, namespace, key]);
  }
  return rows.map(toItem);
}

const NAMESPACES = `
  select distinct case when $4::int is null then namespace else namespace[1:$4::int] end as namespace
  from store_items
  where owner = $1 and ${LIVES}
    and ${WITHIN} ($7::jsonb[])
    and cardinality(namespace) >= greatest(cardinality($2::text[]), cardinality($3::text[]))
    and not exists (
      select 1 from unnest($2::text[]) with ordinality as wanted(label, place)
      where wanted.label <> '*' and namespace[place] <> wanted.label)
    and not exists (
      select 1 from unnest($3::text[]) with ordinality as wanted(label, place)
      where wanted.label <> '*'
        and namespace[cardinality(namespace) - cardinality($3::text[]) + place] <> wanted.label)
  order by 1
  limit $5 offset $6`;

export async function listNamespaces(db: Queryable, owner: string, search: NamespaceSearch): Promise<string[][]> {
  const { prefix, suffix, max_depth: depth = null, limit, offset } = search;
  const values = [owner, prefix, suffix, depth, limit, offset, withinValue(search.within)];
  const { rows } = await db.query<{ namespace: string[] }>(NAMESPACES, values);
  return rows.map(({ namespace }) => namespace);
}

const EXPIRED = `
  delete from store_items
  where (owner, namespace, key) in (
    select owner, namespace, key from store_items where expires_at < clock_timestamp() limit $1
    for update skip locked)`;

/** Removes what has expired. */
export async function deleteExpired(db: Queryable, limit: number): Promise<number> {
  const { rowCount } = await db.query(EXPIRED, [limit]);
  return rowCount ?? 0;
}
