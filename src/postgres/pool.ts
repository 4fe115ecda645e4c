/** Connections to Postgres: bounded pools whose every client has limits and an error handler. */
import pg from 'pg';
import type { Logger } from 'pino';

/** A transaction in progress. Only `inTransaction` makes one, so a function that takes `Tx` cannot run outside. */
export type Tx = pg.PoolClient & { readonly __tx: unique symbol };
export type Pool = pg.Pool;
/** Anything that can run a single statement. */
export type Queryable = Pick<pg.Pool, 'query'>;

export interface ConnectionLimits {
  statementTimeoutMs: number;
  lockTimeoutMs: number;
  idleInTransactionTimeoutMs: number;
}

/** How long a caller waits for a free connection before it is told the server is busy. */
const ACQUIRE_TIMEOUT_MS = 10_000;
/** Beyond the server's own statement timeout: a server that never answers is a dead one (a black hole sends no reset). */
const CLIENT_GRACE_MS = 2_000;

/** Options every connection of ours is opened with. `name` shows in pg_stat_activity. */
export function connectionOptions(url: string, name: string, limits: ConnectionLimits): pg.ClientConfig {
  return {
    connectionString: url,
    application_name: `runledger ${name}`,
    statement_timeout: limits.statementTimeoutMs,
    lock_timeout: limits.lockTimeoutMs,
    idle_in_transaction_session_timeout: limits.idleInTransactionTimeoutMs,
    query_timeout: limits.statementTimeoutMs + CLIENT_GRACE_MS,
    connectionTimeoutMillis: ACQUIRE_TIMEOUT_MS,
    keepAlive: true,
    keepAliveInitialDelayMillis: 5_000,
  };
}

/**
 * A pool of at most `size` connections. A dropped idle connection is logged and replaced; it never ends the process.
 * A checked-out client whose connection drops rejects its query and is not given out again.
 * @param acquireTimeoutMs how long a caller waits for a free connection, or for a new one to be made; 10 s by default
 */
export function createPool(
  url: string,
  name: string,
  size: number,
  limits: ConnectionLimits,
  logger: Logger,
  acquireTimeoutMs = ACQUIRE_TIMEOUT_MS,
): Pool {
  const pool = new pg.Pool({
    ...connectionOptions(url, name, limits),
    connectionTimeoutMillis: acquireTimeoutMs,
    max: size,
    idleTimeoutMillis: 60_000,
    // Connections are recycled so that a failed-over primary or a changed DNS name is noticed.
    maxLifetimeSeconds: 1_800,
  });
  pool.on('error', (error) => logger.warn({ err: error, pool: name }, 'idle database connection dropped'));
  pool.on('connect', (client) => {
    client.on('error', (error) => logger.warn({ err: error, pool: name }, 'database connection dropped'));
  });
  return pool;
}
