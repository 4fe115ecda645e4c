/**
 * A worker's way to Postgres is a cable that is pulled for 30 s: nothing arrives, nobody is told. Its lease runs out, its
 * runs go on elsewhere; it begins no model call; and what it had sent arrives when the cable is back, and is refused.
 */
import { setTimeout as pause } from 'node:timers/promises';
import { until } from '#tests/support/until.ts';
import { reachedLine } from '../fault-points.ts';
import { must, mustEqual, mustNotFault } from '../must.ts';
import type { Scenario } from '../scenario.ts';
import type { ChaosServer } from '../stage.ts';
import type { World } from '../world.ts';

const DARK_MS = 30_000;
/** The lease, and the time a call may take to begin that was let through in its last moment. */
const FENCED_AFTER_MS = 13_000;

export const scenario: Scenario = {
  row: 7,
  name: 'Postgres black-holed for 30 s',
  asserts:
    'the runs go on elsewhere; the cut-off worker starts no call after its lease, answers 503 in bounded time, writes nothing late, and serves again afterwards',
  together: true,
  weightS: 70,
  async run(world) {
    const judge = await world.stage.shared('a');
    const proxy = await world.proxy('postgres');
    const victim = await world.server({ name: 'victim', postgres: proxy });
    const runs = [
      await world.askAndClaim(victim, { tokens: 60, delayMs: 40, tools: 1, webhook: world.owner }),
      await world.askAndClaim(victim, { tokens: 500, delayMs: 40 }),
      await world.askAndClaim(victim, { tokens: 40, delayMs: 40, graph: 'counted', nodeMs: world.rng.int(0, 2_000) }),
    ];
    const readers = runs.flatMap((run) => [
      world.read(run, { on: judge }),
      world.read(run, { on: victim, faithful: true }),
    ]);
    await readers[2]?.hasChunks(world.rng.int(1, 40));
    proxy.set({ kind: 'black-hole' });
    const darkMs = performance.now();
    const first = world.rng.int(1, 3) === 1 ? [] : [boundedAnswer(world, victim)];
    const going = goesOn(world, runs, darkMs);
    going.catch(() => undefined);
    await pause(FENCED_AFTER_MS);
    // From here on no call of the model begins on it.
    await victim.arm([{ point: 'model', action: 'delay', ms: 0, every: true }]);
    await going;
    await pause(DARK_MS - (performance.now() - darkMs));
    must(!victim.logs().includes(reachedLine({ point: 'model', action: 'delay' })), 'a model call without a lease');
    proxy.set({ kind: 'pass' });
    const backMs = performance.now();
    await until(async () => (await world.call(victim, 'GET', '/threads')).status === 200, {
      timeoutMs: 60_000,
      message: 'the cut-off worker to serve again',
    });
    world.measure('back to served', performance.now() - backMs);
    await victim.arm([]);
    await Promise.all([...first, ...readers.map((reader) => reader.done)]);
    for (const { runId } of runs) mustEqual('status', (await world.ended(runId)).status, 'succeeded');
    const again = await world.askAndClaim(victim, { tokens: 5 });
    mustEqual('status', (await world.ended(again.runId)).status, 'succeeded');
    mustNotFault(world.history.submissions.flatMap((one) => one.statuses));
  },
};

/** Resolves when each run has been claimed by somebody else. */
async function goesOn(world: World, runs: { runId: string }[], darkMs: number): Promise<void> {
  const text = `select epoch from runs where id = $1::uuid and (epoch >= 3 or ended_at is not null)`;
  await Promise.all(
    runs.map(async ({ runId }) => {
      await until(async () => (await world.rows(text, [runId])).length === 1, {
        timeoutMs: 60_000,
        message: `run ${runId} to go on elsewhere`,
      });
      world.measure('black hole to taken over', performance.now() - darkMs);
    }),
  );
}

/** A request to the cut-off server: refused with 503, and not after minutes. */
async function boundedAnswer(world: World, victim: ChaosServer): Promise<void> {
  const startMs = performance.now();
  const response = await fetch(`${victim.url}/api/v1/threads`, {
    headers: { 'x-dev-user': world.owner },
    signal: AbortSignal.timeout(50_000),
  });
  world.measure('black-holed request', performance.now() - startMs);
  // Whoever waited to the end of the 30 s was served.
  must([200, 503].includes(response.status), `a request without a database was answered with ${response.status}`);
}
