/** A run's total time counts from its first claim, also when another worker goes on with it. */
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { type Cluster, call, ended, send, startCluster } from '#tests/support/cluster.ts';
import { query } from '#tests/support/postgres.ts';
import type { TestServer } from '#tests/support/server.ts';
import { until } from '#tests/support/until.ts';

let cluster: Cluster;

beforeAll(async () => {
  const endings = fileURLToPath(new URL('../support/graphs/endings.ts', import.meta.url));
  const config = { graphs: { waiting: `${endings}:waiting` }, runs: { timeout: '30m' } };
  cluster = await startCluster({ size: 1, server: { config } });
});
afterAll(() => cluster?.stop());

test('one that was begun long ago and is taken over now has no time left', async () => {
  const [survivor] = cluster.servers as [TestServer];
  const victim = await cluster.add();
  // Held still, so that it is the victim that claims.
  survivor.kill('SIGSTOP');
  const sent = await send(victim, 'wait', { graph: 'waiting' });
  const statusOf = async () => (await call(victim, 'GET', `/api/v1/runs/${sent.run_id}`)).body.status;
  await until(async () => (await statusOf()) === 'running', { message: 'the run to be claimed' });
  await query(
    cluster.database.url,
    `update runs set started_at = started_at - interval '1 hour' where id = '${sent.run_id}'`,
  );
  survivor.kill('SIGCONT');
  victim.kill('SIGKILL');
  expect(await ended(survivor, sent.run_id, 40_000)).toMatchObject({
    status: 'failed',
    error: { code: 'RUN_TIMEOUT' },
    takeovers: 1,
  });
});
