/** Reading runs: row -> Run, and the selects that change nothing. */
import { RunledgerError } from '#src/errors.ts';
import type { GraphMode, InterruptFacts, Json, JsonObject, RunFailure, Usage } from '#src/events/event.ts';
import type { Queryable } from '#src/postgres/pool.ts';
import type { OnDisconnect, Run, RunConfig, RunKind, RunStatus } from './run.ts';

/** A row of `runs` as node-postgres gives it. */
export interface RunRow {
  id: string;
  owner: string;
  thread_id: string;
  turn_id: string | null;
  lineage_id: string;
  graph_id: string;
  kind: RunKind;
  status: RunStatus;
  epoch: number;
  ordinal: number;
  takeovers: number;
  input: Json;
  command: JsonObject | null;
  config: RunConfig;
  assistant_id: string | null;
  wire: JsonObject | null;
  stream_modes: GraphMode[];
  on_disconnect: OnDisconnect;
  request_key: string | null;
  request_hash: string | null;
  message_id: string | null;
  webhook: string | null;
  worker_id: string | null;
  base_checkpoint_id: string | null;
  cancel_requested_at: Date | null;
  cancel_action: 'interrupt' | 'rollback' | null;
  error: RunFailure | null;
  reason: string | null;
  usage: Usage | null;
  interrupts: InterruptFacts[];
  log_end: string | null;
  created_at: Date;
  started_at: Date | null;
  ended_at: Date | null;
}

const COLUMNS = {
  id: true,
  owner: true,
  thread_id: true,
  turn_id: true,
  lineage_id: true,
  graph_id: true,
  kind: true,
  status: true,
  epoch: true,
  ordinal: true,
  takeovers: true,
  input: true,
  command: true,
  config: true,
  assistant_id: true,
  wire: true,
  stream_modes: true,
  on_disconnect: true,
  request_key: true,
  request_hash: true,
  message_id: true,
  webhook: true,
  worker_id: true,
  base_checkpoint_id: true,
  cancel_requested_at: true,
  cancel_action: true,
  error: true,
  reason: true,
  usage: true,
  interrupts: true,
  log_end: true,
  created_at: true,
  started_at: true,
  ended_at: true,
} as const satisfies Record<keyof RunRow, true>;

/**
 * The columns of a RunRow by name, for prepared statements: one with `*` fails for as long as its connection lives once
 * a newer version's migration has added a column.
 * @param table the table's name or alias in the statement
 */
export function runColumns(table: string): string {
  return Object.keys(COLUMNS)
    .map((column) => `${table}.${column}`)
    .join(', ');
}

export function toRun(row: RunRow): Run {
  return {
    id: row.id,
    owner: row.owner,
    thread_id: row.thread_id,
    turn_id: row.turn_id,
    lineage_id: row.lineage_id,
    graph_id: row.graph_id,
    kind: row.kind,
    status: row.status,
    epoch: row.epoch,
    ordinal: row.ordinal,
    takeovers: row.takeovers,
    input: row.input,
    command: row.command,
    config: row.config,
    assistant_id: row.assistant_id,
    wire: row.wire,
    stream_modes: row.stream_modes,
    on_disconnect: row.on_disconnect,
    request_key: row.request_key,
    webhook: row.webhook,
    cancel_requested_at: row.cancel_requested_at?.toISOString() ?? null,
    cancel_action: row.cancel_action,
    error: row.error,
    reason: row.reason,
    usage: row.usage,
    interrupts: row.interrupts,
    log_end: row.log_end === null ? null : Number(row.log_end),
    created_at: row.created_at.toISOString(),
    started_at: row.started_at?.toISOString() ?? null,
    ended_at: row.ended_at?.toISOString() ?? null,
  };
}

const BY_ID = `select * from runs where id = $1::uuid and not hidden`;

/** The run, whoever owns it; null when there is none. For the engine, never for a request. */
export async function findRun(db: Queryable, runId: string): Promise<Run | null> {
  const { rows } = await db.query<RunRow>(BY_ID, [runId]);
  return rows[0] === undefined ? null : toRun(rows[0]);
}

const BY_ID_EVEN_HIDDEN = `select * from runs where id = $1::uuid`;

/** The same for whoever ends the run: also when it was rolled back, and nobody else finds it any more. */
export async function findEndedRun(db: Queryable, runId: string): Promise<Run | null> {
  const { rows } = await db.query<RunRow>(BY_ID_EVEN_HIDDEN, [runId]);
  return rows[0] === undefined ? null : toRun(rows[0]);
}

const OF_OWNER = `select * from runs where id = $1::uuid and owner = $2 and kind <> 'edit' and not hidden`;

/** @throws RUN_NOT_FOUND, also for another owner's run */
export async function getRun(db: Queryable, owner: string, runId: string): Promise<Run> {
  const { rows } = await db.query<RunRow>(OF_OWNER, [runId, owner]);
  if (rows[0] === undefined) throw new RunledgerError('RUN_NOT_FOUND', 'There is no such run.');
  return toRun(rows[0]);
}

const LATEST = `
  select r.* from threads t
  left join lateral (
    select * from runs r where r.thread_id = t.id and r.kind <> 'edit' and not r.hidden order by r.ordinal desc limit 1
  ) r on true
  where t.id = $1::uuid and t.owner = $2`;
const ONE_OF_THREAD = `
  select r.* from threads t
  left join runs r on r.thread_id = t.id and r.id = $3::uuid and r.kind <> 'edit' and not r.hidden
  where t.id = $1::uuid and t.owner = $2`;

/** The thread's run with this id, or its latest. @throws THREAD_NOT_FOUND, RUN_NOT_FOUND */
export async function findRunOfThread(
  db: Queryable,
  owner: string,
  threadId: string,
  runId: string | undefined,
): Promise<Run> {
  const { rows } =
    runId === undefined
      ? await db.query<RunRow | { id: null }>(LATEST, [threadId, owner])
      : await db.query<RunRow | { id: null }>(ONE_OF_THREAD, [threadId, owner, runId]);
  const [row] = rows;
  if (row === undefined) throw new RunledgerError('THREAD_NOT_FOUND', 'There is no such thread.');
  if (row.id === null) throw new RunledgerError('RUN_NOT_FOUND', 'The thread has no such run.');
  return toRun(row);
}

const LIVE_OF_THREAD = `
  select * from runs
  where thread_id = $1::uuid and status in ('prepared', 'queued', 'running')
  order by ordinal desc`;

/** Runs of the thread that have not ended, newest first, edits included. */
export async function liveRuns(db: Queryable, threadId: string): Promise<Run[]> {
  const { rows } = await db.query<RunRow>(LIVE_OF_THREAD, [threadId]);
  return rows.map(toRun);
}
