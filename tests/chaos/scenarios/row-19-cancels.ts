/**
 * Cancels that race with the end, with each other, with the claim; on any server, and while Redis is stopped. A run has one
 * end, everybody is told the same, and the next message works.
 */
import { setTimeout as pause } from 'node:timers/promises';
import { must, mustEqual } from '../must.ts';
import type { Scenario } from '../scenario.ts';
import type { ChaosServer } from '../stage.ts';
import type { Asked, World } from '../world.ts';

const RACES = process.env.CHAOS_PLAN === undefined ? 8 : 12;
const STOPPED = ['cancelled', 'succeeded'];

export const scenario: Scenario = {
  row: 19,
  name: 'cancel racing the end, twice at once, with Redis down',
  asserts:
    'every cancel is 200; one end, the same in ledger, log and thread; stopped also without Redis; the next turn works',
  stage: { redis: 'own' },
  weightS: 45,
  async run(world) {
    const servers = [await world.stage.lasting('left'), await world.stage.lasting('right')];
    for (let race = 0; race < RACES; race += 1) await raceOnce(world, servers);
    await withoutRedis(world, servers);
  },
};

/** A run of about 200 ms, and one to four cancels at any moment of it. */
async function raceOnce(world: World, servers: ChaosServer[]): Promise<void> {
  const run = await world.ask({ tokens: 10, delayMs: 12, tools: world.rng.int(0, 1), webhook: world.owner });
  const readers = [world.read(run), world.read(run)];
  const askCancel = async (): Promise<void> => {
    await pause(world.rng.int(0, 260));
    const wait = world.rng.chance(0.5);
    const path = `/threads/${run.threadId}/cancel${wait ? '?wait=true' : ''}`;
    const { status, body } = await world.call<{ outcome: string; status: string }>(
      world.rng.pick(servers),
      'POST',
      path,
    );
    mustEqual('status of a cancel', status, 200);
    if (wait && body.outcome !== 'idle')
      must(STOPPED.includes(body.status), `after cancel?wait the run is ${body.status}`);
  };
  await Promise.all(Array.from({ length: world.rng.int(1, 4) }, askCancel));
  await assertOneEnd(world, run, readers);
  await nextTurnWorks(world, run);
}

async function assertOneEnd(world: World, run: Asked, readers: ReturnType<World['read']>[]): Promise<void> {
  const { status } = await world.ended(run.runId);
  must(STOPPED.includes(status), `the run ${status}`);
  for (const reader of readers) {
    const { frames, ended } = await reader.done;
    mustEqual('how the reader ended', ended, 'end');
    mustEqual('what it was told', (JSON.parse(frames.at(-1)?.data ?? '{}') as { status?: string }).status, status);
  }
}

async function nextTurnWorks(world: World, { threadId }: Asked): Promise<void> {
  const next = await world.ask({ threadId, tokens: 2, delayMs: 0 });
  mustEqual('status of the next turn', (await world.ended(next.runId)).status, 'succeeded');
}

/** Stopped or killed: neither the request nor its way to the owner needs Redis. */
async function withoutRedis(world: World, servers: ChaosServer[]): Promise<void> {
  const { redis } = world.stage;
  must(redis !== null, 'the stage has no Redis of its own');
  world.allowResync();
  const run = await world.ask({ tokens: 2_000, delayMs: 20 });
  const reader = world.read(run);
  await reader.hasChunks(5);
  const killed = world.rng.chance(0.5);
  await redis.signal(killed ? 'SIGKILL' : 'SIGSTOP');
  const startMs = performance.now();
  const asking = servers.map((server) => world.call<unknown>(server, 'POST', `/threads/${run.threadId}/cancel`));
  for (const { status } of await Promise.all(asking)) mustEqual('status of a cancel without Redis', status, 200);
  mustEqual('status of the run', (await world.ended(run.runId, 20_000)).status, 'cancelled');
  world.measure('cancel without Redis', performance.now() - startMs);
  const again = await world.call<{ outcome: string }>(
    servers[0] as ChaosServer,
    'POST',
    `/threads/${run.threadId}/cancel`,
  );
  mustEqual('a cancel after the end', again.body.outcome, 'idle');
  const next = await world.ask({ threadId: run.threadId, tokens: 2, delayMs: 0 });
  mustEqual('status of the next turn without Redis', (await world.ended(next.runId)).status, 'succeeded');
  if (killed) await redis.start();
  else await redis.signal('SIGCONT');
  await reader.done;
}
