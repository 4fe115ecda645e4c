/**
 * 200 ms more on the way to a service, give or take 100, there and back: everything is slower, and that is all. To
 * Postgres, to Redis, or to both, for every server.
 */

import type { TcpProxy } from '#tests/support/tcp-proxy.ts';
import { must, mustEqual, mustNotFault } from '../must.ts';
import type { Scenario } from '../scenario.ts';
import type { World } from '../world.ts';

const WAYS = ['postgres', 'redis', 'both'] as const;
const RUNS = 6;

export const scenario: Scenario = {
  row: 12,
  name: 'latency of 200 ± 100 ms to Postgres, to Redis, to both',
  asserts: 'no time-out cascades: nobody is taken for dead, nothing is tried again, readers miss nothing',
  together: true,
  weightS: 50,
  async run(world) {
    const way = WAYS[world.seed % WAYS.length];
    const postgres = way === 'redis' ? null : await world.proxy('postgres');
    const redis = way === 'postgres' ? null : await world.proxy('redis');
    const proxies = [postgres, redis].filter((proxy) => proxy !== null);
    const ways = { ...(postgres === null ? {} : { postgres }), ...(redis === null ? {} : { redis }) };
    const servers = [await world.server({ name: 'left', ...ways }), await world.server({ name: 'right', ...ways })];
    for (const server of servers) await server.settled();
    const calm = shake(world, proxies);
    const startMs = performance.now();
    const asking = Array.from({ length: RUNS }, (_, count) =>
      world.ask({ on: world.rng.pick(servers), tokens: 40, delayMs: 25, tools: count % 3, webhook: world.owner }),
    );
    const runs = await Promise.all(asking);
    world.measure(`admitted, ${way}`, performance.now() - startMs);
    const readers = runs.flatMap((run) => servers.map((on) => world.read(run, { on, faithful: true })));
    await Promise.all(readers.map((reader) => reader.done));
    world.measure(`ended, ${way}`, performance.now() - startMs);
    for (const { runId } of runs) {
      const { status, epoch, takeovers } = await world.ended(runId);
      mustEqual('status, epoch and takeovers', [status, epoch, takeovers], ['succeeded', 1, 0]);
    }
    for (const server of servers) {
      must(!/lease not renewed|worker is dead/.test(server.logs()), `${server.name} lost its lease`);
    }
    mustNotFault(world.history.submissions.flatMap((one) => one.statuses));
    calm();
  },
};

/** Each way is 200 ms longer, a little more or less all the time; twice that for a round trip would be 400. Returns what ends it. */
function shake(world: World, proxies: TcpProxy[]): () => void {
  const change = (): void => {
    for (const proxy of proxies) proxy.set({ kind: 'latency', ms: world.rng.int(50, 150) });
  };
  change();
  const timer = setInterval(change, 100);
  return () => {
    clearInterval(timer);
    for (const proxy of proxies) proxy.set({ kind: 'pass' });
  };
}
