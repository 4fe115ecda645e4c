/** The door to crons. Every call is scoped by owner. Firing them is fire.ts. */
import { randomUUID } from 'node:crypto';
import { RunledgerError } from '#src/errors.ts';
import type { Pool } from '#src/postgres/pool.ts';
import { inTransaction } from '#src/postgres/transaction.ts';
import type { Cron, CronChange, CronFilter, CronPage, NewCron } from './cron.ts';
import {
  changeCron,
  countCrons,
  deleteCron,
  insertCron,
  lockCron,
  postgresNow,
  selectCron,
  selectCrons,
} from './queries.ts';
import { nextSlot } from './schedule.ts';

export { CRON_ORDERS, type Cron, type CronChange } from './cron.ts';
export { isSchedule, isTimezone } from './schedule.ts';

export interface CronService {
  /**
   * The caller has checked schedule and time zone, and that its owner may see the thread and the assistant.
   * @throws INVALID_REQUEST (path `schedule`) when it would never fire; (path `webhook`) for one that cannot be sent to
   */
  create(owner: string, cron: NewCron): Promise<Cron>;
  /** @throws CRON_NOT_FOUND */
  get(owner: string, id: string): Promise<Cron>;
  /**
   * A change of what decides the next date sets it anew from now on; a slot that is due then is dropped.
   * @throws CRON_NOT_FOUND; INVALID_REQUEST (path `webhook`)
   */
  update(owner: string, id: string, change: CronChange): Promise<Cron>;
  /** @throws CRON_NOT_FOUND */
  remove(owner: string, id: string): Promise<void>;
  search(owner: string, page: CronPage): Promise<Cron[]>;
  count(owner: string, filter: CronFilter): Promise<number>;
}

/** @param deps.assertWebhook throws INVALID_REQUEST for a webhook that runs will not be admitted with */
export function createCronService(deps: { pool: Pool; assertWebhook: (url: string) => unknown }): CronService {
  const { pool } = deps;

  function assertPayload({ webhook }: Cron['payload']): void {
    if (typeof webhook === 'string') deps.assertWebhook(webhook);
  }

  return {
    async create(owner, cron) {
      assertPayload(cron.payload);
      const next = nextSlot(cron, await postgresNow(pool));
      if (next === null) {
        throw new RunledgerError('INVALID_REQUEST', 'The schedule has no time to come before its end.', {
          path: 'schedule',
        });
      }
      return insertCron(pool, { ...cron, id: randomUUID(), owner, next: cron.enabled ? next : null });
    },
    async get(owner, id) {
      const found = await selectCron(pool, owner, id);
      if (found === null) throw cronNotFound();
      return found;
    },
    update(owner, id, change) {
      return inTransaction(pool, async (tx) => {
        const before = await lockCron(tx, owner, id);
        if (before === null) throw cronNotFound();
        const after = changed(before, change);
        if (change.payload !== undefined) assertPayload(after.payload);
        return changeCron(tx, after, isSame(before, after) ? dateOf(before) : await firstSlot(after));

        async function firstSlot(cron: Cron): Promise<Date | null> {
          return cron.enabled ? nextSlot(cron, await postgresNow(tx)) : null;
        }
      });
    },
    async remove(owner, id) {
      if (!(await deleteCron(pool, owner, id))) throw cronNotFound();
    },
    search: (owner, page) => selectCrons(pool, owner, page),
    count: (owner, filter) => countCrons(pool, owner, filter),
  };
}

function changed(before: Cron, change: CronChange): Cron {
  return {
    ...before,
    schedule: change.schedule ?? before.schedule,
    timezone: change.timezone === undefined ? before.timezone : change.timezone,
    end_time: change.end_time === undefined ? before.end_time : change.end_time,
    enabled: change.enabled ?? before.enabled,
    // Of a thread that the cron names nothing is decided here.
    on_run_completed: before.thread_id === null ? (change.on_run_completed ?? before.on_run_completed) : null,
    payload: { ...before.payload, ...change.payload },
    metadata: { ...before.metadata, ...change.metadata },
  };
}

function isSame(before: Cron, after: Cron): boolean {
  return (
    before.schedule === after.schedule &&
    before.timezone === after.timezone &&
    before.end_time === after.end_time &&
    before.enabled === after.enabled
  );
}

function dateOf({ next_run_date: next }: Cron): Date | null {
  return next === null ? null : new Date(next);
}

function cronNotFound(): RunledgerError {
  return new RunledgerError('CRON_NOT_FOUND', 'Cron not found');
}
