/** Crons: a slot fires once however many look at it, the next date is set whatever happens, and each is its owner's. */
import { randomUUID } from 'node:crypto';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { createCronClock } from '#src/crons/clock.ts';
import type { NewCron } from '#src/crons/cron.ts';
import { type FireDeps, fire } from '#src/crons/fire.ts';
import { type DueCron, selectDue } from '#src/crons/queries.ts';
import { type Cron, type CronService, createCronService } from '#src/crons/service.ts';
import { RunledgerError } from '#src/errors.ts';
import { createHub } from '#src/events/live-hub.ts';
import { createMemoryLog } from '#src/events/memory-log.ts';
import type { Pool } from '#src/postgres/pool.ts';
import { inTransaction } from '#src/postgres/transaction.ts';
import type { StartRequest } from '#src/runs/run.ts';
import { startRunWith } from '#src/runs/start-run.ts';
import { insertThread } from '#src/threads/open.ts';
import { createDatabase, type TestDatabase } from '#tests/support/database.ts';
import { insertRunningRun } from '#tests/support/ledger.ts';
import { silent, testPool } from '#tests/support/pools.ts';
import { memoryLogger } from './outbox-rig.ts';

let database: TestDatabase;
let pool: Pool;
let crons: CronService;
let start: FireDeps['runs'];
const log = createMemoryLog({ memoryLimitBytes: 1024 ** 2 });
const hub = createHub({ log, logger: silent });

beforeAll(async () => {
  database = await createDatabase();
  pool = testPool(database.url, 12);
  const graphs = {
    ids: () => ['chat'],
    has: (id: string) => id === 'chat',
    contextOf: () => 'checkpoint' as const,
    instantiate: () => Promise.reject(new Error('nothing is executed here')),
  };
  const ends = { pool, log, hub, streamTtlMs: 60_000, unsent: () => false, logger: silent, onEnded: () => undefined };
  const deps = {
    admit: { pool, graphs, defaultGraph: 'chat', webhooks: { allowPrivate: false, secret: null } },
    cancel: { ...ends, hintOwner: () => undefined },
    wake: () => undefined,
    logger: silent,
  };
  start = { startWith: (request, first) => startRunWith(deps, request, first) };
  crons = createCronService({
    pool,
    assertWebhook() {
      throw new RunledgerError('INVALID_REQUEST', 'The webhook is bad.', { path: 'webhook' });
    },
  });
});
afterAll(async () => {
  await hub.close();
  await log.close();
  await pool.end();
  await database.drop();
});
beforeEach(async () => {
  await pool.query('delete from crons');
  await pool.query('delete from threads');
});

const HOURLY: NewCron = {
  assistant_id: randomUUID(),
  thread_id: null,
  schedule: '0 * * * *',
  timezone: null,
  end_time: null,
  enabled: true,
  on_run_completed: 'keep',
  payload: {},
  metadata: {},
};
const create = (fields: Partial<NewCron> = {}, owner = 'ada'): Promise<Cron> =>
  crons.create(owner, { ...HOURLY, ...fields });

/** As the dialect makes it, without an assistant. */
const requestOf = async (cron: Cron): Promise<StartRequest> => ({
  owner: cron.owner,
  thread_id: cron.thread_id,
  if_missing: cron.thread_id === null ? 'create' : 'reject',
  temporary: cron.on_run_completed === 'delete',
  thread_metadata: { cron_id: cron.id },
  graph_id: 'chat',
  assistant: { id: null, config: {}, context: null, metadata: {} },
  input: { n: 1 },
  command: null,
  config: {},
  strategy: 'reject',
  delay_ms: 0,
  stream_modes: [],
  on_disconnect: 'continue',
  wire: {},
});
const deps = (more: Partial<FireDeps> = {}): FireDeps => ({ pool, runs: start, requestOf, logger: silent, ...more });

/** The first slot that has not been fired lies so many hours and 5 minutes back. */
async function missed(id: string, hours = 0): Promise<void> {
  await pool.query(
    `update crons set next_run_date = date_trunc('minute', clock_timestamp()) - $2 * interval '1 hour' - interval '5 minutes'
     where id = $1::uuid`,
    [id, hours],
  );
}
interface FiredRun {
  cron: string;
  slot: string;
  temporary: boolean;
  thread_id: string;
}
async function firedRuns(): Promise<FiredRun[]> {
  const { rows } = await pool.query<FiredRun>(
    `select r.config -> 'metadata' ->> 'cron_id' as cron, r.config -> 'metadata' ->> 'cron_slot' as slot, t.temporary,
            r.thread_id
     from runs r join threads t on t.id = r.thread_id
     where r.config -> 'metadata' ->> 'cron_id' is not null order by r.seq`,
  );
  return rows;
}
const nextOf = async (id: string): Promise<Date | null> =>
  (await pool.query('select next_run_date from crons where id = $1::uuid', [id])).rows[0]?.next_run_date;
