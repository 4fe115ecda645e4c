/**
 * A worker's presence: one liveness connection that holds a session advisory lock, renews the worker's row, and
 * listens for hints. Nothing is written per run to stay alive; the renewal's answer says what the worker still owns.
 */
import { randomUUID } from 'node:crypto';
import { hostname } from 'node:os';
import pg from 'pg';
import type { Logger } from 'pino';
import { type ConnectionLimits, connectionOptions } from '#src/postgres/pool.ts';
import { advisoryKey } from './hash.ts';
import type { Lease } from './lease-gate.ts';

export const LEASE_MS = 10_000;
export const RENEW_EVERY_MS = 500;
/** A lock that is missing from pg_locks counts only when the last renewal is older than this. */
export const LOCK_GRACE_MS = 1_200;
export const WAKE_CHANNEL = 'runledger_wake';
export const CANCEL_CHANNEL = 'runledger_cancel';

/** A run the ledger says this worker owns. */
export interface OwnedRun {
  id: string;
  epoch: number;
  cancel_requested: boolean;
}

export interface Worker {
  readonly id: string;
  /** Registers and begins to renew. @throws LogKindConflict, or what Postgres throws */
  start(): Promise<void>;
  /** Renews now instead of at the next tick; the answer reaches `onOwned`. */
  renewSoon(): void;
  /** Whether this worker may still think itself alive, by its own monotonic clock. */
  readonly lease: Lease;
  /**
   * True while peers take this worker for alive: connected, and renewed so recently that even a missing lock would not count.
   * Without it nothing may be claimed: peers would put the runs back, and count a takeover each time.
   */
  present(): boolean;
  /** How long the lease has held without a lapse, in ms by this process' monotonic clock. */
  leaseAgeMs(): number;
  /**
   * Ends the presence: gives the lock back, removes the row. `toBeBuried`: the row stays, so that peers do for this worker
   * what they do for a dead one.
   */
  stop(options?: { toBeBuried: boolean }): Promise<void>;
}

export interface WorkerDeps {
  databaseUrl: string;
  logKind: 'redis' | 'memory';
  roles: readonly string[];
  logger: Logger;
  /** What the ledger said at a renewal, and when (monotonic ms) that renewal was sent. */
  onOwned: (owned: OwnedRun[], sentAtMs: number) => void;
  /** A hint that a run may be claimable. */
  onWake: () => void;
}

/** A process with the in-process event log was started beside another live worker, or the other way round. */
export class LogKindConflict extends Error {
  override readonly name = 'LogKindConflict';
}

/** A renewal that has no answer after this is a dead connection: the lease is only `LEASE_MS` long. */
const LIVENESS_LIMITS: ConnectionLimits = {
  statementTimeoutMs: 3_000,
  lockTimeoutMs: 3_000,
  idleInTransactionTimeoutMs: 3_000,
};
// So that Postgres notices within seconds when this process' host is gone, and gives the lock back.
const KEEPALIVE = `set tcp_keepalives_idle = 5; set tcp_keepalives_interval = 2; set tcp_keepalives_count = 3`;
// Our own former session may still hold the lock, when its connection is half open: nobody else has this key.
const takeOverLock = (key: string): string => `
  select pg_terminate_backend(l.pid)
  from pg_locks l
  where l.locktype = 'advisory' and l.granted and l.objsubid = 1 and l.pid <> pg_backend_pid()
    and l.database = (select oid from pg_database where datname = current_database())
    and l.classid = (('${key}'::bigint >> 32) & 4294967295)::oid and l.objid = ('${key}'::bigint & 4294967295)::oid`;

// Registration of two processes at once is serialised, so neither can miss the other.
const REGISTER_LOCK = `select pg_advisory_xact_lock($1::bigint)`;
const OTHER_LIVE = `
  select w.id, w.log_kind, w.host, w.pid, w.renewed_at > clock_timestamp() - $3 * interval '1 ms' as fresh
  from workers w
  where w.id <> $1::uuid and w.expires_at > clock_timestamp() and (w.log_kind = 'memory' or $2 = 'memory')
    and (w.renewed_at > clock_timestamp() - $3 * interval '1 ms'
         or exists (select 1 from pg_locks l where l.locktype = 'advisory' and l.database = (select oid from pg_database where datname = current_database())
                    and l.granted and l.classid = ((w.lock_key >> 32) & 4294967295)::oid
                    and l.objid = (w.lock_key & 4294967295)::oid and l.objsubid = 1))`;
const INSERT = `
  insert into workers (id, lock_key, host, pid, log_kind, roles, expires_at)
  values ($1::uuid, $2::bigint, $3, $4, $5, $6::text[], clock_timestamp() + $7 * interval '1 ms')
  on conflict (id) do update set renewed_at = clock_timestamp(), expires_at = excluded.expires_at`;
const RENEW = {
  name: 'renew',
  text: `
    with lease as (
      update workers set renewed_at = clock_timestamp(), expires_at = clock_timestamp() + $2 * interval '1 ms'
      where id = $1::uuid
      returning id)
    select (select count(*) from lease) as renewed, r.id, r.epoch, r.cancel_requested_at is not null as cancel_requested
    from (select 1) as one
    left join runs r on r.worker_id = $1::uuid and r.status = 'running' and r.kind <> 'edit'`,
};

interface RenewRow {
  renewed: string;
  id: string | null;
  epoch: number;
  cancel_requested: boolean;
}

