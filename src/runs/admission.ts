/** What every admission does, whatever it admits: request key, one live run per thread, the row. */
import { RunledgerError } from '#src/errors.ts';
import type { Json, JsonObject } from '#src/events/event.ts';
import type { GraphRegistry } from '#src/graphs/graph.ts';
import { assertWebhookUrl, type WebhookPolicy } from '#src/outbox/webhook-url.ts';
import type { Pool, Tx } from '#src/postgres/pool.ts';
import { advisoryKey } from './hash.ts';
import { liveRuns, type RunRow, runColumns, toRun } from './queries.ts';
import type { Admitted, AnswerRequest, MessageRequest, RerunRequest, Run, RunConfig, RunKind } from './run.ts';

export interface AdmitDeps {
  pool: Pool;
  graphs: GraphRegistry;
  defaultGraph: string;
  /** Without a secret webhooks are refused. */
  webhooks: WebhookPolicy & { secret: string | null };
}

/** The run first admitted with this key, under the key's lock; null when the key is new or there is none. */
export async function firstWithKey(
  tx: Tx,
  owner: string,
  key: string | undefined,
  hash: string | null,
): Promise<Admission | null> {
  if (key === undefined) return null;
  await tx.query('select pg_advisory_xact_lock($1::bigint)', [advisoryKey('request', owner, key)]);
  const { rows } = await tx.query<RunRow>('select * from runs where owner = $1 and request_key = $2', [owner, key]);
  const [row] = rows;
  if (row === undefined) return null;
  if (row.request_hash !== hash) {
    throw new RunledgerError('IDEMPOTENCY_KEY_REUSED', 'This request key was used for a different request.', {
      path: 'request_key',
      details: { run_id: row.id },
    });
  }
  return { run: toRun(row), message_id: row.message_id, replayed: true, superseded: [] };
}

/**
 * The caller holds the thread's row.
 * @param options.besideStopping a run that has been asked to stop does not count
 * @throws RUN_IN_PROGRESS {run_id} while a run of the thread is queued or running
 */
export async function refuseWhileLive(
  tx: Tx,
  threadId: string,
  { besideStopping = false }: { besideStopping?: boolean } = {},
): Promise<void> {
  const counts = (run: Run) => run.status !== 'prepared' && !(besideStopping && run.cancel_requested_at !== null);
  const live = (await liveRuns(tx, threadId)).find(counts);
  if (live === undefined) return;
  throw new RunledgerError('RUN_IN_PROGRESS', 'A run of this thread is still in progress.', {
    details: { run_id: live.id, thread_id: threadId },
  });
}

export interface NewRun {
  id: string;
  owner: string;
  threadId: string;
  turnId: string | null;
  lineageId: string;
  graphId: string;
  kind: RunKind;
  input: Json;
  command: JsonObject | null;
  messageId: string | null;
  hash: string | null;
  requestKey: string | null;
  config: RunConfig;
  streamModes: string[];
  onDisconnect: string;
  webhook: string | null;
  status: 'prepared' | 'queued';
}

/** Prepared runs of the thread that the new one replaces: they can be started no more, and are to be cancelled. */
interface Superseding {
  superseded: string[];
}
export type InsertedRow = RunRow & Superseding;
export type Admission = Admitted & Superseding;

/** @throws INVALID_REQUEST {path: webhook} for a webhook this server cannot send to */
export function optionsOf(deps: AdmitDeps, request: MessageRequest | AnswerRequest | RerunRequest) {
  return {
    requestKey: request.request_key ?? null,
    config: withUser(request.config ?? {}, request.user),
    streamModes: 'stream_modes' in request ? (request.stream_modes ?? []) : [],
    onDisconnect: request.on_disconnect ?? 'continue',
    webhook: request.webhook === undefined ? null : assertWebhookUrl(request.webhook, deps.webhooks),
    status: 'prepared' in request && request.prepared === true ? ('prepared' as const) : ('queued' as const),
  };
}

/** What a client says of the user does not count. */
export function withUser(config: RunConfig, user: JsonObject | undefined): RunConfig {
  if (user === undefined || Object.keys(user).length === 0) return config;
  return { ...config, configurable: { ...config.configurable, ...user } };
}

/**
 * Inserts the row of a run, from the parameters of `runValues` and a CTE `counted`, whose one row has the run's place in
 * its thread (`run_count`); no row, no run.
 */
export const INSERT_RUN = `
  insert into runs (id, owner, thread_id, turn_id, lineage_id, graph_id, kind, status, ordinal, input, command, config,
                    stream_modes, on_disconnect, request_key, request_hash, message_id, webhook)
  select $1::uuid, $2, $3::uuid, $4::uuid, $5::uuid, $6, $7, $17, run_count, $8::json, $9::json, $10::json,
         $11::text[], $12, $13, $14, $15::uuid, $16
  from counted
  returning ${runColumns('runs')},
            array(select p.id from runs p where p.thread_id = $3::uuid and p.status = 'prepared') as superseded`;

/** $1 to $17 of INSERT_RUN. */
export function runValues(run: NewRun): unknown[] {
  return [
    run.id,
    run.owner,
    run.threadId,
    run.turnId,
    run.lineageId,
    run.graphId,
    run.kind,
    run.input === null ? null : JSON.stringify(run.input),
    run.command === null ? null : JSON.stringify(run.command),
    JSON.stringify(run.config),
    run.streamModes,
    run.onDisconnect,
    run.requestKey,
    run.hash,
    run.messageId,
    run.webhook,
    run.status,
  ];
}

const NEXT_RUN = `
  with counted as (
    update threads set run_count = run_count + 1, active_at = clock_timestamp() where id = $3::uuid returning run_count)
  ${INSERT_RUN}`;

/** Inserts a run, next in its thread's order. The caller holds the thread's row. */
export async function insertRun(tx: Tx, run: NewRun): Promise<InsertedRow> {
  const { rows } = await tx.query<InsertedRow>({ name: 'run_insert', text: NEXT_RUN, values: runValues(run) });
  const [row] = rows;
  if (row === undefined) throw new Error(`thread ${run.threadId} slipped away under its lock`);
  return row;
}

export function threadNotFound(): RunledgerError {
  return new RunledgerError('THREAD_NOT_FOUND', 'There is no such thread.');
}
