/**
 * Redis is killed and comes back empty, flushed, or stopped for 10 s, while runs are in mid answer on two workers and read on
 * both; in one variant the owner dies while it is cut off from Redis. Every run ends; every reader has all, or was told.
 */
import type { Reader } from '../readers.ts';
import type { Scenario } from '../scenario.ts';
import type { ChaosServer } from '../stage.ts';
import type { Asked, World } from '../world.ts';

const VARIANTS = [
  'killed, restarted empty',
  'flushed',
  'stopped 10 s',
  'stopped, and the owner dies',
  'stopped before a run begins, and its owner dies',
  'stopped, and the owner leaves with ends that are not sealed',
] as const;
type Variant = (typeof VARIANTS)[number];
const STOP_MS = 10_000;

export const scenario: Scenario = {
  row: 10,
  name: 'Redis killed, flushed, stopped',
  asserts: 'every run ends as if nothing had been; a reader has every event or is told to resync; admission goes on',
  stage: { redis: 'own' },
  weightS: 50,
  async run(world) {
    world.allowResync();
    const variant = VARIANTS[world.seed % VARIANTS.length] as Variant;
    const survivor = await world.stage.shared('a');
    const other = await world.server({ name: 'other' });
    const runs: Asked[] = [];
    for (const owner of [survivor, other, other]) {
      const tokens = world.rng.pick([40, 120, 400]);
      runs.push(await world.askAndClaim(owner, { tokens, delayMs: 30, tools: world.rng.int(0, 1) }));
    }
    const readers = runs.flatMap((run) => [world.read(run, { on: survivor }), world.read(run, { on: other })]);
    await Promise.all(readers.map((reader) => reader.hasChunks(world.rng.int(1, 8))));
    if (world.rng.chance(0.5)) readers[world.rng.int(0, readers.length - 1)]?.cut();
    await fault(world, variant, other, (run) => {
      runs.push(run);
      const reader = world.read(run, { on: other });
      readers.push(reader);
      return reader;
    });
    // Redis or not, a question is taken at once.
    const later = await world.ask({ tokens: 5 });
    readers.push(world.read(later));
    for (const run of [...runs, later]) {
      const { status } = await world.ended(run.runId, 90_000);
      if (status !== 'succeeded') throw new Error(`${variant}: a run ${status}`);
    }
    await Promise.all(readers.map((reader) => reader.done));
  },
};

async function fault(
  world: World,
  variant: Variant,
  other: ChaosServer,
  follow: (run: Asked) => Reader,
): Promise<void> {
  const { redis } = world.stage;
  if (redis === null) throw new Error('the scenario needs a Redis of its own');
  if (variant === 'flushed') {
    await world.redis('flushall');
    return;
  }
  if (variant === 'killed, restarted empty') {
    await redis.signal('SIGKILL');
    await pause(world.rng.int(0, 3_000));
    const during = await world.ask({ tokens: 10 });
    await redis.start();
    await world.ended(during.runId);
    return;
  }
  await redis.signal('SIGSTOP');
  if (variant === 'stopped 10 s') {
    await pause(STOP_MS);
  } else if (variant === 'stopped before a run begins, and its owner dies') {
    // What its reader has is nowhere but in the memory of the owner.
    const reader = follow(await world.askAndClaim(other, { tokens: 200, delayMs: 30 }));
    await reader.hasChunks(world.rng.int(3, 20));
    other.kill('SIGKILL');
  } else if (variant === 'stopped, and the owner leaves with ends that are not sealed') {
    const reader = follow(await world.askAndClaim(other, { tokens: 10 }));
    await world.ended(reader.reading.runId);
    other.kill('SIGTERM');
    await other.exit;
  } else {
    // Long enough that its own viewers are ahead of the log.
    await pause(world.rng.int(1_000, 3_000));
    other.kill('SIGKILL');
    await pause(world.rng.int(0, 3_000));
  }
  await redis.signal('SIGCONT');
}

function pause(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}
