/** Where a thread's state is, and which graph reads it. */
import { RunledgerError } from '#src/errors.ts';
import type { JsonObject } from '#src/events/event.ts';
import type { Queryable } from '#src/postgres/pool.ts';
import { threadNotFound } from './admission.ts';
import type { Run } from './run.ts';

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

// What a run left is at its last checkpoint; one that wrote none left what it found.
const PLACE_AFTER = `
  select t.config -> 'configurable' as configurable, r.graph_id, r.lineage_id,
         coalesce(
           (select c.checkpoint_id from checkpoints c
            where c.thread_id = r.lineage_id::text and c.checkpoint_ns = '' and c.run_id = r.id
            order by c.seq desc limit 1),
           (select c.checkpoint_id from checkpoints c
            where c.thread_id = r.lineage_id::text and c.checkpoint_ns = '' and c.checkpoint_id = r.base_checkpoint_id)
         ) as checkpoint_id
  from runs r
  join threads t on t.id = r.thread_id
  where r.id = $1::uuid and r.owner = $2 and not r.hidden`;

/**
 * Where the state is that a run left. `checkpointId` is null when no checkpoint of it is kept.
 * @throws RUN_NOT_FOUND
 */
export async function placeAfter(
  db: Queryable,
  { id, owner, thread_id: threadId }: Pick<Run, 'id' | 'owner' | 'thread_id'>,
): Promise<StatePlace & { checkpointId: string | null }> {
  const { rows } = await db.query<{
    configurable: JsonObject | null;
    graph_id: string;
    lineage_id: string;
    checkpoint_id: string | null;
  }>({ name: 'state_place_after', text: PLACE_AFTER, values: [id, owner] });
  const [row] = rows;
  if (row === undefined) throw new RunledgerError('RUN_NOT_FOUND', 'There is no such run.');
  const { configurable, graph_id: graphId, lineage_id: lineageId, checkpoint_id: checkpointId } = row;
  return { owner, threadId, lineageId, graphId, configurable: configurable ?? {}, checkpointId };
}

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
