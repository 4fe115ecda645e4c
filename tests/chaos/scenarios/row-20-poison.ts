/**
 * A run that crashes whatever process executes it. After so many takeovers it is given up; runs of another worker, and those
 * that come after, are not touched by it.
 */
import type { Scenario } from '../scenario.ts';
import type { World } from '../world.ts';

/** Fewer than by default: each costs a server. */
const MAX_TAKEOVERS = 1;

export const scenario: Scenario = {
  row: 20,
  name: 'a run that crashes its process',
  asserts:
    'it fails with TAKEOVERS_EXHAUSTED after the last process it may have; runs on another worker and those that come after are not touched',
  stage: { config: { runs: { max_takeovers: MAX_TAKEOVERS } } },
  weightS: 40,
  async run(world) {
    const judge = await world.stage.shared('a');
    const beside = await world.askAndClaim(judge, { tokens: 200, delayMs: 50 });
    const reader = world.read(beside);
    // From now on it judges, and executes no more than it has.
    await judge.arm([{ point: 'claim', action: 'hold', every: true }], 'judge');
    try {
      await poisoned(world);
    } finally {
      await judge.arm([], 'judge');
    }
    const after = await world.ask({ tokens: 5 });
    for (const run of [beside, after]) {
      const { status, takeovers } = await world.ended(run.runId);
      if (status !== 'succeeded' || takeovers > 0)
        throw new Error(`another run ${status} after ${takeovers} takeovers`);
    }
    await reader.done;
  },
};

async function poisoned(world: World): Promise<void> {
  const poison = await world.ask({ graph: 'poison' });
  const reader = world.read(poison);
  let over = false;
  void reader.done.then(() => {
    over = true;
  });
  for (let next = 1; !over; next += 1) {
    // It may die of the run before it is ready.
    const victim = await world.server({ name: `victim-${next}` }).catch((error: Error) => {
      if (!error.message.includes('ended with code 137')) throw error;
      return null;
    });
    await Promise.race([victim?.exit, reader.done]);
  }
  const claims = await world.rows(`select 1 from chaos.status where run_id = $1::uuid and to_status = 'running'`, [
    poison.runId,
  ]);
  if (claims.length !== MAX_TAKEOVERS + 1) throw new Error(`${claims.length} processes executed it`);
  const [row] = await world.rows<{ status: string; error: { code: string } | null }>(
    'select status, error from runs where id = $1::uuid',
    [poison.runId],
  );
  if (row?.error?.code !== 'TAKEOVERS_EXHAUSTED') throw new Error(`it ended ${JSON.stringify(row)}`);
}
