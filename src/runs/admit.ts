/** Admission: a request becomes a queued run, or a refusal, in one transaction. Nothing is half-written. */
import { randomUUID } from 'node:crypto';
import { RunledgerError } from '#src/errors.ts';
import type { JsonObject } from '#src/events/event.ts';
import type { Queryable, Tx } from '#src/postgres/pool.ts';
import { inTransaction } from '#src/postgres/transaction.ts';
import { lockThread, pendingInterrupts } from '#src/threads/open.ts';
import {
  type Admission,
  type AdmitDeps,
  firstWithKey,
  INSERT_RUN,
  type InsertedRow,
  type NewRun,
  optionsOf,
  refuseWhileLive,
  runValues,
  threadNotFound,
} from './admission.ts';
import { requestHash } from './hash.ts';
import { toRun } from './queries.ts';
import type { MessageRequest } from './run.ts';

// The parameters are those of a run, then $18 the message's content, $19 whether the turn gets a lineage of its own.
const TURN_AND_RUN = `
  lineage as (
    insert into lineages (id, thread_id, turn_id)
    select $5::uuid, $3::uuid, $4::uuid from counted where $19::boolean),
  turn as (
    insert into turns (id, thread_id, ordinal, lineage_id)
    select $4::uuid, $3::uuid, turn_count, $5::uuid from counted),
  question as (
    insert into messages (id, thread_id, turn_id, run_id, role, content)
    select $15::uuid, $3::uuid, $4::uuid, $1::uuid, 'user', $18::json from counted)
  ${INSERT_RUN}`;

const NEW_THREAD = {
  name: 'admit_thread',
  text: `
    with counted as (
      insert into threads (id, owner, graph_id, metadata, turn_count, run_count)
      values ($3::uuid, $2, $6, $20::jsonb, 1, 1)
      returning turn_count, run_count),
    -- the thread's own lineage has the thread's id
    own as (
      insert into lineages (id, thread_id) values ($3::uuid, $3::uuid)),
    ${TURN_AND_RUN}`,
};

const NEXT_TURN = {
  name: 'admit_turn',
  text: `
    with counted as (
      update threads
      set turn_count = turn_count + 1, run_count = run_count + 1, active_at = clock_timestamp(),
          -- the thread keeps the graph of its first turn as its default
          graph_id = coalesce(graph_id, $6)
      where id = $3::uuid
        -- guard: nothing of the thread is queued or running
        and not exists (select 1 from runs where thread_id = $3::uuid and status in ('queued', 'running'))
        -- guard: it waits for no answer
        and not exists (select 1 from interrupts where thread_id = $3::uuid and status = 'open')
      returning turn_count, run_count),
    ${TURN_AND_RUN}`,
};

/**
 * A message opens a turn and its run: -> queued, or prepared.
 * Guard: request key under its advisory lock, then the thread's row; one live run per thread; no open question.
 * Lost race: the same request key and body gets the first result (`replayed`).
 * @throws THREAD_NOT_FOUND, GRAPH_NOT_FOUND, RUN_IN_PROGRESS {run_id}, TURN_WAITING_APPROVAL, IDEMPOTENCY_KEY_REUSED
 * After a crash before COMMIT: nothing; after it: the run is queued and any worker's poll finds it.
 */
export async function admitMessage(deps: AdmitDeps, request: MessageRequest): Promise<Admission> {
  const { owner, thread_id: threadId, request_key: key } = request;
  const hash = requestHash(key, {
    kind: 'message',
    thread_id: threadId,
    graph_id: request.graph_id ?? null,
    content: request.content,
    config: request.config ?? {},
    stream_modes: request.stream_modes ?? [],
    on_disconnect: request.on_disconnect ?? null,
    webhook: request.webhook ?? null,
    ...(request.prepared === true ? { prepared: true } : {}),
  });
  // Nobody can race for a thread that does not exist yet: one statement is the whole transaction.
  if (threadId === null && key === undefined) return inNewThread(deps.pool, deps, request, hash);
  return inTransaction(deps.pool, async (tx) => {
    const first = await firstWithKey(tx, owner, key, hash);
    if (first !== null) return first;
    return threadId === null
      ? inNewThread(tx, deps, request, hash)
      : nextTurn(tx, deps, { ...request, thread_id: threadId }, hash);
  });
}

async function inNewThread(
  db: Queryable,
  deps: AdmitDeps,
  request: MessageRequest,
  hash: string | null,
): Promise<Admission> {
  const run = newRun(deps, request, { threadId: randomUUID(), graphId: request.graph_id ?? deps.defaultGraph, hash });
  const row = await insertTurn(db, NEW_THREAD, run, request, [JSON.stringify(request.thread_metadata ?? {})]);
  if (row === undefined) throw new Error('a new thread was not inserted');
  return { run: toRun(row), message_id: run.messageId, replayed: false, superseded: row.superseded };
}

async function nextTurn(
  tx: Tx,
  deps: AdmitDeps,
  request: MessageRequest & { thread_id: string },
  hash: string | null,
): Promise<Admission> {
  const { owner, thread_id: threadId } = request;
  // A statement of its own: the next one, which checks what runs and waits, must see what held this lock before.
  const thread = await lockThread(tx, owner, threadId);
  if (thread === null) throw threadNotFound();
  const run = newRun(deps, request, {
    threadId,
    graphId: request.graph_id ?? thread.graph_id ?? deps.defaultGraph,
    hash,
  });
  const row = await insertTurn(tx, NEXT_TURN, run, request);
  if (row === undefined) return refuseBusy(tx, threadId);
  return { run: toRun(row), message_id: run.messageId, replayed: false, superseded: row.superseded };
}

function newRun(
  deps: AdmitDeps,
  request: MessageRequest,
  place: { threadId: string; graphId: string; hash: string | null },
): NewRun {
  const { threadId, graphId, hash } = place;
  if (!deps.graphs.has(graphId)) {
    throw new RunledgerError('GRAPH_NOT_FOUND', `This server has no graph ${JSON.stringify(graphId)}.`, {
      path: 'graph',
    });
  }
  const messageId = randomUUID();
  const input: JsonObject = { messages: [{ type: 'human', id: messageId, content: request.content }] };
  return {
    id: randomUUID(),
    owner: request.owner,
    threadId,
    turnId: randomUUID(),
    lineageId: deps.graphs.contextOf(graphId) === 'transcript' ? randomUUID() : threadId,
    graphId,
    kind: 'message',
    input,
    command: null,
    messageId,
    hash,
    ...optionsOf(deps, request),
  };
}

/** The turn, its question and its run; undefined when a guard of the statement held. */
async function insertTurn(
  db: Queryable,
  statement: { name: string; text: string },
  run: NewRun,
  request: MessageRequest,
  more: unknown[] = [],
): Promise<InsertedRow | undefined> {
  const values = [...runValues(run), JSON.stringify(request.content), run.lineageId !== run.threadId, ...more];
  const { rows } = await db.query<InsertedRow>({ ...statement, values });
  return rows[0];
}

/** Says what the guards of NEXT_TURN saw; the thread's row is still locked, so it is still so. */
async function refuseBusy(tx: Tx, threadId: string): Promise<never> {
  await refuseWhileLive(tx, threadId);
  const open = (await pendingInterrupts(tx, threadId)).filter((interrupt) => interrupt.status === 'open');
  if (open.length === 0) throw new Error(`thread ${threadId} slipped away under its lock`);
  throw new RunledgerError('TURN_WAITING_APPROVAL', 'The turn waits for an answer to its open interrupts.', {
    details: { interrupt_ids: open.map((interrupt) => interrupt.id) },
  });
}
