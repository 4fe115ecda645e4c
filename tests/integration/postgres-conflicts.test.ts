/** Transactions that Postgres rolls back for the sake of another (deadlock, serialization failure) are made again. */
import { randomUUID } from 'node:crypto';
import { emptyCheckpoint } from '@langchain/langgraph-checkpoint';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { openSaver } from '#src/graphs/checkpoints.ts';
import type { Pool } from '#src/postgres/pool.ts';
import { codeOf, isUnavailable } from '#src/postgres/sqlstate.ts';
import { inTransaction } from '#src/postgres/transaction.ts';
import { claim } from '#src/runs/claim.ts';
import { edit } from '#src/runs/edit.ts';
import { createDatabase, type TestDatabase } from '#tests/support/database.ts';
import { endRun, insertRunningRun } from '#tests/support/ledger.ts';
import { testPool } from '#tests/support/pools.ts';

let database: TestDatabase;
let pool: Pool;

beforeAll(async () => {
  database = await createDatabase();
  pool = testPool(database.url);
  await pool.query('create table pairs (id integer primary key, hits integer not null default 0)');
  await pool.query('insert into pairs values (1), (2)');
});
afterAll(async () => {
  await pool?.end();
  await database?.drop();
});

/** The next `count` inserts into the table fail with this SQLSTATE, as they do for the victim of a conflict. */
async function conflicts(table: string, count: number, sqlstate: string): Promise<void> {
  await pool.query(`create sequence if not exists conflicts`);
  await pool.query(`alter sequence conflicts restart`);
  await pool.query(`
    create or replace function conflict() returns trigger language plpgsql as $$
    begin
      if nextval('conflicts') <= ${count} then raise exception 'victim' using errcode = '${sqlstate}'; end if;
      return new;
    end $$`);
  await pool.query(
    `create or replace trigger conflict before insert on ${table} for each row execute function conflict()`,
  );
}

test('the victim of a deadlock is tried again, and both changes are there', async () => {
  const both = Promise.withResolvers<void>();
  let waiting = 0;
  const hit = (first: number, second: number) =>
    inTransaction(pool, async (tx) => {
      await tx.query('update pairs set hits = hits + 1 where id = $1', [first]);
      waiting += 1;
      if (waiting === 2) both.resolve();
      await both.promise;
      await tx.query('update pairs set hits = hits + 1 where id = $1', [second]);
    });
  await Promise.all([hit(1, 2), hit(2, 1)]);
  expect(waiting).toBe(3);
  expect((await pool.query('select hits from pairs order by id')).rows).toEqual([{ hits: 2 }, { hits: 2 }]);
});

test.each(['40001', '40P01'])(
  'a checkpoint whose statement fails with %s is written all the same',
  async (sqlstate) => {
    await conflicts('checkpoints', 2, sqlstate);
    const run = await insertRunningRun(pool);
    const { saver } = openSaver(pool, { runId: run.runId, epoch: run.epoch, metadata: {} }, () => undefined);
    const checkpoint = { ...emptyCheckpoint(), id: randomUUID() };
    const config = { configurable: { thread_id: run.threadId, checkpoint_ns: '' } };
    await saver.put(config, checkpoint, { source: 'input', step: -1, parents: {} }, {});
    expect((await saver.getTuple(config))?.checkpoint.id).toBe(checkpoint.id);
  },
);

test('an edit whose checkpoint is the victim of a conflict is made again as a whole', async () => {
  const run = await insertRunningRun(pool);
  await endRun(pool, run);
  await pool.query(`update threads set owner = 'anna', run_count = 1 where id = $1::uuid`, [run.threadId]);
  await conflicts('checkpoints', 1, '40P01');
  const place = { owner: 'anna', threadId: run.threadId, lineageId: run.threadId, graphId: 'chat', metadata: {} };
  const config = { configurable: { thread_id: run.threadId, checkpoint_ns: '' } };
  let tries = 0;
  await edit(pool, place, async (saver) => {
    tries += 1;
    await saver.put(config, emptyCheckpoint(), { source: 'update', step: 0, parents: {} }, {});
  });
  expect(tries).toBe(2);
  const { rows } = await pool.query(`select 1 from checkpoints where thread_id = $1`, [run.threadId]);
  expect(rows).toHaveLength(1);
});

test('of runs whose claim is the victim of a conflict as a batch, one is claimed all the same', async () => {
  const runs = [await insertRunningRun(pool), await insertRunningRun(pool)];
  const ids = runs.map(({ runId }) => runId);
  await pool.query(`update runs set status = 'queued', worker_id = null where id = any($1::uuid[])`, [ids]);
  // Whichever two rows one statement changes, one of them is refused.
  await pool.query(`alter sequence conflicts restart`);
  await pool.query(`
    create or replace function odd() returns trigger language plpgsql as $$
    begin
      if new.status = 'running' and nextval('conflicts') % 2 = 0 then raise exception 'victim' using errcode = '40001'; end if;
      return new;
    end $$`);
  await pool.query('create or replace trigger odd before update on runs for each row execute function odd()');
  const worker = randomUUID();
  const claimed = [...(await claim(pool, worker, 10)), ...(await claim(pool, worker, 10))];
  expect(claimed.map(({ id }) => id).sort()).toEqual([...ids].sort());
  await pool.query('drop trigger odd on runs');
});

test('a conflict that does not end is reported as what it is: worth another try', async () => {
  await conflicts('pairs', 1_000, '40001');
  const failed = await inTransaction(pool, (tx) => tx.query('insert into pairs values (3)')).catch((error) => error);
  expect(codeOf(failed)).toBe('40001');
  expect(isUnavailable(failed)).toBe(true);
});
