/** A worker is stopped (SIGSTOP) for less than its lease: it keeps its runs, and nobody takes them over. */
import type { Scenario } from '../scenario.ts';

export const scenario: Scenario = {
  row: 3,
  name: 'SIGSTOP for less than the lease',
  asserts: 'no takeover: the run ends in its first epoch, with one model call',
  together: true,
  weightS: 35,
  async run(world) {
    const stopMs = world.rng.int(1_500, 6_000);
    const tokensBefore = world.rng.int(1, 10);
    await world.stage.shared('a');
    const victim = await world.server({ name: 'paused' });
    const run = await world.askAndClaim(victim, { tokens: 60, delayMs: 30 });
    const reader = world.read(run);
    const local = world.read(run, { on: victim, faithful: true, silenceMs: 30_000 });
    await reader.hasChunks(tokensBefore);
    victim.kill('SIGSTOP');
    await new Promise((resolve) => setTimeout(resolve, stopMs));
    victim.kill('SIGCONT');
    await Promise.all([reader.done, local.done]);
    const { status, takeovers, epoch } = await world.ended(run.runId);
    if (status !== 'succeeded' || takeovers !== 0 || epoch !== 1) {
      throw new Error(`stopped for ${stopMs} ms: ${status}, ${takeovers} takeovers, epoch ${epoch}`);
    }
  },
};