const isAhead = async (id: string): Promise<boolean> => ((await nextOf(id))?.getTime() ?? 0) > Date.now() - 60_000;
async function due(): Promise<DueCron> {
  const [cron] = await selectDue(pool, 1);
  if (cron === undefined) throw new Error('nothing is due');
  return cron;
}

describe('a slot', () => {
  test('fires once when two workers look at it at the same moment', async () => {
    const ids: string[] = [];
    for (let n = 0; n < 20; n += 1) {
      const { id } = await create();
      await missed(id);
      ids.push(id);
    }
    // Neither goes on before both have found everything due.
    const bothLooked = Promise.withResolvers<void>();
    let looking = 0;
    const worker = () => {
      let first = true;
      return createCronClock(
        deps({
          async requestOf(cron) {
            if (first) {
              first = false;
              looking += 1;
              if (looking === 2) bothLooked.resolve();
            }
            await bothLooked.promise;
            return requestOf(cron);
          },
        }),
      );
    };
    const [one, other] = [worker(), worker()];
    const fired = await Promise.all([one.tick(), other.tick()]);
    expect(fired[0] + fired[1]).toBe(20);
    expect((await firedRuns()).map(({ cron }) => cron).sort()).toEqual(ids.sort());
    for (const id of ids) expect(await isAhead(id)).toBe(true);
    expect(await one.tick()).toBe(0);
  });

  test('that was found due and then taken by another is left alone', async () => {
    const { id } = await create();
    await missed(id);
    const seen = await due();
    expect(await fire(deps(), seen)).toBe('fired');
    const next = await nextOf(id);
    expect(await fire(deps(), seen)).toBe('lost');
    expect(await firedRuns()).toHaveLength(1);
    expect(await nextOf(id)).toEqual(next);
  });

  test('has a key of its own: told to fire again, it finds the run it was fired with', async () => {
    const { id } = await create();
    await missed(id);
    const seen = await due();
    expect(await fire(deps(), seen)).toBe('fired');
    await pool.query('update crons set next_run_date = $2 where id = $1::uuid', [id, seen.due]);
    expect(await fire(deps(), seen)).toBe('fired');
    expect(await firedRuns()).toHaveLength(1);
    expect(await isAhead(id)).toBe(true);
  });

  test('stays due when its transaction did not commit', async () => {
    const { id } = await create();
    await missed(id);
    const before = await nextOf(id);
    const startWith: FireDeps['runs']['startWith'] = (_request, first) =>
      inTransaction(pool, async (tx) => {
        expect(await first(tx)).toBe(true);
        throw Object.assign(new Error('the server is going down'), { code: '57P01' });
      });
    expect(await fire(deps({ runs: { startWith } }), await due())).toBe('postponed');
    expect(await nextOf(id)).toEqual(before);
    expect(await firedRuns()).toEqual([]);
    expect(await fire(deps(), await due())).toBe('fired');
  });

  test('that was missed fires with the latest of its kind, the others are skipped', async () => {
    const { id } = await create();
    await missed(id, 50);
    const clock = createCronClock(deps());
    expect(await clock.tick()).toBe(1);
    const [run] = await firedRuns();
    const age = Date.now() - Date.parse(run?.slot ?? '');
    expect(run?.slot).toMatch(/:00:00\.000Z$/);
    expect(age).toBeLessThan(3_700_000);
    expect(await clock.tick()).toBe(0);
    expect(await isAhead(id)).toBe(true);
  });

  test('gives each run a thread of its own, kept or not, or the one that is named', async () => {
    const threadId = randomUUID();
    await insertThread(pool, { id: threadId, owner: 'ada' });
    const kept = await create();
    const gone = await create({ on_run_completed: 'delete' });
    const onThread = await create({ thread_id: threadId, on_run_completed: null });
    for (const { id } of [kept, gone, onThread]) await missed(id);
    expect(await createCronClock(deps()).tick()).toBe(3);
    const runs = new Map((await firedRuns()).map((run) => [run.cron, run]));
    expect(runs.get(kept.id)?.temporary).toBe(false);
    expect(runs.get(gone.id)?.temporary).toBe(true);
    expect(runs.get(onThread.id)?.thread_id).toBe(threadId);
  });
});

