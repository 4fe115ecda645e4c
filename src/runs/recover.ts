/** Notices dead workers and puts their runs back, so that any worker can go on with them. Runs on every worker. */
import type { Logger } from 'pino';
import { LogUnavailable } from '#src/events/log.ts';
import type { Pool } from '#src/postgres/pool.ts';
import { isUnavailable } from '#src/postgres/sqlstate.ts';
import { failure } from './failures.ts';
import { type FinalizeDeps, finalize, sealIfMissing } from './finalize.ts';
import { emptyOutcome } from './outcome.ts';
import { type PutBackDeps, putBackRunsOf } from './put-back.ts';
import type { Run } from './run.ts';
import { endedBy } from './run-end.ts';
import { LOCK_GRACE_MS } from './worker.ts';

/** How often a worker looks for dead peers. */
const LOOK_EVERY_MS = 250;
/** After a start of Postgres every lock is gone, and after one's own silence every peer looks silent: wait this long. */
const SETTLE_MS = 10_000;

export interface RecoverDeps {
  pool: Pool;
  workerId: string;
  maxTakeovers: number;
  putBack: PutBackDeps;
  finalize: FinalizeDeps;
  /** Since when this worker's own lease has not lapsed, as the age in ms by its monotonic clock. */
  leaseAgeMs: () => number;
  /** Runs are queued again. */
  wake: () => void;
  logger: Logger;
}

export interface Recovery {
  start(): void;
  stop(): Promise<void>;
}

// Dead: the lease has expired by Postgres' clock; or the session lock is gone and the last renewal is old enough that
// it is not just a reconnect. A worker whose row is gone while it still owns runs is dead too.
// statement_timestamp(), not clock_timestamp(): on a busy machine the statement may go on long after its snapshot, and a row
// that was fresh in it would look old by the clock.
const DEAD = {
  name: 'dead_workers',
  text: `
    select coalesce(w.id, owner.worker_id) as id
    from workers w
    full join (select distinct worker_id from runs where status = 'running') owner on owner.worker_id = w.id
    where pg_postmaster_start_time() < statement_timestamp() - $2 * interval '1 ms'
      and coalesce(w.id, owner.worker_id) <> $1::uuid
      and (w.id is null
           or w.expires_at < statement_timestamp()
           or (w.renewed_at < statement_timestamp() - $3 * interval '1 ms'
               and not exists (
                 select 1 from pg_locks l
                 where l.locktype = 'advisory' and l.granted and l.objsubid = 1
                   and l.database = (select oid from pg_database where datname = current_database())
                   and l.classid = ((w.lock_key >> 32) & 4294967295)::oid and l.objid = (w.lock_key & 4294967295)::oid)))`,
};

const FORGET = `
  delete from workers w
  where w.id = $1::uuid
    -- guard: it has not come back meanwhile, and owns nothing
    and w.renewed_at < statement_timestamp() - $2 * interval '1 ms'
    and not exists (select 1 from runs r where r.worker_id = w.id and r.status = 'running')`;

export function createRecovery(deps: RecoverDeps): Recovery {
  const { logger } = deps;
  let timer: NodeJS.Timeout | undefined;
  let looking: Promise<void> = Promise.resolve();
  let burying: Promise<void> | null = null;
  let stopped = false;

  async function look(): Promise<void> {
    if (deps.leaseAgeMs() < SETTLE_MS) return;
    const { rows } = await deps.pool.query<{ id: string }>({
      ...DEAD,
      values: [deps.workerId, SETTLE_MS, LOCK_GRACE_MS],
    });
    const dead = rows.map((row) => row.id);
    // First the runs of all of them, which wait for an owner. The rest may take long, or fail while the log is away.
    await forEach(dead, putBack);
    burying ??= forEach(dead, bury).finally(() => {
      burying = null;
    });
  }

  /**
   * One worker after the other; what fails for one keeps no other waiting. Each step can be repeated: what failed is gone
   * through again at the next look while the worker's row is there.
   */
  async function forEach(workerIds: string[], step: (workerId: string) => Promise<void>): Promise<void> {
    for (const workerId of workerIds) {
      try {
        await step(workerId);
      } catch (error) {
        const level = isUnavailable(error) || error instanceof LogUnavailable ? 'debug' : 'error';
        logger[level]({ err: error, workerId }, 'dead worker not dealt with; the next look tries again');
      }
    }
  }

  async function putBack(workerId: string): Promise<void> {
    const runs = await putBackRunsOf(deps.putBack, workerId);
    if (runs.length > 0) {
      logger.warn({ workerId, runs: runs.length }, 'worker is dead, its runs were put back');
      for (const run of runs) if (isExhausted(run)) await giveUp(run);
      deps.wake();
    }
  }

  async function bury(workerId: string): Promise<void> {
    await sealWhatItEnded(workerId);
    await deps.pool.query(FORGET, [workerId, LOCK_GRACE_MS]);
  }

  async function sealWhatItEnded(workerId: string): Promise<void> {
    for (const run of await endedBy(deps.pool, workerId)) await sealIfMissing(deps.finalize, run);
  }

  /** A cancelled run is not given up: its next owner goes straight to closing. */
  function isExhausted(run: Run): boolean {
    return run.takeovers > deps.maxTakeovers && run.cancel_requested_at === null;
  }

  async function giveUp(run: Run): Promise<void> {
    const by = { owner: false, epoch: run.epoch, status: 'queued' } as const;
    await finalize(deps.finalize, run.id, by, emptyOutcome('failed', { error: failure('TAKEOVERS_EXHAUSTED') }));
  }

  function schedule(): void {
    if (stopped) return;
    timer = setTimeout(() => {
      looking = look()
        .catch((error: unknown) => {
          const level = isUnavailable(error) ? 'debug' : 'error';
          logger[level]({ err: error }, 'looking for dead workers failed; the next look tries again');
        })
        .finally(schedule);
    }, LOOK_EVERY_MS);
  }

  return {
    start: schedule,
    async stop() {
      stopped = true;
      clearTimeout(timer);
      await looking;
      await burying;
    },
  };
}
