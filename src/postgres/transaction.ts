import { setTimeout as delay } from 'node:timers/promises';
import type { Pool, Tx } from './pool.ts';
import { isConflict, isUnavailable } from './sqlstate.ts';

const CONFLICT_TRIES = 4;
const CONFLICT_DELAY_MS = 50;

/**
 * Runs `fn` in one transaction and returns its result after COMMIT. When `fn` or COMMIT fails the original error is
 * thrown; a client whose ROLLBACK failed is destroyed, not reused. When the error came from COMMIT itself
 * (`CommitUnknown`), Postgres may or may not have it: the caller reads the row and goes on from what it says.
 * A transaction that Postgres rolled back for the sake of another (deadlock, serialization failure) is tried again, so
 * `fn` may be called up to four times and must do nothing but work in the transaction.
 */
export function inTransaction<T>(pool: Pool, fn: (tx: Tx) => Promise<T>): Promise<T> {
  return againOnConflict(() => once(pool, fn));
}

/**
 * Calls `work` again when Postgres rolled it back for the sake of another transaction: it was the victim of a deadlock or
 * of a serialization failure, and would succeed on its own. For one statement or one transaction, which such an error
 * undoes as a whole. @throws what `work` throws, the last conflict included
 */
export async function againOnConflict<T>(work: () => Promise<T>): Promise<T> {
  for (let left = CONFLICT_TRIES - 1; ; left -= 1) {
    try {
      return await work();
    } catch (error) {
      if (left === 0 || !isConflict(error)) throw error;
      // Apart from the other, which may have lost in the same way.
      await delay(Math.random() * CONFLICT_DELAY_MS);
    }
  }
}

async function once<T>(pool: Pool, fn: (tx: Tx) => Promise<T>): Promise<T> {
  const client = await pool.connect();
  let broken: Error | undefined;
  try {
    await client.query('begin');
    let result: T;
    try {
      result = await fn(client as Tx);
    } catch (error) {
      broken = await rollback(client as Tx);
      throw error;
    }
    try {
      await client.query('commit');
    } catch (error) {
      broken = error as Error;
      throw new CommitUnknown('the answer to COMMIT was lost', { cause: error });
    }
    return result;
  } finally {
    client.release(broken);
  }
}

/**
 * One statement outside a transaction, which commits itself. As with `inTransaction`: the victim of a conflict is tried
 * again, and a lost connection is `CommitUnknown`, since the statement may have been applied.
 */
export async function inOneStatement<T>(query: () => Promise<T>): Promise<T> {
  try {
    return await againOnConflict(query);
  } catch (error) {
    if (!isUnavailable(error) || isConflict(error)) throw error;
    throw new CommitUnknown('the answer to a statement was lost', { cause: error });
  }
}

/** COMMIT was sent and its outcome is not known. */
export class CommitUnknown extends Error {
  override readonly name = 'CommitUnknown';
}

async function rollback(client: Tx): Promise<Error | undefined> {
  try {
    await client.query('rollback');
    return undefined;
  } catch (error) {
    return error as Error;
  }
}