export function createWorker(deps: WorkerDeps): Worker {
  const { logger } = deps;
  const id = randomUUID();
  const lockKey = advisoryKey('worker', id);
  let client: pg.Client | null = null;
  let timer: NodeJS.Timeout | undefined;
  let busy: Promise<void> | null = null;
  let again = false;
  let stopped = false;
  let renewedAtMs = performance.now();
  let renewal = Promise.withResolvers<void>();
  let heldSinceMs = performance.now();

  async function connect(): Promise<pg.Client> {
    const fresh = new pg.Client(connectionOptions(deps.databaseUrl, 'worker', LIVENESS_LIMITS));
    fresh.on('error', (error) => {
      logger.warn({ err: error, workerId: id }, 'liveness connection dropped');
      if (client !== fresh) return;
      client = null;
      // The lock went with it: peers count that after LOCK_GRACE_MS, so a new connection cannot wait for the next tick.
      renewSoon();
    });
    fresh.on('notification', (message) => {
      if (message.channel === WAKE_CHANNEL) deps.onWake();
      else renewSoon();
    });
    await fresh.connect();
    try {
      // First of all, in one message: while the lock is absent only the last renewal says that this worker lives.
      await fresh.query(`${takeOverLock(lockKey)}; select pg_advisory_lock('${lockKey}'::bigint)`);
      await fresh.query(`${KEEPALIVE}; listen ${WAKE_CHANNEL}; listen ${CANCEL_CHANNEL}`);
      await register(fresh);
      return fresh;
    } catch (error) {
      await fresh.end().catch((closing: unknown) => logger.debug({ err: closing }, 'liveness connection not closed'));
      throw error;
    }
  }

  async function register(fresh: pg.Client): Promise<void> {
    await fresh.query('begin');
    await fresh.query(REGISTER_LOCK, [advisoryKey('workers', 'register')]);
    const others = await fresh.query<{ log_kind: string; host: string; pid: number; fresh: boolean }>(OTHER_LIVE, [
      id,
      deps.logKind,
      LOCK_GRACE_MS,
    ]);
    const [other] = others.rows;
    if (other !== undefined) {
      await fresh.query('rollback');
      throw new LogKindConflict(
        `This process would use the ${deps.logKind} event log, but a live worker on ${other.host} (pid ${other.pid}) uses the ${other.log_kind} one. ` +
          'Processes that share a database must all use Redis (set REDIS_URL), or there must be only one.',
      );
    }
    await fresh.query(INSERT, [id, lockKey, hostname(), process.pid, deps.logKind, deps.roles, LEASE_MS]);
    await fresh.query('commit');
  }

  async function renew(): Promise<void> {
    const sentAtMs = performance.now();
    client ??= await connect();
    const { rows } = await client.query<RenewRow>({ ...RENEW, values: [id, LEASE_MS] });
    // The row was swept while this process could not renew; it lives, so it says so again.
    if (rows[0]?.renewed === '0') await register(client);
    if (sentAtMs - renewedAtMs > LEASE_MS) heldSinceMs = sentAtMs;
    const wasAbsent = sentAtMs - renewedAtMs > LOCK_GRACE_MS;
    renewedAtMs = sentAtMs;
    const owned = rows.flatMap((row) =>
      row.id === null ? [] : [{ id: row.id, epoch: row.epoch, cancel_requested: row.cancel_requested }],
    );
    deps.onOwned(owned, sentAtMs);
    renewal.resolve();
    renewal = Promise.withResolvers<void>();
    if (wasAbsent) deps.onWake();
  }

  /** One renewal at a time; a request during one repeats it. */
  function renewSoon(): void {
    if (stopped) return;
    if (busy !== null) {
      again = true;
      return;
    }
    clearTimeout(timer);
    busy = renew()
      .catch((error: unknown) => {
        logger.warn({ err: error, workerId: id }, 'lease not renewed');
        dropClient();
      })
      .finally(() => {
        busy = null;
        if (stopped) return;
        timer = setTimeout(renewSoon, again ? 0 : RENEW_EVERY_MS);
        again = false;
      });
  }

  function dropClient(): void {
    const broken = client;
    client = null;
    broken?.end().catch((error: unknown) => logger.debug({ err: error }, 'liveness connection not closed'));
  }

  return {
    id,
    async start() {
      client = await connectBesideTheDying(connect);
      // Registering took a while, perhaps; from here on this worker is there for its peers, and claims.
      await renew();
      renewSoon();
    },
    renewSoon,
    lease: {
      holds: () => performance.now() - renewedAtMs < LEASE_MS,
      renewed: () => renewal.promise,
    },
    present: () => !stopped && client !== null && performance.now() - renewedAtMs < LOCK_GRACE_MS,
    leaseAgeMs: () => performance.now() - heldSinceMs,
    async stop({ toBeBuried } = { toBeBuried: false }) {
      stopped = true;
      clearTimeout(timer);
      await busy;
      if (client === null) return;
      try {
        if (!toBeBuried) await client.query('delete from workers where id = $1::uuid', [id]);
        await client.end();
      } catch (error) {
        // Its row runs out by itself; the runs were handed back before.
        logger.warn({ err: error, workerId: id }, 'presence not withdrawn');
      }
    },
  };
}

/**
 * A worker that was killed a moment ago still looks alive for LOCK_GRACE_MS; a restart right after a crash waits that
 * long instead of refusing to start.
 */
async function connectBesideTheDying(connect: () => Promise<pg.Client>): Promise<pg.Client> {
  const deadlineMs = performance.now() + 2 * LOCK_GRACE_MS;
  for (;;) {
    try {
      return await connect();
    } catch (error) {
      if (!(error instanceof LogKindConflict) || performance.now() > deadlineMs) throw error;
      await new Promise((resolve) => setTimeout(resolve, LOCK_GRACE_MS / 4));
    }
  }
}
