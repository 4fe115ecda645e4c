/** What readers cost Postgres while they look whether their run has ended: little, however many and whatever they watch. */
import { randomUUID } from 'node:crypto';
import { afterAll, beforeAll, expect, test } from 'vitest';
import type { Pool } from '#src/postgres/pool.ts';
import { createRowWatch } from '#src/runs/row-watch.ts';
import { createDatabase, type TestDatabase } from '#tests/support/database.ts';
import { endRun, insertRunningRun } from '#tests/support/ledger.ts';
import { testPool } from '#tests/support/pools.ts';
import { startTcpProxy, type TcpProxy } from '#tests/support/tcp-proxy.ts';

const RUNS = 50;
const INPUT_BYTES = 200_000;

let database: TestDatabase;
let proxy: TcpProxy;
/** Straight to Postgres, and through a proxy that counts. */
let direct: Pool;
let counted: Pool;

beforeAll(async () => {
  database = await createDatabase();
  const { hostname, port } = new URL(database.url);
  proxy = await startTcpProxy({ host: hostname, port: Number(port) });
  direct = testPool(database.url);
  counted = testPool(proxy.through(database.url));
});
afterAll(async () => {
  await Promise.all([direct.end(), counted.end()]);
  await proxy.close();
  await database.drop();
});

test('many runs with large inputs are looked at by one query that does not read the inputs', async () => {
  const runs = await Promise.all(Array.from({ length: RUNS }, () => insertRunningRun(direct)));
  await direct.query('update runs set input = json_build_object($1::text, $2::text)', [
    'text',
    'x'.repeat(INPUT_BYTES),
  ]);
  const [ended] = runs;
  if (ended === undefined) throw new Error('no run');
  await endRun(direct, ended);
  // The connection is there before anything is counted.
  await counted.query('select 1');
  let queries = 0;
  counted.on('acquire', () => {
    queries += 1;
  });
  const bytesBefore = proxy.delivered.toClient;
  const watch = createRowWatch(counted);
  const ids = runs.map(({ runId }) => runId);
  const looks = await Promise.all([...ids, ...ids].map((id) => watch.look(id)));
  expect(looks[0]).toMatchObject({ id: ended.runId, status: 'succeeded', log_end: 0, error: null, interrupts: [] });
  expect(looks.slice(1, RUNS).map((look) => look?.status)).toEqual(runs.slice(1).map(() => 'running'));
  expect(looks.slice(RUNS)).toEqual(looks.slice(0, RUNS));
  expect(await watch.look(randomUUID())).toBeNull();
  expect(proxy.delivered.toClient - bytesBefore).toBeLessThan(INPUT_BYTES / 2);
  // One for all of them, and one for the run that does not exist.
  expect(queries).toBe(2);
});

test('a failure of the query is told to all who asked, and the next look asks again', async () => {
  const run = await insertRunningRun(direct);
  const watch = createRowWatch(counted);
  proxy.set({ kind: 'reset' });
  const looks = await Promise.allSettled([watch.look(run.runId), watch.look(randomUUID())]);
  expect(looks.map(({ status }) => status)).toEqual(['rejected', 'rejected']);
  proxy.set({ kind: 'pass' });
  expect(await watch.look(run.runId)).toMatchObject({ id: run.runId, status: 'running' });
});
