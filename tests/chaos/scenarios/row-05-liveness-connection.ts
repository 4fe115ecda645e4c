/**
 * The backend of a worker's liveness connection is terminated, again and again, while it executes runs and a settled peer
 * watches: the worker listens again and nobody takes its runs. Beside it: renewals that are late while the lock is held.
 */
import { LOCK_GRACE_MS } from '#src/runs/worker.ts';
import { until } from '#tests/support/until.ts';
import { must, mustEqual } from '../must.ts';
import type { Scenario } from '../scenario.ts';
import type { ChaosServer } from '../stage.ts';
import type { World } from '../world.ts';

export const scenario: Scenario = {
  row: 5,
  name: 'the liveness connection is terminated',
  asserts: 'the worker is back within its grace; no run changes hands; runs sent meanwhile are executed',
  together: true,
  weightS: 45,
  async run(world) {
    const judge = await world.stage.shared('a');
    const victim = await world.server({ name: 'victim' });
    const runs = [await world.askAndClaim(victim, { tokens: 120, delayMs: 40, tools: 2 })];
    runs.push(await world.askAndClaim(victim, { tokens: 120, delayMs: 40, graph: 'counted' }));
    const readers = runs.flatMap((run) => [world.read(run, { on: judge }), world.read(run, { on: victim })]);
    const times = world.rng.int(2, 5);
    let silenceMs = 0;
    for (let time = 0; time < times; time += 1) {
      await pause(world.rng.int(0, 700));
      silenceMs = Math.max(silenceMs, await terminate(world, victim));
      // Nobody is listening now: the run is found all the same.
      const meanwhile = await world.ask({ on: world.rng.pick([judge, victim]), tokens: 2, delayMs: 0 });
      readers.push(world.read(meanwhile));
      runs.push(meanwhile);
    }
    if (world.rng.chance(0.5)) await lateRenewals(world, victim);
    await Promise.all(readers.map((reader) => reader.done));
    for (const { runId } of runs) {
      const { status, epoch, takeovers } = await world.ended(runId);
      mustEqual('status', status, 'succeeded');
      // On a machine so busy that a new connection takes a second, the grace is over and a peer is right to take the runs.
      if (silenceMs < LOCK_GRACE_MS) mustEqual('epoch and takeovers', [epoch, takeovers], [1, 0]);
    }
    const row = `select 1 from workers where pid = $1 and expires_at > clock_timestamp()`;
    must((await world.rows(row, [victim.pid])).length === 1, 'the victim is not among the workers any more');
  },
};

const MS = (column: string): string => `extract(epoch from ${column})::float8 * 1000`;

/** Resolves when it has renewed again, with the time between the two renewals by Postgres' clock. */
async function terminate(world: World, victim: ChaosServer): Promise<number> {
  const [cut] = await world.rows<{ renewed: number; now: number; ended: number }>(
    `select ${MS('renewed_at')} as renewed, ${MS('clock_timestamp()')} as now,
       (select count(pg_terminate_backend(pid))::int from pg_stat_activity
        where datname = current_database() and application_name like 'runledger worker%pid=' || $1::integer::text) as ended
     from workers where pid = $1::integer`,
    [victim.pid],
  );
  must(cut !== undefined, 'the victim is not among the workers');
  // None when it is between two connections.
  must(cut.ended <= 1, `${cut.ended} liveness connections of one worker`);
  const renewal = `select ${MS('renewed_at')} as at from workers where pid = $1 and ${MS('renewed_at')} > $2`;
  const next = await until(async () => (await world.rows<{ at: number }>(renewal, [victim.pid, cut.now]))[0], {
    message: 'the victim to renew again',
  });
  world.measure('silence', next.at - cut.renewed);
  return next.at - cut.renewed;
}

/** Longer than the grace of a missing lock, shorter than the lease: the lock says that it lives. */
async function lateRenewals(world: World, victim: ChaosServer): Promise<void> {
  await pause(1_500);
  await victim.arm([{ point: 'renew', action: 'delay', ms: world.rng.int(2_000, 4_000) }]);
  await pause(4_000);
}

function pause(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}
