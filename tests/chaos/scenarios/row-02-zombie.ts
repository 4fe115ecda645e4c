/**
 * A worker is stopped (SIGSTOP) for longer than its lease, a peer ends its run, and it comes back (SIGCONT) in the middle of
 * what it was about to do: a put, an event, the end of the run, a webhook. All of it is refused. Also stopped inside a
 * transaction, with the locks of finalize held: everybody else goes on.
 */
import { until } from '#tests/support/until.ts';
import type { Fault } from '../fault-points.ts';
import type { Scenario } from '../scenario.ts';
import type { ChaosServer } from '../stage.ts';
import type { AskOptions, World } from '../world.ts';

interface Variant {
  name: string;
  stop: Pick<Fault, 'point' | 'when'> & { nth?: (world: World) => number };
  ask?: AskOptions;
  /** What the zombie says when it is refused. */
  refused: RegExp;
}

const LOST = /run lost to another owner|end not stored: the run has changed hands|not carried out/;

const VARIANTS: Variant[] = [
  {
    name: 'its put',
    stop: { point: 'checkpoint_put', nth: ({ rng }) => rng.int(2, 4) },
    ask: { graph: 'counted' },
    refused: LOST,
  },
  { name: 'its event', stop: { point: 'token', nth: ({ rng }) => rng.int(1, 12) }, refused: LOST },
  { name: 'its end', stop: { point: 'end_lock' }, refused: LOST },
  { name: 'its webhook', stop: { point: 'webhook' }, refused: /effect not settled: its lease had run out/ },
  { name: 'inside a transaction', stop: { point: 'end_store', when: 'after' }, refused: LOST },
  {
    name: 'its writes',
    stop: { point: 'writes_put', nth: ({ rng }) => rng.int(1, 3) },
    ask: { tools: 3 },
    refused: LOST,
  },
];

export const scenario: Scenario = {
  row: 2,
  name: 'SIGSTOP past the lease, a peer finishes, SIGCONT',
  asserts: "the zombie's put, event, end and webhook are refused; nobody waits for a stopped transaction",
  together: true,
  weightS: 60,
  async run(world) {
    await world.stage.shared('a');
    // Two per seed, so that three seeds in a row meet them all.
    const first = (world.seed * 2) % VARIANTS.length;
    await Promise.all(VARIANTS.slice(first, first + 2).map((variant) => play(world, variant)));
  },
};

async function play(world: World, variant: Variant): Promise<void> {
  const victim = await world.server({ name: `zombie-${variant.stop.point}` });
  const { point, when = 'before', nth } = variant.stop;
  const fault: Fault = { action: 'stop', point, when, nth: nth?.(world) ?? 1 };
  const run = await world.onlyClaims(victim, async () => {
    await victim.arm([fault]);
    const asked = await world.ask({ on: victim, webhook: world.owner, tokens: 25, ...variant.ask });
    await world.claimed(victim, asked.runId);
    return asked;
  });
  const reader = world.read(run);
  // On the zombie itself, and so patient that it is still there when the zombie comes back.
  const patient = world.read(run, { on: victim, faithful: true, silenceMs: 90_000, patienceMs: 90_000 });
  await victim.reached(fault);
  const stoppedMs = performance.now();
  // Another thread, while the locks may be held.
  const other = await world.ask({ tokens: 5 });
  await world.ended(other.runId);
  await world.ended(run.runId, 90_000);
  if (point === 'webhook') await toldByAnother(world, run.runId);
  world.measure('stop to end elsewhere', performance.now() - stoppedMs);
  victim.kill('SIGCONT');
  await refused(victim, variant);
  await Promise.all([reader.done, patient.done]);
}

async function toldByAnother(world: World, runId: string): Promise<void> {
  const told = () => world.stage.recorder.hookCalls.some((call) => call.runId === runId && call.answered === 204);
  await until(told, { timeoutMs: 60_000, message: 'another process to tell the webhook' });
}

async function refused(victim: ChaosServer, variant: Variant): Promise<void> {
  const line = () => variant.refused.test(victim.logs());
  await until(line, { timeoutMs: 45_000, message: `the zombie to be refused ${variant.name}` });
}