describe('what goes wrong at a slot', () => {
  test('stops neither its schedule nor other crons: a busy thread, a deleted one, a graph that is gone, an error of ours', async () => {
    const { threadId: busy } = await insertRunningRun(pool);
    const failing = {
      busy: await create({ thread_id: busy, on_run_completed: null }, 'tester'),
      deleted: await create({ thread_id: randomUUID(), on_run_completed: null }),
      graph: await create({ payload: { graph: 'gone' } }),
      ours: await create({ payload: { fails: true } }),
    };
    const good = await create();
    for (const { id } of [...Object.values(failing), good]) await missed(id);
    const { logger, text } = memoryLogger();
    const clock = createCronClock(
      deps({
        logger,
        async requestOf(cron) {
          if (cron.payload.fails === true) throw new TypeError('poison');
          return { ...(await requestOf(cron)), graph_id: String(cron.payload.graph ?? 'chat') };
        },
      }),
    );
    expect(await clock.tick()).toBe(1);
    expect((await firedRuns()).map(({ cron }) => cron)).toEqual([good.id]);
    expect(Object.fromEntries(clock.counts)).toEqual({ fired: 1, refused: 3, failed: 1 });
    for (const { id } of Object.values(failing)) {
      expect(await isAhead(id)).toBe(true);
      expect(text()).toContain(id);
    }
  });

  test('a schedule that cannot be read any more fires no more', async () => {
    const { id } = await create();
    await missed(id);
    await pool.query(`update crons set schedule = 'from another version' where id = $1::uuid`, [id]);
    const clock = createCronClock(deps());
    expect(await clock.tick()).toBe(0);
    expect(await nextOf(id)).toBeNull();
    expect(Object.fromEntries(clock.counts)).toEqual({ failed: 1 });
  });
});

describe('a change', () => {
  test('of the schedule sets the next date anew, and drops a slot that is due; of the rest, it stays', async () => {
    const { id } = await create();
    await missed(id);
    const before = await nextOf(id);
    const renamed = await crons.update('ada', id, { metadata: { a: 1 }, payload: { input: { x: 1 } } });
    expect(renamed).toMatchObject({ metadata: { a: 1 }, payload: { input: { x: 1 } } });
    expect(await nextOf(id)).toEqual(before);
    await crons.update('ada', id, { schedule: '0 0 1 1 *' });
    expect((await nextOf(id))?.toISOString()).toMatch(/-01-01T00:00:00.000Z$/);
    expect(await createCronClock(deps()).tick()).toBe(0);
  });

  test('disables and enables: what was missed in between is not fired', async () => {
    const { id } = await create();
    await missed(id, 3);
    expect(await crons.update('ada', id, { enabled: false })).toMatchObject({ enabled: false, next_run_date: null });
    expect(await createCronClock(deps()).tick()).toBe(0);
    await crons.update('ada', id, { enabled: true });
    expect(await createCronClock(deps()).tick()).toBe(0);
    expect(await isAhead(id)).toBe(true);
  });

  test('to an end that is past ends it, and without one it goes on', async () => {
    const { id } = await create();
    expect(await crons.update('ada', id, { end_time: '2020-01-01T00:00:00.000Z' })).toMatchObject({
      next_run_date: null,
    });
    await crons.update('ada', id, { end_time: null });
    expect(await isAhead(id)).toBe(true);
  });

  test('is refused for a webhook that cannot be sent to, as at the beginning', async () => {
    const { id } = await create();
    const bad = { code: 'INVALID_REQUEST', path: 'webhook' };
    await expect(crons.update('ada', id, { payload: { webhook: 'x' } })).rejects.toMatchObject(bad);
    await expect(create({ payload: { webhook: 'x' } })).rejects.toMatchObject(bad);
  });
});

test('a schedule without a time to come is refused', async () => {
  const never = { code: 'INVALID_REQUEST', path: 'schedule' };
  await expect(create({ schedule: '0 0 31 2 *' })).rejects.toMatchObject(never);
  await expect(create({ end_time: '2020-01-01T00:00:00.000Z' })).rejects.toMatchObject(never);
});

test('a cron is its owner’s', async () => {
  const { id } = await create({ metadata: { k: 'v' } });
  await create({}, 'bob');
  const page = { limit: 10, offset: 0, sort_by: 'next_run_date', sort_order: 'asc' } as const;
  expect((await crons.search('ada', page)).map((cron) => cron.id)).toEqual([id]);
  expect(await crons.search('bob', { ...page, metadata: { k: 'v' } })).toEqual([]);
  expect(await crons.count('ada', { metadata: { k: 'v' }, enabled: true })).toBe(1);
  await expect(crons.update('bob', id, { enabled: false })).rejects.toMatchObject({ code: 'CRON_NOT_FOUND' });
  await expect(crons.remove('bob', id)).rejects.toMatchObject({ code: 'CRON_NOT_FOUND' });
  await crons.remove('ada', id);
  expect(await crons.count('ada', {})).toBe(0);
});
