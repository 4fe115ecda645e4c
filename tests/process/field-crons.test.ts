/** A schedule and the processes that look at it (field case A46): each slot has one run, whoever dies, and none make up for an absence in a burst. */
import { fileURLToPath } from 'node:url';
import type { Client, Run } from '@langchain/langgraph-sdk';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { type Cluster, startCluster } from '#tests/support/cluster.ts';
import { clientOf, human } from '#tests/support/langgraph-client.ts';
import type { TestServer } from '#tests/support/server.ts';
import { until } from '#tests/support/until.ts';

let cluster: Cluster;

beforeAll(async () => {
  const plain = fileURLToPath(new URL('../support/graphs/plain.ts', import.meta.url));
  cluster = await startCluster({ size: 3, server: { config: { graphs: { echo: `${plain}:uncompiled` } } } });
});
afterAll(() => cluster?.stop());

const SECOND_MS = 1_000;
const clientAt = (index: number): Client => clientOf(cluster.servers[index] as TestServer);

/** The slots that have a run, in order. Every run is on a thread of its own. */
async function slotsOf(client: Client, cronId: string): Promise<number[]> {
  const runs: Run[] = [];
  for (let offset = 0; ; offset += 100) {
    const page = await client.threads.search({
      metadata: { cron_id: cronId },
      limit: 100,
      offset,
      sortBy: 'created_at',
      sortOrder: 'asc',
      select: ['thread_id'],
    });
    const found = await Promise.all(page.map(({ thread_id }) => client.runs.list(thread_id)));
    for (const ofThread of found) {
      expect(ofThread).toHaveLength(1);
      runs.push(...ofThread);
    }
    if (page.length < 100) break;
  }
  return runs
    .map(({ metadata }) => Date.parse(String((metadata as { cron_slot?: string }).cron_slot)))
    .sort((x, y) => x - y);
}
/** The slots once there are at least so many after `after`. */
const untilFired = (client: Client, cronId: string, count: number, after = 0): Promise<number[]> =>
  until(
    async () => {
      const slots = await slotsOf(client, cronId);
      return slots.filter((slot) => slot > after).length >= count && slots;
    },
    { timeoutMs: 30_000, message: `${count} slots to fire` },
  );

test('a slot has one run on three processes, on two when one is killed, and one is made up for when all were away', async () => {
  const { cron_id: id } = await clientAt(0).crons.create('echo', {
    schedule: '* * * * * *',
    input: human('hi'),
    onRunCompleted: 'keep',
  });
  await untilFired(clientAt(0), id, 4);
  cluster.servers[0]?.kill('SIGKILL');
  await cluster.servers[0]?.exit;
  await untilFired(clientAt(1), id, 3, Date.now());

  for (const server of cluster.servers) server.kill('SIGKILL');
  await Promise.all(cluster.servers.map((server) => server.exit));
  const awayFrom = Date.now();
  await until(() => Date.now() - awayFrom > 4 * SECOND_MS, { message: 'slots to be missed' });
  const backAt = Date.now();
  await Promise.all([cluster.add(), cluster.add()]);
  const client = clientAt(4);
  await untilFired(client, id, 3, backAt);
  await client.crons.delete(id);

  const slots = await slotsOf(client, id);
  expect(slots).toEqual([...new Set(slots)]);
  expect(slots.filter((slot) => slot > awayFrom && slot < backAt).length).toBeLessThanOrEqual(1);
  // A slot without a run is said to have been missed, by the process that fired the one after it; no other is missing.
  const logs = cluster.servers.map((server) => server.logs()).join('\n');
  const said = [...logs.matchAll(/"from":"([^"]+)","to":"([^"]+)","msg":"slots of a cron were missed/g)];
  const missed = said.map(([, from = '', to = '']) => ({ from: Date.parse(from), to: Date.parse(to) }));
  const [first = 0] = slots;
  const seconds = ((slots.at(-1) ?? 0) - first) / SECOND_MS + 1;
  const without = Array.from({ length: seconds }, (_, n) => first + n * SECOND_MS).filter((at) => !slots.includes(at));
  expect(without.length).toBeGreaterThan(3);
  expect(without.filter((at) => !missed.some(({ from, to }) => from <= at && at < to))).toEqual([]);
  for (const { to } of missed) expect(slots).toContain(to);
});
