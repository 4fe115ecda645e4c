/**
 * Postgres rolls back what the servers send: as the victim of deadlocks and serialization failures at random places, of a
 * real deadlock with somebody else's transaction, and of a lock that is held longer than anybody waits.
 */
import { setTimeout as pause } from 'node:timers/promises';
import pg from 'pg';
import { mustEqual, mustNotFault } from '../must.ts';
import type { Scenario } from '../scenario.ts';
import type { Asked, World } from '../world.ts';

/** Where a statement may be refused: everything a run writes. The chance is one in `rarity` rows. */
const PLACES = [
  ['insert', 'runs', 6],
  ['update', 'runs', 6],
  ['insert', 'checkpoints', 6],
  ['insert', 'checkpoint_writes', 8],
  ['insert', 'messages', 5],
  ['update', 'threads', 6],
  ['insert', 'outbox', 3],
  ['update', 'outbox', 4],
] as const;
const STATES = ['40001', '40P01'];

export const scenario: Scenario = {
  row: 9,
  name: 'deadlocks, serialization failures, held locks',
  asserts: 'every effect happens once: runs end succeeded, webhooks are told; no request gets a 500',
  stage: { config: { postgres: { lock_timeout: '1s' } } },
  together: true,
  weightS: 40,
  async run(world) {
    const servers = [await world.stage.lasting('left'), await world.stage.lasting('right')];
    const drop = await refuseAtRandom(world);
    const runs: Asked[] = [];
    try {
      for (let count = 0; count < 6; count += 1) runs.push(await ask(world, count));
      await Promise.all(runs.map((run) => world.read(run, { on: world.rng.pick(servers) }).done));
    } finally {
      await drop();
    }
    const locked = await Promise.all([ask(world, 0), ask(world, 1), ask(world, 2)]);
    await Promise.all(locked.map((run) => world.read(run).hasChunks(1)));
    await deadlockWith(world, locked[0]);
    await holdLock(world, locked[1], 2_500);
    for (const { runId } of [...runs, ...locked]) {
      const { status, epoch } = await world.ended(runId);
      mustEqual('status and epoch', [status, epoch], ['succeeded', 1]);
    }
    mustNotFault(world.history.submissions.flatMap((one) => one.statuses));
  },
};

function ask(world: World, count: number): Promise<Asked> {
  return world.ask({ tokens: 30, delayMs: 20, tools: count % 3, webhook: world.owner });
}

/** Three places per seed, each with one of the two reasons. Returns what takes the trouble away again. */
async function refuseAtRandom(world: World): Promise<() => Promise<void>> {
  const places = world.rng.shuffle(PLACES).slice(0, 3);
  const name = `chaos_refuse_${world.seed}`;
  await world.rows(`create sequence if not exists chaos.${name}`);
  for (const [index, [what, table, rarity]] of places.entries()) {
    const state = world.rng.pick(STATES);
    // A sequence is not rolled back with what is refused.
    await world.rows(`
      create or replace function chaos.${name}_${index}() returns trigger language plpgsql as $$
      begin
        if nextval('chaos.${name}') % ${rarity} = ${world.rng.int(0, rarity - 1)} then
          raise exception 'refused by the chaos suite' using errcode = '${state}';
        end if;
        return new;
      end $$`);
    await world.rows(`create or replace trigger ${name}_${index} before ${what} on ${table}
                      for each row execute function chaos.${name}_${index}()`);
  }
  return async () => {
    for (const [index, [, table]] of places.entries()) {
      await world.rows(`drop trigger ${name}_${index} on ${table}`);
    }
  };
}

/** Holds the run's row, then wants its thread's, which finalize holds by then: one of the two is the victim. */
async function deadlockWith(world: World, run: Asked | undefined): Promise<void> {
  if (run === undefined) return;
  await inSession(world, async (session) => {
    await session.query('begin');
    await session.query('select 1 from runs where id = $1::uuid for no key update', [run.runId]);
    await pause(700);
    // Refused as a victim, or after it was let through: both are an end.
    await session
      .query('select 1 from threads where id = $1::uuid for no key update', [run.threadId])
      .catch(() => undefined);
    await session.query('rollback');
  });
}

/** Longer than the servers wait for a lock, several times over. */
async function holdLock(world: World, run: Asked | undefined, ms: number): Promise<void> {
  if (run === undefined) return;
  await inSession(world, async (session) => {
    await session.query('begin');
    await session.query('select 1 from threads where id = $1::uuid for update', [run.threadId]);
    await pause(ms);
    await session.query('rollback');
  });
}

async function inSession(world: World, work: (session: pg.Client) => Promise<void>): Promise<void> {
  const session = new pg.Client({ connectionString: world.stage.databaseUrl });
  await session.connect();
  try {
    await work(session);
  } finally {
    await session.end();
  }
}
