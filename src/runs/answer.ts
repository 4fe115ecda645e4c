/** Admission of a person's answer: it joins the turn that asked, on the lineage that waits. */
import { randomUUID } from 'node:crypto';
import { RunledgerError } from '#src/errors.ts';
import type { Tx } from '#src/postgres/pool.ts';
import { inTransaction } from '#src/postgres/transaction.ts';
import { answerInterrupts, lockThread, pendingInterrupts } from '#src/threads/open.ts';
import {
  type Admission,
  type AdmitDeps,
  firstWithKey,
  insertRun,
  optionsOf,
  refuseWhileLive,
  threadNotFound,
} from './admission.ts';
import { requestHash } from './hash.ts';
import { toRun } from './queries.ts';
import type { AnswerRequest } from './run.ts';

/**
 * Answers to open interrupts join the turn that asked: -> queued.
 * Guard: request key, thread row, one live run per thread, `interrupts.status = 'open'` for every id.
 * Lost race: INTERRUPT_ANSWERED, nothing written.
 * @throws THREAD_NOT_FOUND, INTERRUPT_NOT_FOUND {path}, INTERRUPT_ANSWERED {path}, RUN_IN_PROGRESS, IDEMPOTENCY_KEY_REUSED
 */
export function admitAnswer(deps: AdmitDeps, request: AnswerRequest): Promise<Admission> {
  const { owner, thread_id: threadId, request_key: key } = request;
  const hash = requestHash(key, {
    kind: 'answer',
    thread_id: threadId,
    interrupts: request.interrupts,
    config: request.config ?? {},
    on_disconnect: request.on_disconnect ?? null,
    webhook: request.webhook ?? null,
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
      ...optionsOf(deps, request),
    });
    if ((await answerInterrupts(tx, asked.lineage_id, ids, runId)) !== ids.length) throw answered(ids[0] ?? '');
    return { run: toRun(row), message_id: null, replayed: false, superseded: row.superseded };
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

function answered(id: string): RunledgerError {
  return new RunledgerError('INTERRUPT_ANSWERED', 'This interrupt has been answered.', { path: `interrupts.${id}` });
}
