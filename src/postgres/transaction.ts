import type { Pool, Tx } from './pool.ts';

/**
 * Runs `fn` in one transaction and returns its result after COMMIT. When `fn` or COMMIT fails the original error is
 * thrown; a client whose ROLLBACK failed is destroyed, not reused. When the error came from COMMIT itself
 * (`CommitUnknown`), Postgres may or may not have it: the caller reads the row and goes on from what it says.
 */
export async function inTransaction<T>(pool: Pool, fn: (tx: Tx) => Promise<T>): Promise<T> {
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
