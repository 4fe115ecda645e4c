/**
 * Workers are replaced one after the other (SIGTERM) under load, with streams open. Runs that do not end within the drain are
 * handed back and go on elsewhere in a new epoch; nothing is lost, nothing counts as a takeover.
 */
import type { Reader } from '../readers.ts';
import type { Scenario } from '../scenario.ts';
import type { ChaosServer } from '../stage.ts';
import type { Asked, World } from '../world.ts';

const RESTARTS = process.env.CHAOS_PLAN === undefined ? 1 : 2;
const QUICK_DRAIN = { runs: { drain_timeout: '1s' } };

export const scenario: Scenario = {
  row: 21,
  name: 'SIGTERM with open streams and runs, a rolling restart',
  asserts:
    'long runs are handed over with a new epoch and no takeover, short ones end; no reader misses anything; exit code 0',
  weightS: 55,
  async run(world) {
    await world.stage.shared('a');
    let leaving = await world.server({ name: 'version-0', config: QUICK_DRAIN });
    const runs: Asked[] = [];
    const readers: Reader[] = [];
    for (let restart = 1; restart <= RESTARTS; restart += 1) {
      const next = await world.server({ name: `version-${restart}`, config: QUICK_DRAIN });
      const tools = world.rng.int(0, 2);
      // It cannot end before it was handed over, however slow the machine is.
      const gate = `${world.owner}-${restart}`;
      const [short, long] = await world.onlyClaims(leaving, async () => {
        const asked = [
          await world.ask({ on: leaving, tokens: 5, delayMs: 20 }),
          await world.ask({ on: leaving, tokens: 60, delayMs: 30, tools, gate }),
        ] as const;
        await Promise.all(asked.map((run) => world.claimed(leaving, run.runId)));
        return asked;
      });
      readers.push(...[long, short].flatMap((run) => [world.read(run, { on: leaving }), world.read(run)]));
      const load = keepAsking(world, world.rng.int(3, 6));
      await readers.at(-4)?.hasChunks(world.rng.int(1, 3));
      await leave(leaving);
      world.stage.model.release(gate);
      const asked = await load;
      readers.push(...asked.map((run) => world.read(run)));
      runs.push(long, short, ...asked);
      const { epoch } = await world.ended(long.runId);
      if (epoch < 2) throw new Error('the long run was not handed over');
      leaving = next;
    }
    for (const run of runs) {
      const { status, takeovers } = await world.ended(run.runId);
      if (status !== 'succeeded' || takeovers > 0) throw new Error(`a run ${status} after ${takeovers} takeovers`);
    }
    await Promise.all(readers.map((reader) => reader.done));
  },
};

async function leave(server: ChaosServer): Promise<void> {
  server.kill('SIGTERM');
  const code = await server.exit;
  if (code !== 0) throw new Error(`${server.name} exited with ${code}`);
}

/** Asks one question after the other, on whatever server answers. */
async function keepAsking(world: World, count: number): Promise<Asked[]> {
  const runs: Asked[] = [];
  for (let index = 0; index < count; index += 1) {
    runs.push(await world.ask({ tokens: 40, delayMs: 20, graph: index % 2 === 0 ? 'chat' : 'counted' }));
    await new Promise((resolve) => setTimeout(resolve, 150));
  }
  return runs;
}
