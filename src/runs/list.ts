/** The runs of a thread, newest first. */
import type { JsonObject } from '#src/events/event.ts';
import { storableJson } from '#src/graphs/json.ts';
import type { Queryable } from '#src/postgres/pool.ts';
import { type RunRow, toRun } from './queries.ts';
import type { Run, RunStatus } from './run.ts';

export interface RunFilter {
  /** Any of these; without it all. */
  statuses?: readonly RunStatus[] | undefined;
  /** Of those that failed, only the ones whose time was over; false: only the others. */
  timedOut?: boolean | undefined;
  /** What the run's metadata must hold. */
  metadata?: JsonObject | undefined;
  limit: number;
  offset: number;
}

const LIST = `
  select * from runs
  where thread_id = $1::uuid and owner = $2 and kind <> 'edit' and not hidden
    and ($3::text[] is null or status = any($3::text[]))
    and ($7::boolean is null or status <> 'failed' or (error ->> 'code' = 'RUN_TIMEOUT') = $7)
    and ($4::jsonb is null or coalesce((config -> 'metadata')::jsonb, '{}'::jsonb) @> $4::jsonb)
  order by ordinal desc
  limit $5 offset $6`;

/** Empty for a thread that is not the owner's. */
export async function listRuns(db: Queryable, owner: string, threadId: string, filter: RunFilter): Promise<Run[]> {
  const { rows } = await db.query<RunRow>(LIST, [
    threadId,
    owner,
    filter.statuses ?? null,
    filter.metadata === undefined ? null : storableJson(filter.metadata),
    filter.limit,
    filter.offset,
    filter.timedOut ?? null,
  ]);
  return rows.map(toRun);
}

const LIVE = `
  select * from runs
  where owner = $1 and kind <> 'edit' and not hidden and status = any($2::text[])
    and ($3::uuid is null or thread_id = $3::uuid) and ($4::uuid[] is null or id = any($4::uuid[]))
  order by seq
  limit 1000`;

/** Runs of the owner that have not ended, over all threads or of one, those with these ids or all. At most 1000. */
export async function liveRunsOf(
  db: Queryable,
  owner: string,
  which: { threadId?: string | undefined; ids?: string[] | undefined; statuses: readonly RunStatus[] },
): Promise<Run[]> {
  const values = [owner, which.statuses, which.threadId ?? null, which.ids ?? null];
  const { rows } = await db.query<RunRow>(LIVE, values);
  return rows.map(toRun);
}
