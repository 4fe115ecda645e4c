/** Admission: a request becomes a queued run, or a refusal, in one transaction. Nothing is half-written. */
import { randomUUID } from 'node:crypto';
import { RunledgerError } from '#src/errors.ts';
import type { Json, JsonObject } from '#src/events/event.ts';
import type { GraphRegistry } from '#src/graphs/graph.ts';
import type { Pool, Tx } from '#src/postgres/pool.ts';
import { inTransaction } from '#src/postgres/transaction.ts';
import {
  answerInterrupts,
  insertQuestion,
  insertThread,
  lockThread,
  openTurn,
  pendingInterrupts,
} from '#src/threads/open.ts';
import { advisoryKey, requestHash } from './hash.ts';
import { liveRuns, type RunRow, toRun } from './queries.ts';
import type { Admitted, AnswerRequest, MessageRequest, RunConfig, RunKind } from './run.ts';

export interface AdmitDeps {
  pool: Pool;
  graphs: GraphRegistry;
  defaultGraph: string;
}

/**
 * A message opens a turn and its run: -> queued.
 * Guard: request key under its advisory lock, then the thread's row; one live run per thread; no open question.
 * Lost race: the same request key and body gets the first result (`replayed`).
 * @throws THREAD_NOT_FOUND, GRAPH_NOT_FOUND, RUN_IN_PROGRESS {run_id}, TURN_WAITING_APPROVAL, IDEMPOTENCY_KEY_REUSED
 * After a crash before COMMIT: nothing; after it: the run is queued and any worker's poll finds it.
 */
export function admitMessage(deps: AdmitDeps, request: MessageRequest): Promise<Admitted> {
  const { owner, request_key: key } = request;
  const hash = requestHash({
    kind: 'message',
    thread_id: request.thread_id,
    graph_id: request.graph_id ?? null,
    content: request.content,
    config: request.config ?? {},
    stream_modes: request.stream_modes ?? [],
    on_disconnect: request.on_disconnect ?? null,
  });
  return inTransaction(deps.pool, async (tx) => {
    const first = await firstWithKey(tx, owner, key, hash);
    if (first !== null) return first;
    const threadId = request.thread_id ?? randomUUID();
    const thread = await threadFor(tx, request, threadId);
    const graphId = request.graph_id ?? thread.graph_id ?? deps.defaultGraph;
    if (!deps.graphs.has(graphId)) {
      throw new RunledgerError('GRAPH_NOT_FOUND', `This server has no graph ${JSON.stringify(graphId)}.`, {
        path: 'graph',
      });
    }
    await refuseWhileBusy(tx, threadId);
    const ids = { run: randomUUID(), turn: randomUUID(), message: randomUUID() };
    const ownLineage = deps.graphs.contextOf(graphId) === 'transcript';
    const lineageId = ownLineage ? randomUUID() : threadId;
    await openTurn(tx, { id: ids.turn, threadId, lineageId, ownLineage, graphId });
    const input: JsonObject = { messages: [{ type: 'human', id: ids.message, content: request.content }] };
    const row = await insertRun(tx, {
      id: ids.run,
      owner,
      threadId,
      turnId: ids.turn,
      lineageId,
      graphId,
      kind: 'message',
      input,
      command: null,
      messageId: ids.message,
      hash,
      ...optionsOf(request),
    });
    await insertQuestion(tx, { id: ids.message, threadId, turnId: ids.turn, runId: ids.run, content: request.content });
    return { run: toRun(row), message_id: ids.message, replayed: false };
  });
}

/**
 * Answers to open interrupts join the turn that asked: -> queued.
 * Guard: request key, thread row, one live run per thread, `interrupts.status = 'open'` for every id.
 * Lost race: INTERRUPT_ANSWERED, nothing written.
 * @throws THREAD_NOT_FOUND, INTERRUPT_NOT_FOUND {path}, INTERRUPT_ANSWERED {path}, RUN_IN_PROGRESS, IDEMPOTENCY_KEY_REUSED
 */
export function admitAnswer(deps: AdmitDeps, request: AnswerRequest): Promise<Admitted> {
  const { owner, thread_id: threadId, request_key: key } = request;
  const hash = requestHash({
    kind: 'answer',
    thread_id: threadId,
    interrupts: request.interrupts,
    config: request.config ?? {},
  });
  const ids = Object.keys(request.interrupts);
  return inTransaction(deps.pool, async (tx) => {
    const first = await firstWithKey(tx, owner, key, hash);
    if (first !== null) return first;
    if ((await lockThread(tx, owner, threadId)) === null) throw threadNotFound();
    const asked = await askedOf(tx, threadId, ids);
    await refuseWhileLive(tx, threadId);
    const runId = randomUUID();
    const row = await insertRun(tx, {
      id: runId,
      owner,
      threadId,
      turnId: asked.turn_id,
      lineageId: asked.lineage_id,
      graphId: await graphOfLineage(tx, asked.lineage_id),
      kind: 'answer',
      input: null,
      command: { resume: request.interrupts },
      messageId: null,
      hash,
      ...optionsOf(request),
    });
    if ((await answerInterrupts(tx, asked.lineage_id, ids, runId)) !== ids.length) throw answered(ids[0] ?? '');
    return { run: toRun(row), message_id: null, replayed: false };
  });
}

