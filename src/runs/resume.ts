/** Which open interrupts a LangGraph command answers, decided while the thread's row is held. */
import { RunledgerError } from '#src/errors.ts';
import type { Json, JsonObject } from '#src/events/event.ts';
import type { Tx } from '#src/postgres/pool.ts';
import { type PendingInterrupt, pendingInterrupts } from '#src/threads/open.ts';
import { refuseWhileLive } from './admission.ts';

export interface Resumed {
  /** The command with a bare value put under the id of the one question that is open. */
  command: JsonObject;
  /** What is answered; empty when nothing was asked, or only at a breakpoint. */
  answered: PendingInterrupt[];
}

/** LangGraph's ids of interrupts. */
const INTERRUPT_ID = /^[0-9a-f]{32}$/;

/** Where and when the value is brought. */
export interface ResumePlace {
  threadId: string;
  /** The checkpoint it is for, when it is named. */
  checkpointId: string | undefined;
  /** The run comes after those of the thread that have not ended, whatever they may ask. */
  waits: boolean;
}

/**
 * `resume` as LangGraph takes it: a value for the one open question, or values by interrupt id. At a checkpoint that is not
 * where the lineage stands it is as the client has it: what was asked there is not asked any more.
 * @throws INTERRUPT_AMBIGUOUS for a bare value while several are open; INTERRUPT_ANSWERED for an id whose question is not
 *   open any more: LangGraph would give the value to the next question of the same task; RUN_IN_PROGRESS for a bare value
 *   that would wait for a question nobody has asked yet
 */
export async function resumed(tx: Tx, place: ResumePlace, command: JsonObject): Promise<Resumed> {
  const { threadId, checkpointId } = place;
  const { resume } = command;
  if (resume === undefined || resume === null) return { command, answered: [] };
  if (checkpointId !== undefined && !(await isTip(tx, threadId, checkpointId))) return { command, answered: [] };
  const open = (await pendingInterrupts(tx, threadId)).filter((interrupt) => interrupt.status === 'open');
  if (isByInterrupt(resume)) {
    const answered = open.filter((interrupt) => interrupt.id in resume);
    await refuseAnswered(tx, threadId, Object.keys(resume), answered);
    return { command, answered };
  }
  const [only] = open;
  if (only === undefined) {
    if (place.waits) await refuseWhileLive(tx, threadId);
    return { command, answered: [] };
  }
  if (open.length > 1) {
    throw new RunledgerError('INTERRUPT_AMBIGUOUS', 'Several interrupts are open: resume them by their ids.', {
      path: 'command.resume',
      details: { interrupt_ids: open.map((interrupt) => interrupt.id) },
    });
  }
  return { command: { ...command, resume: { [only.id]: resume } }, answered: [only] };
}

const TIP = `select 1 from lineages where thread_id = $1::uuid and tip_checkpoint_id = $2`;

async function isTip(tx: Tx, threadId: string, checkpointId: string): Promise<boolean> {
  return (await tx.query(TIP, [threadId, checkpointId])).rows.length > 0;
}

const KNOWN = `select id from interrupts where thread_id = $1::uuid and id = any($2::text[])`;

/** Ids that are not known here are LangGraph's to judge: of a lineage that was copied, or written by the stock saver. */
async function refuseAnswered(tx: Tx, threadId: string, ids: string[], open: PendingInterrupt[]): Promise<void> {
  const { rows } = await tx.query<{ id: string }>(KNOWN, [threadId, ids]);
  const isOpen = new Set(open.map((interrupt) => interrupt.id));
  const answered = rows.find(({ id }) => !isOpen.has(id));
  if (answered === undefined) return;
  throw new RunledgerError('INTERRUPT_ANSWERED', 'This interrupt has been answered.', {
    path: 'command.resume',
    details: { interrupt_id: answered.id },
  });
}

/** Values by interrupt id, as LangGraph tells them from a bare value. */
export function isByInterrupt(resume: Json | undefined): resume is JsonObject {
  if (typeof resume !== 'object' || resume === null || Array.isArray(resume)) return false;
  const ids = Object.keys(resume);
  return ids.length > 0 && ids.every((id) => INTERRUPT_ID.test(id));
}
