/** Admission: a request becomes a queued run, or a refusal, in one transaction. Nothing is half-written. */
import { randomUUID } from 'node:crypto';
import { RunledgerError } from '#src/errors.ts';
import type { JsonObject } from '#src/events/event.ts';
import type { Tx } from '#src/postgres/pool.ts';
import { inTransaction } from '#src/postgres/transaction.ts';
import { insertQuestion, insertThread, lockThread, openTurn, pendingInterrupts } from '#src/threads/open.ts';
import { type AdmitDeps, firstWithKey, insertRun, optionsOf, refuseWhileLive, threadNotFound } from './admission.ts';
import { requestHash } from './hash.ts';
import { toRun } from './queries.ts';
import type { Admitted, MessageRequest } from './run.ts';

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
      ...optionsOf(deps, request),
    });
    await insertQuestion(tx, { id: ids.message, threadId, turnId: ids.turn, runId: ids.run, content: request.content });
    return { run: toRun(row), message_id: ids.message, replayed: false };
  });
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

async function refuseWhileBusy(tx: Tx, threadId: string): Promise<void> {
  await refuseWhileLive(tx, threadId);
  const open = (await pendingInterrupts(tx, threadId)).filter((interrupt) => interrupt.status === 'open');
  if (open.length === 0) return;
  throw new RunledgerError('TURN_WAITING_APPROVAL', 'The turn waits for an answer to its open interrupts.', {
    details: { interrupt_ids: open.map((interrupt) => interrupt.id) },
  });
}
