/**
 * Too few connections: two pools of two for forty runs and their readers; and others take all that Postgres allows. Callers
 * wait or are told to come again; the lease has a connection of its own.
 */
import { setTimeout as pause } from 'node:timers/promises';
import pg from 'pg';
import { must, mustEqual, mustNotFault } from '../must.ts';
import type { Scenario } from '../scenario.ts';
import type { ChaosServer } from '../stage.ts';
import type { Asked, World } from '../world.ts';

const RUNS = 40;
const MAX_CONNECTIONS = 30;

export const scenario: Scenario = {
  row: 8,
  name: 'no connections left: pools of two, max_connections reached',
  asserts:
    'requests wait or get 503 with Retry-After, never 500; no lease is lost, no run changes hands; all end once there is room',
  stage: {
    postgres: 'own',
    postgresSettings: [`max_connections=${MAX_CONNECTIONS}`, 'superuser_reserved_connections=3'],
    config: { postgres: { pool: 2, checkpoint_pool: 2, lock_timeout: '2s' } },
  },
  weightS: 20,
  async run(world) {
    const server = await world.server({ name: 'small' });
    const early = world.rng.chance(0.5);
    // Its pools are empty yet, or it has what it needs and must only keep it.
    const before = early ? [] : await admit(world, server, RUNS / 2);
    const hog = await takeAll(world);
    const during = admit(world, server, RUNS / 4);
    const answers = await keepReading(world, server, world.rng.int(3_000, 6_000));
    await hog.release();
    const runs = [...before, ...(await during), ...(await admit(world, server, RUNS / 4))];
    const readers = runs.map((run) => world.read(run, { on: server }));
    await Promise.all(readers.map((reader) => reader.done));
    for (const { runId } of runs) {
      const { status, takeovers } = await world.ended(runId);
      mustEqual('status and takeovers', [status, takeovers], ['succeeded', 0]);
    }
    mustNotFault([...answers, ...world.history.submissions.flatMap((one) => one.statuses)]);
    must(!/lease not renewed|liveness connection dropped/.test(server.logs()), 'the lease was not renewed');
  },
};

function admit(world: World, server: ChaosServer, count: number): Promise<Asked[]> {
  const one = () => world.ask({ on: server, tokens: 15, delayMs: 50, tools: 1 });
  return Promise.all(Array.from({ length: count }, one));
}

/** Takes every connection that is left but those kept for superusers, which the test's own look-ups need. */
async function takeAll(world: World): Promise<{ release(): Promise<void> }> {
  await world.rows(`do $$ begin create role hog login; exception when duplicate_object then null; end $$`);
  const url = new URL(world.stage.databaseUrl);
  url.username = 'hog';
  const held: pg.Client[] = [];
  for (;;) {
    const client = new pg.Client({ connectionString: url.href });
    client.on('error', () => undefined);
    try {
      await client.connect();
      held.push(client);
    } catch (error) {
      must((error as { code?: string }).code === '53300', `the hog was refused with ${String(error)}`);
      break;
    }
  }
  must(held.length > 5, `only ${held.length} connections were left to take`);
  return { release: async () => void (await Promise.all(held.map((client) => client.end()))) };
}

/** What a list of conversations asks for, again and again. Returns the statuses. */
async function keepReading(world: World, server: ChaosServer, forMs: number): Promise<number[]> {
  const statuses: number[] = [];
  for (const endMs = performance.now() + forMs; performance.now() < endMs; ) {
    const asked = await Promise.all(
      Array.from({ length: 5 }, () =>
        fetch(`${server.url}/api/v1/threads`, { headers: { 'x-dev-user': world.owner } }),
      ),
    );
    for (const response of asked) {
      await response.arrayBuffer();
      statuses.push(response.status);
      if (response.status !== 200) {
        must(response.status === 503, `a request was answered with ${response.status}`);
        must(response.headers.has('retry-after'), '503 without Retry-After');
      }
    }
    await pause(100);
  }
  return statuses;
}
