/** The statements of assistants. Visible to an owner: its own, and the server's for graphs that are configured. */
import type { Json, JsonObject } from '#src/events/event.ts';
import type { Queryable, Tx } from '#src/postgres/pool.ts';
import type { Assistant, AssistantContent, AssistantFilter, AssistantPage } from './assistant.ts';

interface AssistantRow extends Omit<Assistant, 'created_at' | 'updated_at'> {
  created_at: Date;
  updated_at: Date;
}

const COLUMNS = 'id, owner, graph_id, version, name, description, config, context, metadata, created_at, updated_at';
const VISIBLE = `(owner = $1 or (owner is null and graph_id = any($2::text[])))`;

function toAssistant(row: AssistantRow): Assistant {
  return { ...row, created_at: row.created_at.toISOString(), updated_at: row.updated_at.toISOString() };
}

/** Who asks, and which graphs the server has. */
export interface Viewer {
  owner: string;
  graphIds: string[];
}

const ONE = `select ${COLUMNS} from assistants where ${VISIBLE} and id = $3::uuid`;

export async function selectAssistant(db: Queryable, viewer: Viewer, id: string): Promise<Assistant | null> {
  const { rows } = await db.query<AssistantRow>(ONE, [viewer.owner, viewer.graphIds, id]);
  return rows[0] === undefined ? null : toAssistant(rows[0]);
}

const FILTER = `
  ${VISIBLE} and ($3::jsonb is null or metadata @> $3::jsonb) and ($4::text is null or graph_id = $4)
  and ($5::text is null or strpos(lower(name), lower($5)) > 0) and metadata @> all($6::jsonb[])`;

function filterValues(viewer: Viewer, filter: AssistantFilter): unknown[] {
  const metadata = filter.metadata === undefined ? null : JSON.stringify(filter.metadata);
  const within = (filter.within ?? []).map((wanted) => JSON.stringify(wanted));
  return [viewer.owner, viewer.graphIds, metadata, filter.graph_id ?? null, filter.name ?? null, within];
}

const ORDER: Record<AssistantPage['sort_by'], string> = {
  assistant_id: 'id',
  graph_id: 'graph_id',
  created_at: 'created_at',
  updated_at: 'updated_at',
  name: 'name',
};

/** A page of what the filter lets through, and how many there are. */
export async function selectAssistants(
  db: Queryable,
  viewer: Viewer,
  page: AssistantPage,
): Promise<{ assistants: Assistant[]; total: number }> {
  const order = `${ORDER[page.sort_by]} ${page.sort_order === 'asc' ? 'asc' : 'desc'}, id`;
  const { rows } = await db.query<AssistantRow>(
    `select ${COLUMNS} from assistants where ${FILTER} order by ${order} limit $7 offset $8`,
    [...filterValues(viewer, page), page.limit, page.offset],
  );
  return { assistants: rows.map(toAssistant), total: await countAssistants(db, viewer, page) };
}

const COUNT = `select count(*)::int as total from assistants where ${FILTER}`;

export async function countAssistants(db: Queryable, viewer: Viewer, filter: AssistantFilter): Promise<number> {
  const { rows } = await db.query<{ total: number }>(COUNT, filterValues(viewer, filter));
  return rows[0]?.total ?? 0;
}

const INSERT = `
  with made as (
    insert into assistants (id, owner, graph_id, version, name, description, config, context, metadata)
    values ($1::uuid, $2, $3, 1, $4, $5, $6::json, $7::json, $8::jsonb)
    on conflict (id) do nothing
    returning *),
  version as (
    insert into assistant_versions (assistant_id, version, graph_id, name, description, config, context, metadata)
    select id, version, graph_id, name, description, config, context, metadata from made)
  select ${COLUMNS} from made`;

/** Inserts an assistant with version 1; null when the id is taken, by whomever. */
export async function insertAssistant(
  db: Queryable,
  id: string,
  owner: string | null,
  content: AssistantContent,
): Promise<Assistant | null> {
  const { rows } = await db.query<AssistantRow>(INSERT, [id, owner, ...contentValues(content)]);
  return rows[0] === undefined ? null : toAssistant(rows[0]);
}

