/** Fires a slot: the run is queued, the next date set and the slot taken in one transaction, so it happens once. */
import type { Logger } from 'pino';
import { RunledgerError } from '#src/errors.ts';
import type { Pool } from '#src/postgres/pool.ts';
import { isUnavailable } from '#src/postgres/sqlstate.ts';
import { CommitUnknown } from '#src/postgres/transaction.ts';
import type { StartRequest } from '#src/runs/run.ts';
import type { RunService } from '#src/runs/service.ts';
import type { Cron } from './cron.ts';
import { type DueCron, takeSlot } from './queries.ts';
import { latestSlot, nextSlot } from './schedule.ts';

/**
 * fired: the run is queued. refused: it could not be admitted (its graph, assistant or thread is gone, the thread is busy);
 * failed: an error of ours or of the schedule; in both the slot is over and the next date is set. lost: another process
 * has the slot, or the cron was changed. postponed: Postgres could not tell; the slot stays due.
 */
export type Fired = 'fired' | 'refused' | 'failed' | 'lost' | 'postponed';

export interface FireDeps {
  pool: Pool;
  runs: Pick<RunService, 'startWith'>;
  /** What is asked for at each slot, by the dialect the cron was made in. @throws RunledgerError */
  requestOf: (cron: Cron) => Promise<StartRequest>;
  logger: Logger;
}

/** Never throws: one cron's error is no other's. */
export async function fire(deps: FireDeps, cron: DueCron): Promise<Fired> {
  const about = { cronId: cron.id, slot: cron.due.toISOString() };
  try {
    const request = await deps.requestOf(cron);
    const next = nextSlot(cron, cron.now);
    const fired = latestSlot(cron, cron.due, cron.now);
    const named = { ...request, request_key: slotKey(cron), config: withSlot(request, cron, fired) };
    const run = await deps.runs.startWith(named, (tx) => takeSlot(tx, cron.id, cron.due, next));
    if (run === null) return 'lost';
    deps.logger.info({ ...about, fired: fired.toISOString(), runId: run.id, threadId: run.thread_id }, 'cron fired');
    if (fired > cron.due) {
      const missed = { cronId: cron.id, from: about.slot, to: fired.toISOString() };
      deps.logger.warn(missed, 'slots of a cron were missed; those before the latest have no run');
    }
    return 'fired';
  } catch (error) {
    if (isUnavailable(error) || error instanceof CommitUnknown) {
      deps.logger.warn({ err: error, ...about }, 'cron not fired; the slot stays due');
      return 'postponed';
    }
    const refused = error instanceof RunledgerError;
    deps.logger[refused ? 'warn' : 'error']({ err: error, ...about }, 'cron not fired; its next date is set');
    return passOver(deps, cron, refused ? 'refused' : 'failed');
  }
}

/** The same on every worker: whoever fires the slot again finds the run it was fired with. */
function slotKey({ id, due }: DueCron): string {
  return `cron:${id}:${due.toISOString()}`;
}

function withSlot({ config }: StartRequest, cron: Cron, slot: Date): StartRequest['config'] {
  return { ...config, metadata: { ...config.metadata, cron_id: cron.id, cron_slot: slot.toISOString() } };
}

/** The slot is over without a run. Guard: as for firing it. */
async function passOver(deps: FireDeps, cron: DueCron, why: 'refused' | 'failed'): Promise<Fired> {
  const about = { cronId: cron.id };
  try {
    return (await takeSlot(deps.pool, cron.id, cron.due, nextOrNone(deps, cron))) ? why : 'lost';
  } catch (error) {
    deps.logger.warn({ err: error, ...about }, 'next date of a cron not set; the slot stays due');
    return 'postponed';
  }
}

/** A schedule that cannot be read any more fires no more, until it is changed. */
function nextOrNone(deps: FireDeps, cron: DueCron): Date | null {
  try {
    return nextSlot(cron, cron.now);
  } catch (error) {
    deps.logger.error({ err: error, cronId: cron.id }, 'schedule of a cron not readable; it fires no more');
    return null;
  }
}
