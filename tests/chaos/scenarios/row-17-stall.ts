/** A node that keeps the event loop busy for 20 s: the watchdog says so, a peer takes the run over, and the late worker is refused. */
import { until } from '#tests/support/until.ts';
import type { Fault } from '../fault-points.ts';
import type { Scenario } from '../scenario.ts';

const STALL_MS = 20_000;

export const scenario: Scenario = {
  row: 17,
  name: 'event loop blocked for 20 s',
  asserts: 'the watchdog reports it while it lasts; the run goes on elsewhere; the late worker writes nothing more',
  together: true,
  weightS: 45,
  async run(world) {
    const point = world.rng.pick(['token', 'checkpoint_put', 'writes_put', 'end_at_once'] as const);
    const nth = point === 'token' ? world.rng.int(1, 10) : 1;
    await world.stage.shared('a');
    const victim = await world.server({ name: 'busy' });
    const fault: Fault = { action: 'block', ms: STALL_MS, point, nth };
    const run = await world.onlyClaims(victim, async () => {
      await victim.arm([fault]);
      const asked = await world.ask({ on: victim, tokens: 25, graph: 'counted' });
      await world.claimed(victim, asked.runId);
      return asked;
    });
    const reader = world.read(run);
    await victim.reached(fault);
    const blockedMs = performance.now();
    await until(() => victim.logs().includes('event loop blocked'), { timeoutMs: 15_000, message: 'the watchdog' });
    const { status, takeovers } = await world.ended(run.runId, 60_000);
    world.measure('stall to end elsewhere', performance.now() - blockedMs);
    if (status !== 'succeeded' || takeovers !== 1) throw new Error(`${status} after ${takeovers} takeovers`);
    await reader.done;
    const lost = () => /run lost to another owner|end not stored: the run has changed hands/.test(victim.logs());
    await until(lost, { timeoutMs: 45_000, message: 'the late worker to see that it lost its run' });
  },
};
