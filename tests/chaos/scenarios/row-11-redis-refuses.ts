/**
 * Redis refuses to write (out of memory; a read-only replica), or cuts off its subscribers. Runs last longer than the fault, so
 * what was kept is written when Redis takes it again: no reader misses anything, and none is told to resync.
 */
import type { Scenario } from '../scenario.ts';
import type { World } from '../world.ts';

type Variant = 'out of memory' | 'read-only replica' | 'subscribers cut off';
const VARIANTS: Variant[] = ['out of memory', 'read-only replica', 'subscribers cut off'];

export const scenario: Scenario = {
  row: 11,
  name: 'Redis out of memory, read-only, subscribers cut off',
  asserts: 'no reader misses an event or is told to resync; the live tail goes on by itself',
  stage: { redis: 'own' },
  weightS: 40,
  async run(world) {
    const variant = VARIANTS[world.seed % VARIANTS.length] as Variant;
    const survivor = await world.stage.shared('a');
    const other = await world.server({ name: 'other' });
    const run = await world.askAndClaim(other, { tokens: 300, delayMs: 25 });
    const second = await world.askAndClaim(survivor, { tokens: 300, delayMs: 25 });
    const readers = [run, second].flatMap((one) => [world.read(one, { on: survivor }), world.read(one, { on: other })]);
    await Promise.all(readers.map((reader) => reader.hasChunks(world.rng.int(1, 10))));
    await fault(world, variant);
    for (const one of [run, second]) {
      const { status, takeovers } = await world.ended(one.runId);
      if (status !== 'succeeded' || takeovers > 0)
        throw new Error(`${variant}: ${status} after ${takeovers} takeovers`);
    }
    await Promise.all(readers.map((reader) => reader.done));
  },
};

async function fault(world: World, variant: Variant): Promise<void> {
  const lastsMs = world.rng.int(500, 3_000);
  if (variant === 'subscribers cut off') {
    for (let times = world.rng.int(1, 5); times > 0; times -= 1) {
      await world.redis('client', 'kill', 'type', 'pubsub');
      await pause(200);
    }
    return;
  }
  const [breaks, mends] =
    variant === 'out of memory'
      ? [
          ['config', 'set', 'maxmemory', '1'],
          ['config', 'set', 'maxmemory', '0'],
        ]
      : [
          ['replicaof', '127.0.0.1', '1'],
          ['replicaof', 'no', 'one'],
        ];
  await world.redis(...breaks);
  await pause(lastsMs);
  await world.redis(...mends);
}

function pause(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}
