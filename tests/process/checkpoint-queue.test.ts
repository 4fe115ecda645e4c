/** More steps to store than connections to store them with: they wait their turn, for longer than a client would. */
import pg from 'pg';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { type Cluster, ended, send, startCluster } from '#tests/support/cluster.ts';
import { say } from '#tests/support/fake-model-script.ts';

let cluster: Cluster;
let ledger: pg.Client;

beforeAll(async () => {
  const config = { postgres: { checkpoint_pool: 1, lock_timeout: '25s' } };
  cluster = await startCluster({ model: { script: say('stored') }, server: { config } });
  ledger = new pg.Client({ connectionString: cluster.database.url });
  await ledger.connect();
});
afterAll(async () => {
  await ledger?.end();
  await cluster?.stop();
});

/** Longer than a request waits for a connection of its own. */
const STUCK_MS = 11_500;

test('no step gives up and is done again because the connections are all busy', async () => {
  const [server] = cluster.servers;
  if (server === undefined) throw new Error('no server');
  await ledger.query('begin');
  await ledger.query('lock table checkpoint_blobs in access exclusive mode');
  const runs = await Promise.all([send(server, 'one'), send(server, 'two'), send(server, 'three')]);
  await new Promise((resolve) => setTimeout(resolve, STUCK_MS));
  await ledger.query('rollback');
  for (const { run_id } of runs) expect(await ended(server, run_id, 30_000)).toMatchObject({ status: 'succeeded' });
  expect(server.logs()).not.toContain('graph failed');
  expect(cluster.model.calls).toHaveLength(3);
});
