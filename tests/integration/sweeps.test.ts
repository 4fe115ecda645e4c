/** What time removes, and what it must leave: on one process and on several at once. */
import { randomUUID } from 'node:crypto';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { createHub } from '#src/events/live-hub.ts';
import { createMemoryLog } from '#src/events/memory-log.ts';
import { enqueue, settle, takeDue } from '#src/outbox/outbox.ts';
import type { Pool } from '#src/postgres/pool.ts';
import { inTransaction } from '#src/postgres/transaction.ts';
import { type FinalizeDeps, finalize } from '#src/runs/finalize.ts';
import { emptyOutcome } from '#src/runs/outcome.ts';
import type { Run } from '#src/runs/run.ts';
import { createSweeps, type SweepConfig, type SweepDeps } from '#src/runs/sweeps.ts';
import { createDatabase, type TestDatabase } from '#tests/support/database.ts';
import { endRun, insertRunningRun, type LedgerRun } from '#tests/support/ledger.ts';
import { NO_GRAPHS } from '#tests/support/no-graphs.ts';
import { silent, testPool } from '#tests/support/pools.ts';
import { effectOf, memoryLogger } from './outbox-rig.ts';

let database: TestDatabase;
let pool: Pool;
const log = createMemoryLog({ memoryLimitBytes: 1024 ** 2 });
const hub = createHub({ log, logger: silent });
let finalizeDeps: FinalizeDeps;

beforeAll(async () => {
  database = await createDatabase();
  pool = testPool(database.url, 12);
  finalizeDeps = { pool, log, hub, streamTtlMs: 60_000, unsent: () => false, logger: silent, onEnded: () => undefined };
});
afterAll(async () => {
  await hub.close();
  await log.close();
  await pool.end();
  await database.drop();
});
beforeEach(async () => {
  await pool.query('delete from threads');
  await pool.query('delete from workers');
  await pool.query('delete from outbox');
});

const HOUR_MS = 3_600_000;
const DAY_MS = 24 * HOUR_MS;
const CONFIG: SweepConfig = {
  runs: { preparedTtlMs: HOUR_MS },
  events: { streamTtlMs: HOUR_MS },
  retention: { outboxDeliveredMs: 7 * DAY_MS, outboxDeadMs: 30 * DAY_MS, threadsMs: null },
  checkpoints: { keep: null },
};

/** As the engine wires it. */
const cancelPrepared = (run: Run) =>
  finalize(
    finalizeDeps,
    run.id,
    { owner: false, epoch: run.epoch, status: 'prepared' },
    emptyOutcome('cancelled', { reason: 'NEVER_STARTED' }),
  );
function sweeps(config: Partial<SweepConfig> = {}, deps: Partial<SweepDeps> = {}) {
  return createSweeps({
    pool,
    log,
    graphs: NO_GRAPHS,
    config: { ...CONFIG, ...config },
    cancelPrepared,
    logger: silent,
    ...deps,
  });
}
const sweep = (config?: Partial<SweepConfig>, deps?: Partial<SweepDeps>) => sweeps(config, deps).sweep();
const idle = (days: number): Partial<SweepConfig> => ({ retention: { ...CONFIG.retention, threadsMs: days * DAY_MS } });

const rowsOf = async (sql: string, values: unknown[] = []) => (await pool.query(sql, values)).rows;
const statusOf = async (run: LedgerRun) =>
  (await rowsOf('select status, reason, epoch from runs where id = $1::uuid', [run.runId]))[0];

