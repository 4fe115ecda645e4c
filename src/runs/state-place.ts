/** Where a thread's state is, and which graph reads it. */
import type { JsonObject } from '#src/events/event.ts';
import type { Queryable } from '#src/postgres/pool.ts';
import { threadNotFound } from './admission.ts';

export interface StatePlace {
  owner: string;
  threadId: string;
  /** Of the thread's latest run; the thread's own before there is one. */
  lineageId: string;
  /** null: nothing has run, and nobody said what would. */
  graphId: string | null;
  /** What the thread's runs were configured with; a factory makes the graph from it. */
  configurable: JsonObject;
}

const PLACE = `
  select t.config -> 'configurable' as configurable, coalesce(r.graph_id, t.graph_id) as graph_id,
         coalesce(r.lineage_id, t.id) as lineage_id
  from threads t
  left join lateral (
    select graph_id, lineage_id from runs r
    where r.thread_id = t.id and r.kind <> 'edit' and not r.hidden
    order by r.ordinal desc limit 1) r on true
  where t.id = $1::uuid and t.owner = $2`;

/** @throws THREAD_NOT_FOUND */
export async function statePlace(db: Queryable, owner: string, threadId: string): Promise<StatePlace> {
  const { rows } = await db.query<{ configurable: JsonObject | null; graph_id: string | null; lineage_id: string }>({
    name: 'state_place',
    text: PLACE,
    values: [threadId, owner],
  });
  const [row] = rows;
  if (row === undefined) throw threadNotFound();
  return {
    owner,
    threadId,
    lineageId: row.lineage_id,
    graphId: row.graph_id,
    configurable: row.configurable ?? {},
  };
}
