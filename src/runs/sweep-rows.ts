import type { Logger } from 'pino';
import { isUnavailable } from '#src/postgres/sqlstate.ts';

/**
 * Deals with rows one after the other. One that fails is logged, left to the next sweep, and keeps no other from its turn.
 * @returns the sum of what `work` returns
 * @throws when Postgres cannot be reached: then there is no point in going on
 */
export async function eachRow<Row extends { id: string }>(
  rows: Row[],
  work: (row: Row) => Promise<number>,
  logger: Logger,
): Promise<number> {
  let sum = 0;
  for (const row of rows) {
    try {
      sum += await work(row);
    } catch (error) {
      if (isUnavailable(error)) throw error;
      logger.warn({ err: error, id: row.id }, 'not swept; the next sweep tries again');
    }
  }
  return sum;
}