describe('prepared runs', () => {
  async function prepared(ageHours: number): Promise<LedgerRun> {
    const run = await insertRunningRun(pool, { epoch: 0 });
    await pool.query(
      `update runs set status = 'prepared', worker_id = null, created_at = clock_timestamp() - $2 * interval '1 hour'
       where id = $1::uuid`,
      [run.runId, ageHours],
    );
    return run;
  }

  test('that nobody started in time are cancelled through finalize, others are not', async () => {
    const [old, young] = [await prepared(2), await prepared(0.5)];
    const running = await insertRunningRun(pool);
    await pool.query(`update runs set created_at = clock_timestamp() - interval '1 day' where id = $1::uuid`, [
      running.runId,
    ]);
    expect((await sweep()).prepared).toBe(1);
    expect(await statusOf(old)).toEqual({ status: 'cancelled', reason: 'NEVER_STARTED', epoch: 1 });
    expect(await statusOf(young)).toMatchObject({ status: 'prepared' });
    expect(await statusOf(running)).toMatchObject({ status: 'running' });
    // Its log has the seal, as that of every ended run.
    const { entries } = await log.read(old.runId, -1, 10);
    expect(entries.map(({ payload }) => JSON.parse(payload).type)).toEqual(['run.sealed']);
  });

  test('are ended once by three sweeps at once', async () => {
    const runs = [];
    for (let n = 0; n < 10; n += 1) runs.push(await prepared(2));
    await Promise.all([sweep(), sweep(), sweep()]);
    for (const run of runs) expect(await statusOf(run)).toMatchObject({ status: 'cancelled', epoch: 1 });
  });

  test('that was started a moment ago is left alone', async () => {
    const run = await prepared(2);
    await sweep(
      {},
      {
        async cancelPrepared(found) {
          await pool.query(`update runs set status = 'queued' where id = $1::uuid`, [found.id]);
          return cancelPrepared(found);
        },
      },
    );
    expect(await statusOf(run)).toEqual({ status: 'queued', reason: null, epoch: 0 });
  });

  test('that cannot be ended is logged and keeps no other from its end', async () => {
    const [poison, other] = [await prepared(3), await prepared(2)];
    const { logger, text } = memoryLogger();
    const swept = await sweep(
      {},
      {
        logger,
        cancelPrepared: (run) => (run.id === poison.runId ? Promise.reject(new Error('poison')) : cancelPrepared(run)),
      },
    );
    expect(swept.prepared).toBe(1);
    expect(await statusOf(other)).toMatchObject({ status: 'cancelled' });
    expect(text()).toContain(poison.runId);
  });
});

describe('workers', () => {
  async function worker(expiredMinutes: number): Promise<string> {
    const id = randomUUID();
    await pool.query(
      `insert into workers (id, lock_key, host, pid, log_kind, roles, expires_at)
       values ($1::uuid, 1, 'host', 1, 'memory', '{worker}', clock_timestamp() - $2 * interval '1 minute')`,
      [id, expiredMinutes],
    );
    return id;
  }
  const left = async () => new Set((await rowsOf('select id from workers')).map((row) => row.id));

  test('dead for an hour go, unless they still own a run', async () => {
    const [gone, recent, owner, alive] = [await worker(61), await worker(59), await worker(600), await worker(-1)];
    const run = await insertRunningRun(pool);
    await pool.query('update runs set worker_id = $2::uuid where id = $1::uuid', [run.runId, owner]);
    expect((await sweep()).workers).toBe(1);
    expect(await left()).toEqual(new Set([recent, owner, alive]));
    expect(await left()).not.toContain(gone);
    await endRun(pool, run);
    expect((await sweep()).workers).toBe(1);
    expect(await left()).toEqual(new Set([recent, alive]));
  });
});

describe('settled effects', () => {
  test('go after their time, in as many batches as it takes', async () => {
    await inTransaction(pool, async (tx) => {
      for (let n = 0; n < 450; n += 1) await enqueue(tx, effectOf());
    });
    const taken = await takeDue(pool, { kinds: ['note'], limit: 450, perLane: 450, busy: new Map(), leaseMs: 60_000 });
    await Promise.all(taken.map((delivery) => settle(pool, delivery, { outcome: 'delivered' })));
    await pool.query(`update outbox set ended_at = clock_timestamp() - interval '8 days'`);
    await inTransaction(pool, (tx) => enqueue(tx, effectOf()));
    expect((await sweep()).effects).toBe(450);
    expect(await rowsOf('select status from outbox')).toEqual([{ status: 'pending' }]);
  });
});

