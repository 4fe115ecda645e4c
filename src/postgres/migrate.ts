/** Migrations: plain SQL files in /migrations, applied in order by node-pg-migrate under a database-wide lock. */
import { readdir } from 'node:fs/promises';
import { fileURLToPath } from 'node:url';
import { runner } from 'node-pg-migrate';
import pg from 'pg';
import type { Logger } from 'pino';

const MIGRATIONS_DIR = fileURLToPath(new URL('../../migrations', import.meta.url));
const MIGRATIONS_TABLE = 'runledger_migrations';

/**
 * Applies what is missing; several processes at once are fine, one applies and the others wait.
 * @returns names of the migrations applied by this call, in order
 */
export async function migrate(options: { databaseUrl: string; logger?: Logger }): Promise<string[]> {
  const applied = await runner({
    databaseUrl: options.databaseUrl,
    dir: MIGRATIONS_DIR,
    migrationsTable: MIGRATIONS_TABLE,
    direction: 'up',
    advisoryLockMode: 'wait',
    singleTransaction: true,
    log: (message) => options.logger?.debug(message),
  });
  return applied.map((migration) => migration.name);
}

/** Names of the migrations the database lacks, in order. Empty when it is up to date. */
export async function pendingMigrations(databaseUrl: string): Promise<string[]> {
  const files = (await readdir(MIGRATIONS_DIR))
    .filter((file) => file.endsWith('.sql'))
    .map((file) => file.slice(0, -4));
  const client = new pg.Client({ connectionString: databaseUrl, connectionTimeoutMillis: 10_000 });
  await client.connect();
  try {
    const table = await client.query('select to_regclass($1) is not null as present', [MIGRATIONS_TABLE]);
    if (!table.rows[0].present) return files.sort();
    const done = await client.query(`select name from ${MIGRATIONS_TABLE}`);
    const names = new Set(done.rows.map((row) => row.name as string));
    return files.filter((file) => !names.has(file)).sort();
  } finally {
    await client.end();
  }
}
