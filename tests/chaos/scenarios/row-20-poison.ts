/**
 * A run that crashes whatever process executes it. After so many takeovers it is given up; the runs beside it, which lose their
 * process as often, end well, and so do those that come after.
 */
import type { Scenario } from '../scenario.ts';
import type { ChaosServer } from '../stage.ts';
import type { World } from '../world.ts';

const MAX_TAKEOVERS = 3;

export const scenario: Scenario = {
  row: 20,
  name: 'a run that crashes its process',
  asserts: 'it fails with TAKEOVERS_EXHAUSTED after 3 takeovers; the others end well',
  weightS: 60,
  async run(world) {
    // It judges and takes over, and executes nothing while there is poison.
    const judge = await world.stage.shared('a');
    await judge.arm([{ point: 'claim', action: 'hold', every: true }], 'judge');
    try {
      await poisoned(world);
    } finally {
      await judge.arm([], 'judge');
    }
    const after = await world.ask({ tokens: 5 });
    const { status } = await world.ended(after.runId);
    if (status !== 'succeeded') throw new Error(`a run after the poison ${status}`);
  },
};

async function poisoned(world: World): Promise<void> {
  let victim = await world.server({ name: 'victim-0' });
  const beside = [await world.ask({ tokens: 30, graph: 'counted', nodeMs: 300 }), await world.ask({ tokens: 40 })];
  const readers = beside.map((run) => world.read(run));
  if (world.rng.chance(0.5)) await readers[1]?.hasChunks(world.rng.int(1, 10));
  const poison = await world.ask({ graph: 'poison', on: victim });
  const reader = world.read(poison);
  const deaths: ChaosServer[] = [];
  for (let next = 1; ; next += 1) {
    const over = await Promise.race([victim.exit.then(() => false), reader.done.then(() => true)]);
    if (over) break;
    deaths.push(victim);
    victim = await world.server({ name: `victim-${next}` });
  }
  if (deaths.length !== MAX_TAKEOVERS + 1) throw new Error(`${deaths.length} processes died of it`);
  const [row] = await world.rows<{ status: string; error: { code: string } }>(
    'select status, error from runs where id = $1::uuid',
    [poison.runId],
  );
  if (row?.error?.code !== 'TAKEOVERS_EXHAUSTED') throw new Error(`it ended ${JSON.stringify(row)}`);
  for (const run of beside) {
    const { status } = await world.ended(run.runId);
    if (status !== 'succeeded') throw new Error(`a run beside the poison ${status}`);
  }
  await Promise.all(readers.map((one) => one.done));
}