/** The run first admitted with this key, under the key's lock; null when the key is new or there is none. */
async function firstWithKey(tx: Tx, owner: string, key: string | undefined, hash: string): Promise<Admitted | null> {
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
  return { run: toRun(row), message_id: row.message_id, replayed: true };
}

async function threadFor(tx: Tx, request: MessageRequest, threadId: string): Promise<{ graph_id: string | null }> {
  if (request.thread_id === null) {
    await insertThread(tx, { id: threadId, owner: request.owner, graphId: request.graph_id });
    return { graph_id: request.graph_id ?? null };
  }
  const thread = await lockThread(tx, request.owner, threadId);
  if (thread === null) throw threadNotFound();
  return thread;
}

async function refuseWhileLive(tx: Tx, threadId: string): Promise<void> {
  const live = (await liveRuns(tx, threadId)).find((run) => run.status !== 'prepared');
  if (live === undefined) return;
  throw new RunledgerError('RUN_IN_PROGRESS', 'A run of this thread is still in progress.', {
    details: { run_id: live.id, thread_id: threadId },
  });
}

async function refuseWhileBusy(tx: Tx, threadId: string): Promise<void> {
  await refuseWhileLive(tx, threadId);
  const open = (await pendingInterrupts(tx, threadId)).filter((interrupt) => interrupt.status === 'open');
  if (open.length === 0) return;
  throw new RunledgerError('TURN_WAITING_APPROVAL', 'The turn waits for an answer to its open interrupts.', {
    details: { interrupt_ids: open.map((interrupt) => interrupt.id) },
  });
}

/** The lineage and turn that asked all of these. */
async function askedOf(tx: Tx, threadId: string, ids: string[]) {
  const pending = new Map((await pendingInterrupts(tx, threadId)).map((interrupt) => [interrupt.id, interrupt]));
  let asked: { lineage_id: string; turn_id: string | null } | null = null;
  for (const id of ids) {
    const interrupt = pending.get(id);
    if (interrupt === undefined) {
      const known = await tx.query('select 1 from interrupts where thread_id = $1::uuid and id = $2', [threadId, id]);
      if (known.rows.length > 0) throw answered(id);
      throw new RunledgerError('INTERRUPT_NOT_FOUND', 'The thread has no such interrupt.', {
        path: `interrupts.${id}`,
      });
    }
    if (interrupt.status !== 'open') throw answered(id);
    asked = interrupt;
  }
  if (asked === null)
    throw new RunledgerError('INVALID_REQUEST', 'Name at least one interrupt.', { path: 'interrupts' });
  return asked;
}

const GRAPH_OF_LINEAGE = `select graph_id from runs where lineage_id = $1::uuid and kind <> 'edit' order by ordinal desc limit 1`;

async function graphOfLineage(tx: Tx, lineageId: string): Promise<string> {
  const { rows } = await tx.query<{ graph_id: string }>(GRAPH_OF_LINEAGE, [lineageId]);
  if (rows[0] === undefined) throw new Error(`lineage ${lineageId} asked but has no run`);
  return rows[0].graph_id;
}

interface NewRun {
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
  hash: string;
  requestKey: string | null;
  config: RunConfig;
  streamModes: string[];
  onDisconnect: string;
}

function optionsOf(request: MessageRequest | AnswerRequest) {
  return {
    requestKey: request.request_key ?? null,
    config: request.config ?? {},
    streamModes: 'stream_modes' in request ? (request.stream_modes ?? []) : [],
    onDisconnect: request.on_disconnect ?? 'continue',
  };
}

const INSERT_RUN = `
  with counted as (
    update threads set run_count = run_count + 1, active_at = clock_timestamp() where id = $3::uuid returning run_count)
  insert into runs (id, owner, thread_id, turn_id, lineage_id, graph_id, kind, status, ordinal, input, command, config,
                    stream_modes, on_disconnect, request_key, request_hash, message_id)
  select $1::uuid, $2, $3::uuid, $4::uuid, $5::uuid, $6, $7, 'queued', run_count, $8::json, $9::json, $10::json,
         $11::text[], $12, $13, $14, $15::uuid
  from counted
  returning *`;

async function insertRun(tx: Tx, run: NewRun): Promise<RunRow> {
  const { rows } = await tx.query<RunRow>(INSERT_RUN, [
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
  ]);
  const [row] = rows;
  if (row === undefined) throw new Error(`thread ${run.threadId} slipped away under its lock`);
  return row;
}

function threadNotFound(): RunledgerError {
  return new RunledgerError('THREAD_NOT_FOUND', 'There is no such thread.');
}

function answered(id: string): RunledgerError {
  return new RunledgerError('INTERRUPT_ANSWERED', 'This interrupt has been answered.', { path: `interrupts.${id}` });
}
