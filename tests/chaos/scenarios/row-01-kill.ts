/**
 * kill -9 of a worker at named points: before the claim has left, after it was applied, in mid answer, in the middle of a
 * put (not sent; applied), after the COMMIT of the end and before the seal, and while a webhook is sent.
 */
import { until } from '#tests/support/until.ts';
import type { Fault } from '../fault-points.ts';
import type { Scenario } from '../scenario.ts';
import type { AskOptions, World } from '../world.ts';

interface Variant {
  name: string;
  fault: (world: World) => Fault;
  ask?: (world: World) => AskOptions;
  /** The end is stored before the kill: what follows is not the run going on but its seal and its webhook. */
  endsBefore?: boolean;
}

const kill = (point: Fault['point'], when: 'before' | 'after', nth = 1): Fault => ({
  action: 'kill',
  point,
  when,
  nth,
});

const VARIANTS: Variant[] = [
  { name: 'before the claim', fault: () => kill('claim', 'before') },
  { name: 'after the claim', fault: () => kill('claim', 'after') },
  { name: 'mid token', fault: ({ rng }) => kill('token', rng.pick(['before', 'after']), rng.int(1, 12)) },
  {
    name: 'mid put',
    fault: ({ rng }) => kill(rng.pick(['checkpoint_put', 'writes_put']), rng.pick(['before', 'after']), rng.int(1, 3)),
    ask: ({ rng }) => (rng.chance(0.5) ? { graph: 'counted' } : { tools: 2 }),
  },
  { name: 'before the seal', fault: () => kill('seal', 'before'), endsBefore: true },
  { name: 'mid webhook', fault: ({ rng }) => kill('webhook', rng.pick(['before', 'after'])), endsBefore: true },
];

export const scenario: Scenario = {
  row: 1,
  name: 'kill -9 at named points',
  asserts: 'the run goes on elsewhere from its tip; readers get the rest once; the webhook is told',
  weightS: 50,
  async run(world) {
    // Two points per seed, so that three seeds in a row meet them all.
    const first = (world.seed * 2) % VARIANTS.length;
    for (const variant of VARIANTS.slice(first, first + 2)) await play(world, variant);
  },
};

async function play(world: World, variant: Variant): Promise<void> {
  const survivor = await world.stage.shared('a');
  const victim = await world.server({ name: 'victim' });
  const fault = variant.fault(world);
  if (variant.name === 'before the seal') world.allowResync();
  const run = await world.onlyClaims(victim, async () => {
    await victim.arm([fault]);
    const asked = await world.ask({ on: victim, webhook: world.owner, tokens: 20, ...variant.ask?.(world) });
    if (fault.point !== 'claim') await world.claimed(victim, asked.runId);
    else await victim.reached(fault);
    return asked;
  });
  const reader = world.read(run);
  const faithful = world.read(run, { on: survivor });
  await victim.reached(fault);
  const killedMs = performance.now();
  const last = Math.max(-1, ...faithful.reading.frames.map((frame) => frame.id ?? -1));
  if (variant.endsBefore !== true) {
    await until(() => faithful.reading.frames.some((frame) => (frame.id ?? -1) > last), {
      timeoutMs: 60_000,
      message: `${variant.name}: an event after the kill`,
    });
    world.measure('kill to next event', performance.now() - killedMs);
  }
  await Promise.all([reader.done, faithful.done]);
  const { status } = await world.ended(run.runId);
  if (status !== 'succeeded') throw new Error(`${variant.name}: the run ${status}`);
}
