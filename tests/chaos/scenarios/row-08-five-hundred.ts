/**
 * 500 runs at once on one worker with pools of ten, each with a tool call and a reader: no deadlock, no lease lost, and
 * when they have ended the memory they took is free again.
 */
import { setTimeout as pause } from 'node:timers/promises';
import { heldMb } from '../held-memory.ts';
import { must, mustEqual, mustNotFault } from '../must.ts';
import type { Scenario } from '../scenario.ts';
import type { ChaosServer } from '../stage.ts';
import type { Asked, World } from '../world.ts';

/** Fewer in `npm test`. */
const RUNS = process.env.CHAOS_PLAN === undefined ? 100 : 500;
/** What a server may keep of 500 ended runs: caches that are bounded, and code. */
const KEPT_MB = 20;

export const scenario: Scenario = {
  row: 8,
  name: '500 runs at once on one worker with a pool of ten',
  asserts:
    'all end, none changes hands, no renewal is late; the memory it holds afterwards is what it was after a first hundred',
  stage: { config: { runs: { concurrency: 500 }, postgres: { pool: 10, checkpoint_pool: 10 } } },
  weightS: 60,
  async run(world) {
    const server = await world.stage.lasting('one');
    await flood(world, server, Math.min(100, RUNS / 2));
    const baseMb = await settledMb(server);
    const startMs = performance.now();
    await flood(world, server, RUNS);
    world.measure(`${RUNS} runs`, performance.now() - startMs);
    const afterMb = await settledMb(server);
    world.measure('memory kept, MB', afterMb - baseMb);
    must(afterMb - baseMb < KEPT_MB, `what it holds went from ${baseMb} to ${afterMb} MB`);
    must(!/lease not renewed|liveness connection dropped/.test(server.logs()), 'the lease was not renewed');
    mustNotFault(world.history.submissions.flatMap((one) => one.statuses));
  },
};

async function flood(world: World, server: ChaosServer, count: number): Promise<void> {
  const runs: Asked[] = [];
  // Fifty requests at a time; a client that is told to come again does.
  for (let sent = 0; sent < count; sent += 50) {
    const many = Array.from({ length: Math.min(50, count - sent) }, () =>
      world.ask({ on: server, tokens: 10, delayMs: 300, tools: 1 }),
    );
    runs.push(...(await Promise.all(many)));
  }
  await Promise.all(runs.map((run) => world.read(run, { on: server, faithful: true, patienceMs: 240_000 }).done));
  for (const { runId } of runs) {
    const { status, epoch } = await world.ended(runId, 240_000);
    mustEqual('status and epoch', [status, epoch], ['succeeded', 1]);
  }
}

/** Some seconds after the last work. */
async function settledMb(server: ChaosServer): Promise<number> {
  await pause(3_000);
  return heldMb(server);
}