function contentValues({ graph_id, name, description, config, context, metadata }: AssistantContent): unknown[] {
  return [graph_id, name, description, JSON.stringify(config), JSON.stringify(context), JSON.stringify(metadata)];
}

const REFRESH = `
  with found as (
    update assistants set config = $2::json, context = $3::json
    where id = $1::uuid and owner is null
    returning id, version)
  update assistant_versions v set config = $2::json, context = $3::json
  from found where v.assistant_id = found.id and v.version = found.version`;

/** What the server's own assistant is configured with can change from start to start. */
export async function refreshSystemAssistant(
  db: Queryable,
  id: string,
  content: { config: JsonObject; context: Json },
): Promise<void> {
  await db.query(REFRESH, [id, JSON.stringify(content.config), JSON.stringify(content.context)]);
}

const LOCK = `select ${COLUMNS} from assistants where ${VISIBLE} and id = $3::uuid for no key update`;

/** The same as `selectAssistant`, locked for the rest of the transaction. */
export async function lockAssistant(tx: Tx, viewer: Viewer, id: string): Promise<Assistant | null> {
  const { rows } = await tx.query<AssistantRow>(LOCK, [viewer.owner, viewer.graphIds, id]);
  return rows[0] === undefined ? null : toAssistant(rows[0]);
}

const ADD_VERSION = `
  with version as (
    insert into assistant_versions (assistant_id, version, graph_id, name, description, config, context, metadata)
    select $1::uuid, (select max(version) + 1 from assistant_versions where assistant_id = $1::uuid),
           $2, $3, $4, $5::json, $6::json, $7::jsonb
    returning *)
  update assistants a
  set version = v.version, graph_id = v.graph_id, name = v.name, description = v.description, config = v.config,
      context = v.context, metadata = v.metadata, updated_at = clock_timestamp()
  from version v
  where a.id = v.assistant_id
  returning ${COLUMNS.split(', ')
    .map((column) => `a.${column}`)
    .join(', ')}`;

/** Stores a further version and puts it in force. The caller holds the assistant's row. */
export async function addVersion(tx: Tx, id: string, content: AssistantContent): Promise<Assistant> {
  const { rows } = await tx.query<AssistantRow>(ADD_VERSION, [id, ...contentValues(content)]);
  if (rows[0] === undefined) throw new Error(`assistant ${id} slipped away under its lock`);
  return toAssistant(rows[0]);
}

const SET_VERSION = `
  update assistants a
  set version = v.version, graph_id = v.graph_id, name = v.name, description = v.description, config = v.config,
      context = v.context, metadata = v.metadata, updated_at = clock_timestamp()
  from assistant_versions v
  where a.id = $1::uuid and v.assistant_id = a.id and v.version = $2::bigint`;

/** Puts a stored version in force; false when there is none. The caller holds the assistant's row. */
export async function setVersion(tx: Tx, id: string, version: number): Promise<boolean> {
  const { rowCount } = await tx.query(SET_VERSION, [id, version]);
  return rowCount === 1;
}

const VERSIONS = `
  select a.id, a.owner, v.graph_id, v.version, v.name, v.description, v.config, v.context, v.metadata, v.created_at,
         v.created_at as updated_at
  from assistant_versions v join assistants a on a.id = v.assistant_id
  where a.id = $1::uuid and ($2::jsonb is null or v.metadata @> $2::jsonb)
  order by v.version desc
  limit $3 offset $4`;

/** Newest first. The caller knows that the assistant may be seen. */
export async function selectVersions(
  db: Queryable,
  id: string,
  page: { metadata?: JsonObject | undefined; limit: number; offset: number },
): Promise<Assistant[]> {
  const metadata = page.metadata === undefined ? null : JSON.stringify(page.metadata);
  const { rows } = await db.query<AssistantRow>(VERSIONS, [id, metadata, page.limit, page.offset]);
  return rows.map(toAssistant);
}

/** With all its versions. The caller holds the assistant's row. */
export async function deleteAssistant(tx: Tx, id: string): Promise<void> {
  await tx.query('delete from assistants where id = $1::uuid', [id]);
}