describe('threads', () => {
  /** A thread with a turn's worth of rows of every sort, without activity for so many days. */
  async function thread(days: number, live = false): Promise<LedgerRun> {
    const run = await insertRunningRun(pool);
    const { threadId } = run;
    await pool.query(
      `insert into checkpoints (thread_id, checkpoint_id, checkpoint) values ($1, 'c1', '{"v": 4, "channel_versions": {}}')`,
      [threadId],
    );
    await pool.query(
      `insert into checkpoint_blobs (thread_id, channel, version, type) values ($1, 'c', '1', 'empty')`,
      [threadId],
    );
    await pool.query(
      `insert into checkpoint_writes (thread_id, checkpoint_id, task_id, idx, channel, blob) values ($1, 'c1', 't', 0, 'c', '')`,
      [threadId],
    );
    await log.append([{ runId: run.runId, entries: [{ cursor: 0, payload: '{"type":"run.started"}' }] }]);
    if (!live) await endRun(pool, run);
    await pool.query(`update threads set active_at = clock_timestamp() - $2 * interval '1 day' where id = $1::uuid`, [
      threadId,
      days,
    ]);
    return run;
  }
  const left = async () => new Set((await rowsOf('select id from threads')).map((row) => row.id));
  const checkpointRows = async ({ threadId }: LedgerRun) => {
    const counts = ['checkpoints', 'checkpoint_blobs', 'checkpoint_writes'].map(async (table) => {
      const [row] = await rowsOf(`select count(*)::int as count from ${table} where thread_id = $1`, [threadId]);
      return row.count;
    });
    return Promise.all(counts);
  };

  test('stay for ever unless a time is set', async () => {
    await thread(10_000);
    expect((await sweep()).threads).toBeNull();
    expect((await left()).size).toBe(1);
  });

  test('past their time go with their checkpoints, runs and logs; active ones and live ones stay', async () => {
    const [old, young, live] = [await thread(31), await thread(29), await thread(31, true)];
    expect((await sweep(idle(30))).threads).toBe(1);
    expect(await left()).toEqual(new Set([young.threadId, live.threadId]));
    expect(await checkpointRows(old)).toEqual([0, 0, 0]);
    expect(await checkpointRows(young)).toEqual([1, 1, 1]);
    expect(await rowsOf('select 1 from runs where id = $1::uuid', [old.runId])).toEqual([]);
    expect((await log.read(old.runId, -1, 1)).exists).toBe(false);
    expect((await log.read(young.runId, -1, 1)).exists).toBe(true);
  });

  test.each(['prepared', 'queued'])('with a %s run stay', async (status) => {
    const { threadId, runId } = await thread(31, true);
    await pool.query('update runs set status = $2, worker_id = null where id = $1::uuid', [runId, status]);
    expect((await sweep(idle(30))).threads).toBe(0);
    expect(await left()).toEqual(new Set([threadId]));
  });

  test('that somebody is about to use stay', async () => {
    const { threadId } = await thread(31);
    const holder = await pool.connect();
    try {
      await holder.query('begin');
      await holder.query('select 1 from threads where id = $1::uuid for no key update', [threadId]);
      expect((await sweep(idle(30))).threads).toBe(0);
      await holder.query('update threads set active_at = clock_timestamp() where id = $1::uuid', [threadId]);
      await holder.query('commit');
    } finally {
      holder.release();
    }
    expect((await sweep(idle(30))).threads).toBe(0);
    expect(await left()).toEqual(new Set([threadId]));
  });

  describe('with a time of their own', () => {
    /** Set `setDays` ago to `days`. */
    const give = ({ threadId }: LedgerRun, days: number, setDays: number, strategy = 'delete') =>
      pool.query(
        `update threads set ttl_minutes = $2 * 1440, ttl_strategy = $3, ttl_set_at = clock_timestamp() - $4 * interval '1 day'
         where id = $1::uuid`,
        [threadId, days, strategy, setDays],
      );

    test('go when it is past since the last activity, and since it was set; live ones stay', async () => {
      const [old, active, justSet, live] = [
        await thread(31),
        await thread(1),
        await thread(31),
        await thread(31, true),
      ];
      for (const run of [old, active, live]) await give(run, 30, 40);
      await give(justSet, 30, 1);
      expect(await sweep()).toMatchObject({ expired: 1, threads: null });
      expect(await left()).toEqual(new Set([active.threadId, justSet.threadId, live.threadId]));
      expect(await checkpointRows(old)).toEqual([0, 0, 0]);
    });

    test('keep the latest state where that was asked for, and are pruned once', async () => {
      const run = await thread(31);
      await give(run, 30, 40, 'keep_latest');
      await pool.query(
        `insert into checkpoints (thread_id, checkpoint_id, checkpoint)
         select $1, 'c' || n, '{"v": 4, "channel_versions": {}}' from generate_series(2, 5) n`,
        [run.threadId],
      );
      expect(await sweep()).toMatchObject({ expired: 0, pruned: 1 });
      const ids = await rowsOf('select checkpoint_id as id from checkpoints where thread_id = $1', [run.threadId]);
      expect(ids).toEqual([{ id: 'c5' }]);
      expect((await sweep()).pruned).toBe(0);
      // After the next activity, its time begins anew.
      await pool.query(`update threads set active_at = active_at + interval '12 hours'`);
      expect((await sweep()).pruned).toBe(1);
    });
  });

  test('are deleted once by three sweeps at once', async () => {
    for (let n = 0; n < 20; n += 1) await thread(31);
    const counts = (await Promise.all([sweep(idle(30)), sweep(idle(30)), sweep(idle(30))])).map(
      ({ threads }) => threads,
    );
    expect(counts.reduce<number>((sum, count) => sum + (count ?? Number.NaN), 0)).toBe(20);
    expect(await left()).toEqual(new Set());
  });
});

