/** Which open interrupts a LangGraph command answers, decided while the thread's row is held. */
import { RunledgerError } from '#src/errors.ts';
import type { Json, JsonObject } from '#src/events/event.ts';
import type { Tx } from '#src/postgres/pool.ts';
import { type PendingInterrupt, pendingInterrupts } from '#src/threads/open.ts';

export interface Resumed {
  /** The command with a bare value put under the id of the one question that is open. */
  command: JsonObject;
  /** What is answered; empty when nothing was asked, or only at a breakpoint. */
  answered: PendingInterrupt[];
}

/** LangGraph's ids of interrupts. */
const INTERRUPT_ID = /^[0-9a-f]{32}$/;

/**
 * `resume` as LangGraph takes it: a value for the one open question, or values by interrupt id.
 * @throws INTERRUPT_AMBIGUOUS for a bare value while several are open
 */
export async function resumed(tx: Tx, threadId: string, command: JsonObject): Promise<Resumed> {
  const { resume } = command;
  if (resume === undefined) return { command, answered: [] };
  const open = (await pendingInterrupts(tx, threadId)).filter((interrupt) => interrupt.status === 'open');
  if (isByInterrupt(resume)) {
    return { command, answered: open.filter((interrupt) => interrupt.id in resume) };
  }
  const [only] = open;
  if (only === undefined) return { command, answered: [] };
  if (open.length > 1) {
    throw new RunledgerError('INTERRUPT_AMBIGUOUS', 'Several interrupts are open: resume them by their ids.', {
      path: 'command.resume',
      details: { interrupt_ids: open.map((interrupt) => interrupt.id) },
    });
  }
  return { command: { ...command, resume: { [only.id]: resume } }, answered: [only] };
}

function isByInterrupt(resume: Json): resume is JsonObject {
  if (typeof resume !== 'object' || resume === null || Array.isArray(resume)) return false;
  const ids = Object.keys(resume);
  return ids.length > 0 && ids.every((id) => INTERRUPT_ID.test(id));
}
