/**
 * Several processes that start at once make the schema once (field case A40): on an empty database, and on one that the
 * previous version left with data in it.
 */
import { readdir } from 'node:fs/promises';
import { fileURLToPath } from 'node:url';
import { runner } from 'node-pg-migrate';
import { describe, expect, inject, test } from 'vitest';
import { migrate } from '#src/postgres/migrate.ts';
import { insertThread } from '#src/threads/open.ts';
import { call, ended, send } from '#tests/support/cluster.ts';
import { createDatabase, type TestDatabase } from '#tests/support/database.ts';
import { testPool } from '#tests/support/pools.ts';
import { query } from '#tests/support/postgres.ts';
import { startServer, type TestServer } from '#tests/support/server.ts';

const PROCESSES = 4;
const folder = fileURLToPath(new URL('../../migrations', import.meta.url));

async function names(): Promise<string[]> {
  const files = await readdir(folder);
  return files.flatMap((file) => (file.endsWith('.sql') ? [file.slice(0, -4)] : [])).sort();
}

async function applied(database: TestDatabase): Promise<string[]> {
  const { rows } = await query(database.url, 'select name from runledger_migrations order by name');
  return rows.map(({ name }) => String(name));
}

/** All must become ready; one that does not ends the test with its log. */
function startAll(database: TestDatabase): Promise<TestServer[]> {
  const start = () =>
    startServer({
      env: { DATABASE_URL: database.url, REDIS_URL: inject('redisUrl') },
      args: ['--migrate'],
      readyTimeoutMs: 60_000,
    });
  return Promise.all(Array.from({ length: PROCESSES }, start));
}

async function expectServing(servers: TestServer[]): Promise<void> {
  for (const server of servers) {
    expect(await call(server, 'GET', '/readyz')).toMatchObject({ status: 200 });
    const sent = await send(server, 'hello');
    expect(await ended(server, sent.run_id, 30_000)).toMatchObject({ status: 'succeeded' });
  }
}

async function end(servers: TestServer[], database: TestDatabase): Promise<void> {
  for (const server of servers) server.kill('SIGKILL');
  await Promise.all(servers.map(({ exit }) => exit));
  await database.drop();
}

describe(`${PROCESSES} processes at once`, () => {
  test.each([1, 2, 3])('on an empty database: one set of migrations, all serve (%i)', async () => {
    const database = await createDatabase({ empty: true });
    const servers = await startAll(database);
    expect(await applied(database)).toEqual(await names());
    await expectServing(servers);
    await end(servers, database);
  });

  test('on the schema and the data of the version before', async () => {
    const database = await createDatabase({ empty: true });
    const all = await names();
    await runner({
      databaseUrl: database.url,
      dir: folder,
      migrationsTable: 'runledger_migrations',
      direction: 'up',
      count: all.length - 1,
      log: () => undefined,
    });
    expect(await applied(database)).toEqual(all.slice(0, -1));
    const id = '6a1c7a52-6f0e-4f43-9d3e-0c1b9f3f0001';
    const pool = testPool(database.url);
    await insertThread(pool, { id, owner: 'local', title: 'of the version before' });
    await pool.end();
    const servers = await startAll(database);
    expect(await applied(database)).toEqual(all);
    const kept = await call(servers[0] as TestServer, 'GET', `/api/v1/threads/${id}`);
    expect(kept).toMatchObject({ status: 200, body: { title: 'of the version before' } });
    await expectServing(servers);
    await end(servers, database);
  });
});

test('the migrations alone, ten times', async () => {
  const all = await names();
  for (let round = 0; round < 10; round += 1) {
    const database = await createDatabase({ empty: true });
    const one = () => migrate({ databaseUrl: database.url });
    const results = await Promise.all(Array.from({ length: PROCESSES }, one));
    expect(results.filter(({ length }) => length > 0)).toEqual([all]);
    expect(await applied(database)).toEqual(all);
    await database.drop();
  }
});