describe('a sweep', () => {
  test('takes old checkpoints when a number is set', async () => {
    const run = await insertRunningRun(pool);
    await pool.query(
      `insert into checkpoints (thread_id, checkpoint_id, checkpoint)
       select $1, 'c' || n, '{"v": 4, "channel_versions": {}}' from generate_series(1, 5) n`,
      [run.threadId],
    );
    expect((await sweep({ checkpoints: { keep: 2 } })).checkpoints).toBe(0);
    await endRun(pool, run);
    expect((await sweep()).checkpoints).toBeNull();
    expect((await sweep({ checkpoints: { keep: 2 } })).checkpoints).toBe(3);
    expect(
      await rowsOf('select checkpoint_id as id from checkpoints where thread_id = $1 order by seq', [run.threadId]),
    ).toEqual([{ id: 'c4' }, { id: 'c5' }]);
  });

  test('whose one step fails goes on with the others and says so', async () => {
    const { logger, text } = memoryLogger();
    await insertRunningRun(pool).then(async (run) => {
      await endRun(pool, run);
      await pool.query(`update threads set active_at = clock_timestamp() - interval '1 year'`);
    });
    await pool.query('alter table workers rename column expires_at to expires_at_hidden');
    try {
      const swept = await sweep(idle(30), { logger });
      expect(swept).toMatchObject({ effects: 0, workers: null, prepared: 0, threads: 1 });
      expect(text()).toContain('"step":"workers"');
    } finally {
      await pool.query('alter table workers rename column expires_at_hidden to expires_at');
    }
  });

  test('does nothing more after stop', async () => {
    const stopped = sweeps(idle(30));
    stopped.start();
    await stopped.stop();
    const run = await insertRunningRun(pool);
    await endRun(pool, run);
    await pool.query(`update threads set active_at = clock_timestamp() - interval '1 year'`);
    expect((await stopped.sweep()).threads).toBe(0);
  });
});
