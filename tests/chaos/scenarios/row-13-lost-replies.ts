/**
 * A service applies something and its answer is lost: at named points one by one, and for a while at all of them through a
 * proxy that swallows replies. Whatever is tried again is done once.
 */
import type { Fault, FaultPoint } from '../fault-points.ts';
import type { Scenario } from '../scenario.ts';
import type { World } from '../world.ts';

const POINTS: FaultPoint[] = [
  'admit_commit',
  'claim',
  'checkpoint_put',
  'writes_put',
  'end_store',
  'end_commit',
  'end_at_once',
  'outbox_take',
  'outbox_settle',
  'started',
  'token',
  'append',
  'seal',
  'renew',
  'webhook',
];
const PER_SEED = 5;

export const scenario: Scenario = {
  row: 13,
  name: 'answers lost after the service had applied them',
  asserts: 'one run, one end, every event once, the webhook under one id',
  weightS: 55,
  async run(world) {
    const at = (world.seed * PER_SEED) % POINTS.length;
    const points = [...POINTS, ...POINTS].slice(at, at + PER_SEED);
    await world.stage.shared('a');
    const forgetful = await world.server({ name: 'forgetful' });
    for (const point of points) {
      const nth = point === 'token' || point === 'append' ? world.rng.int(1, 15) : 1;
      const fault: Fault = { action: 'lose-reply', when: 'after', point, nth };
      const withHook = point !== 'end_at_once';
      const run = await world.onlyClaims(forgetful, async () => {
        await forgetful.arm([fault]);
        const asked = await world.ask({
          on: forgetful,
          tokens: 20,
          tools: world.rng.int(0, 1),
          ...(withHook ? { webhook: world.owner } : {}),
        });
        await world.claimed(forgetful, asked.runId);
        return asked;
      });
      const readers = [world.read(run), world.read(run, { on: forgetful })];
      await forgetful.reached(fault, 45_000);
      await Promise.all(readers.map((reader) => reader.done));
      const { status } = await world.ended(run.runId);
      if (status !== 'succeeded') throw new Error(`reply of ${point} lost: the run ${status}`);
    }
    await swallowed(world);
  },
};

/** Everything one service says to one worker is lost for a while, in mid answer. */
async function swallowed(world: World): Promise<void> {
  const service = world.rng.pick(['postgres', 'redis'] as const);
  const lastsMs = world.rng.int(200, 1_500);
  const proxy = await world.proxy(service);
  const server = await world.server({ name: `cut-off-from-${service}`, [service]: proxy });
  const run = await world.askAndClaim(server, { tokens: 120, delayMs: 30, tools: 1 });
  const readers = [world.read(run), world.read(run, { on: server })];
  await readers[0]?.hasChunks(world.rng.int(1, 10));
  proxy.set({ kind: 'swallow-replies' });
  await new Promise((resolve) => setTimeout(resolve, lastsMs));
  proxy.set({ kind: 'pass' });
  await Promise.all(readers.map((reader) => reader.done));
  const { status } = await world.ended(run.runId);
  if (status !== 'succeeded') throw new Error(`replies of ${service} lost for ${lastsMs} ms: the run ${status}`);
}
