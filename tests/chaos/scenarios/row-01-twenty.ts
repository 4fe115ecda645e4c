/** kill -9 of the owner of 20 runs in mid answer: every run goes on, every reader gets the rest once. Measures the time to each next event. */
import { until } from '#tests/support/until.ts';
import type { Reader } from '../readers.ts';
import type { Scenario } from '../scenario.ts';

const RUNS = 20;

export const scenario: Scenario = {
  row: 1,
  name: 'kill -9 of the owner of 20 runs in mid answer',
  asserts:
    'every run goes on elsewhere in its second epoch; each reader gets the rest once; finished nodes are not run again',
  weightS: 36,
  async run(world) {
    const survivor = await world.stage.shared('a');
    const victim = await world.server({ name: 'owner' });
    const tools = world.rng.int(0, 1);
    // So that all are in mid answer, however slow the machine is.
    const gate = world.owner;
    const runs = await world.onlyClaims(victim, async () => {
      const options = { on: victim, tokens: 60, delayMs: 20, tools, gate };
      const asked = await Promise.all(Array.from({ length: RUNS }, () => world.ask(options)));
      await Promise.all(asked.map((run) => world.claimed(victim, run.runId)));
      return asked;
    });
    const local = runs.map((run) => world.read(run, { on: victim }));
    const remote = runs.map((run) => world.read(run, { on: survivor }));
    await Promise.all([...local, ...remote].map((reader) => reader.hasChunks(1)));
    victim.kill('SIGKILL');
    const killedMs = performance.now();
    const measure = async (reader: Reader): Promise<void> => {
      const last = lastId(reader);
      const next = () => reader.reading.frames.find((frame) => (frame.id ?? -1) > last && frame.atMs > killedMs);
      const frame = await until(next, { timeoutMs: 60_000, message: 'an event after the kill' });
      world.measure('kill to next event', frame.atMs - killedMs);
    };
    await Promise.all(remote.map(measure));
    world.stage.model.release(gate);
    for (const run of runs) {
      const { status, takeovers, epoch } = await world.ended(run.runId);
      // Put back and claimed again: two more than the first.
      if (status !== 'succeeded' || takeovers !== 1 || epoch !== 3) {
        throw new Error(`a run ${status} after ${takeovers} takeovers in epoch ${epoch}`);
      }
    }
    await Promise.all([...local, ...remote].map((reader) => reader.done));
  },
};

function lastId(reader: Reader): number {
  return Math.max(-1, ...reader.reading.frames.map((frame) => frame.id ?? -1));
}
