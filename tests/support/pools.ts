/** Pools on a test's own database, with short limits. */
import { pino } from 'pino';
import { type ConnectionLimits, createPool, type Pool } from '#src/postgres/pool.ts';

const TEST_LIMITS: ConnectionLimits = {
  statementTimeoutMs: 10_000,
  lockTimeoutMs: 5_000,
  idleInTransactionTimeoutMs: 5_000,
};

export const silent = pino({ level: 'silent' });

export function testPool(url: string, size = 4): Pool {
  return createPool(url, 'test', size, TEST_LIMITS, silent);
}
