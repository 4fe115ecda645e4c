/**
 * Postgres is stopped in immediate mode (a crash that it recovers from) and started again: under load, and while a peer
 * recovers the runs of a worker that was just killed. Every lock is gone then, and nobody may be called dead for that.
 */
import { setTimeout as pause } from 'node:timers/promises';
import { until } from '#tests/support/until.ts';
import { must, mustEqual, mustNotFault } from '../must.ts';
import type { Scenario } from '../scenario.ts';
import type { ChaosServer } from '../stage.ts';
import type { Asked, World } from '../world.ts';

type Moment = 'under load' | 'after a kill' | 'before the put-back' | 'after the put-back' | 'for long';
const MOMENTS: Moment[] = ['after the put-back', 'for long', 'before the put-back', 'under load', 'after a kill'];

export const scenario: Scenario = {
  row: 6,
  name: 'Postgres restarted (immediate), under load and during recovery',
  asserts:
    'no 500 ever; every request is served soon after the restart; no run is stranded or lost, none changes hands for it',
  stage: { postgres: 'own' },
  weightS: 50,
  async run(world) {
    const { postgres } = world.stage;
    must(postgres !== null, 'the stage has no Postgres of its own');
    const judge = await world.stage.shared('a');
    const victim = await world.server({ name: 'victim' });
    const moment = MOMENTS[world.seed % MOMENTS.length] as Moment;
    const runs: Asked[] = [];
    for (let count = 0; count < 3; count += 1) {
      runs.push(await world.askAndClaim(victim, { tokens: 100, delayMs: 30, tools: count % 2, webhook: world.owner }));
    }
    const stays = await world.askAndClaim(judge, { tokens: 150, delayMs: 40, tools: 2 });
    const readers = [...runs, stays].map((run) => world.read(run, { on: judge }));
    await Promise.all(readers.map((reader) => reader.hasChunks(3)));

    const load = keepAsking(world);
    await comeTo(moment, world, judge, victim);
    const downMs = performance.now();
    if (moment === 'for long') {
      await postgres.signal('SIGKILL');
      await pause(world.rng.int(4_000, 9_000));
      await postgres.start();
    } else await postgres.restart('immediate');
    if (world.rng.chance(0.3)) {
      await pause(world.rng.int(0, 1_500));
      await postgres.restart('immediate');
    }
    const backMs = performance.now();
    await judge.arm([]);
    await served(world, judge);
    world.measure('restart to served', performance.now() - backMs);
    runs.push(...(await load.stop()));
    await Promise.all(readers.map((reader) => reader.done));
    for (const { runId } of [...runs, stays]) mustEqual('status', (await world.ended(runId)).status, 'succeeded');
    world.measure('down to all ended', performance.now() - downMs);
    // Its owner lived all the time: that its lock was gone is no reason to take it over.
    mustEqual('takeovers of a living owner', (await world.ended(stays.runId)).takeovers, 0);
    mustNotFault(world.history.submissions.flatMap((one) => one.statuses));
  },
};

async function comeTo(moment: Moment, world: World, judge: ChaosServer, victim: ChaosServer): Promise<void> {
  if (moment === 'under load' || moment === 'for long') return pause(world.rng.int(200, 1_500));
  const when = moment === 'before the put-back' ? 'before' : 'after';
  if (moment !== 'after a kill') await judge.arm([{ point: 'put_back', when, action: 'delay', ms: 400 }]);
  victim.kill('SIGKILL');
  if (moment === 'after a kill') return pause(world.rng.int(0, 1_200));
  await judge.reached({ point: 'put_back', when, action: 'delay' });
}

/** Short runs, one after the other, until it is told to stop. */
function keepAsking(world: World): { stop(): Promise<Asked[]> } {
  let stopped = false;
  async function loop(): Promise<Asked[]> {
    const asked: Asked[] = [];
    while (!stopped) {
      asked.push(await world.ask({ tokens: 3, delayMs: 10 }));
      await pause(150);
    }
    return asked;
  }
  const looping = loop();
  looping.catch(() => undefined);
  return {
    stop() {
      stopped = true;
      return looping;
    },
  };
}

/** Nothing is refused any more. */
async function served(world: World, server: ChaosServer): Promise<void> {
  await until(
    async () => {
      const { status } = await world.call(server, 'GET', '/threads');
      mustNotFault([status]);
      return status === 200;
    },
    { timeoutMs: 20_000, message: 'requests to be served again' },
  );
}
