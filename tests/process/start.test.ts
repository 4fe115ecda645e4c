/** How the server starts, and when it refuses to. */
import { afterAll, beforeAll, describe, expect, inject, test } from 'vitest';
import { call, ended, send } from '#tests/support/cluster.ts';
import { createDatabase, type TestDatabase } from '#tests/support/database.ts';
import { query } from '#tests/support/postgres.ts';
import { startRedis } from '#tests/support/redis.ts';
import { runServerToExit, startServer } from '#tests/support/server.ts';

let migrated: TestDatabase;

beforeAll(async () => {
  migrated = await createDatabase();
});
afterAll(() => migrated.drop());

const redis = () => ({ REDIS_URL: inject('redisUrl') });

describe('refuses to start', () => {
  test('with unknown and ill-typed keys, naming each by its path', async () => {
    const { code, logs } = await runServerToExit({
      env: { DATABASE_URL: migrated.url },
      config: { runs: { concurrency: 'many', speed: 3 }, nonsense: true },
    });
    expect(code).toBe(1);
    for (const path of ['runs.concurrency', 'runs.speed', 'nonsense']) expect(logs).toContain(`${path}:`);
  });

  test('on a database that lacks migrations, listing them', async () => {
    const empty = await createDatabase({ empty: true });
    const { code, logs } = await runServerToExit({ env: { DATABASE_URL: empty.url, ...redis() } });
    expect(code).toBe(1);
    expect(logs).toContain('0001_ledger');
    expect(logs).toContain('0002_checkpoints');
    await empty.drop();
  });

  test.each([
    ['none', {}],
    ['dev', { auth: { mode: 'dev' } }],
  ])('on a public address with auth.mode %s', async (_mode, config) => {
    const { code, logs } = await runServerToExit({
      env: { DATABASE_URL: migrated.url, ...redis() },
      args: ['--host', '0.0.0.0'],
      config,
    });
    expect(code).toBe(1);
    expect(logs).toContain('allow_public');
  });

  test('with a graph that cannot be loaded, naming it and none of its secrets', async () => {
    const { code, logs } = await runServerToExit({
      env: { DATABASE_URL: migrated.url, ...redis() },
      config: { graphs: { broken: './no-such-file.ts:graph' } },
    });
    expect(code).toBe(1);
    expect(logs).toContain('broken');
  });

  test('with the in-process log beside a live worker that uses Redis, and the other way round', async () => {
    const first = await startServer({ env: { DATABASE_URL: migrated.url, ...redis() } });
    const memory = await runServerToExit({ env: { DATABASE_URL: migrated.url } });
    expect(memory).toMatchObject({ code: 1, logs: expect.stringContaining('REDIS_URL') });
    expect(await first.stop()).toBe(0);
    const second = await startServer({ env: { DATABASE_URL: migrated.url } });
    const shared = await runServerToExit({ env: { DATABASE_URL: migrated.url, ...redis() } });
    expect(shared).toMatchObject({ code: 1, logs: expect.stringContaining('event log') });
    expect(await second.stop()).toBe(0);
  });
});

describe('starts', () => {
  test('three at once with --migrate on an empty database: one set of migrations, all serve', async () => {
    const empty = await createDatabase({ empty: true });
    const start = () =>
      startServer({ env: { DATABASE_URL: empty.url, ...redis() }, args: ['--migrate'], readyTimeoutMs: 60_000 });
    const servers = await Promise.all([start(), start(), start()]);
    const applied = await query(
      empty.url,
      'select name, count(*) from runledger_migrations group by name having count(*) > 1',
    );
    expect(applied.rows).toEqual([]);
    for (const server of servers) expect((await call(server, 'GET', '/readyz')).status).toBe(200);
    await Promise.all(servers.map((server) => server.stop()));
    await empty.drop();
  });

  test('with the demo model and no Redis it answers, and says what is in use', async () => {
    const server = await startServer({ env: { DATABASE_URL: migrated.url } });
    for (const word of ['in this process', 'demo model', 'curl -N', 'given by DATABASE_URL'])
      expect(server.logs()).toContain(word);
    const sent = await send(server, 'What is 17 * 23?');
    expect((await ended(server, sent.run_id)).status).toBe('succeeded');
    const turns = await call(server, 'GET', `/api/v1/threads/${sent.thread_id}/turns`);
    expect(JSON.stringify(turns.body)).toContain('391');
    expect(await server.stop()).toBe(0);
  });

  test('warns of a Redis that may drop streams', async () => {
    const lossy = await startRedis(['--maxmemory', '50mb', '--maxmemory-policy', 'allkeys-lru']);
    const server = await startServer({ env: { DATABASE_URL: migrated.url, REDIS_URL: lossy.url } });
    expect(server.logs()).toContain('allkeys-lru');
    await server.stop();
    await lossy.stop();
  });

  test('with only the http role it admits and serves; a worker elsewhere executes', async () => {
    const web = await startServer({ env: { DATABASE_URL: migrated.url, ...redis() }, config: { roles: ['http'] } });
    const sent = await send(web, 'hello');
    expect((await call(web, 'GET', `/api/v1/runs/${sent.run_id}`)).body).toMatchObject({ status: 'queued' });
    const worker = await startServer({ env: { DATABASE_URL: migrated.url, ...redis() } });
    expect((await ended(web, sent.run_id)).status).toBe('succeeded');
    await Promise.all([web.stop(), worker.stop()]);
  });
});

describe('says how it is', () => {
  test('/livez, /readyz, /metrics and /openapi.json', async () => {
    const server = await startServer({ env: { DATABASE_URL: migrated.url, ...redis() } });
    expect((await call(server, 'GET', '/livez')).status).toBe(200);
    expect((await call(server, 'GET', '/readyz')).body).toMatchObject({
      checks: { postgres: 'ok', log: 'ok', draining: false },
    });
    const metrics = await (await fetch(`${server.url}/metrics`)).text();
    for (const name of ['runledger_runs_running', 'runledger_runs_queued', 'runledger_sse_streams_open'])
      expect(metrics).toContain(`${name} `);
    const document = await call<{ paths: object }>(server, 'GET', '/openapi.json');
    expect(Object.keys(document.body.paths)).toContain('/api/v1/threads/messages');
    await server.stop();
  });
});
