import { randomUUID } from 'node:crypto';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { cursorOf } from '#src/events/cursor.ts';
import { createHub } from '#src/events/live-hub.ts';
import { createMemoryLog } from '#src/events/memory-log.ts';
import type { GraphRegistry } from '#src/graphs/graph.ts';
import type { Pool } from '#src/postgres/pool.ts';
import { admitMessage } from '#src/runs/admit.ts';
import { claim } from '#src/runs/claim.ts';
import { type FinalizeDeps, finalize, sealIfMissing } from '#src/runs/finalize.ts';
import { emptyOutcome, type Outcome } from '#src/runs/outcome.ts';
import { createDatabase, type TestDatabase } from '#tests/support/database.ts';
import { insertRunningRun, type LedgerRun } from '#tests/support/ledger.ts';
import { silent, testPool } from '#tests/support/pools.ts';
import { until } from '#tests/support/until.ts';

let database: TestDatabase;
let pool: Pool;
let deps: FinalizeDeps;

beforeAll(async () => {
  database = await createDatabase();
  pool = testPool(database.url, 8);
  const log = createMemoryLog({ memoryLimitBytes: 1_000_000 });
  const hub = createHub({ log, logger: silent });
  deps = { pool, log, hub, streamTtlMs: 60_000, unsent: () => false, logger: silent, onEnded: () => undefined };
});
afterAll(async () => {
  await deps.hub.close();
  await deps.log.close();
  await pool.end();
  await database.drop();
});

const succeeded: Outcome = {
  ...emptyOutcome('succeeded'),
  held: [{ type: 'graph.part', mode: 'updates', ns: [], data: null }],
};
const end = (run: LedgerRun, outcome = succeeded) =>
  finalize(deps, run.runId, { owner: true, epoch: run.epoch, given: 3 }, outcome);
const row = async (run: LedgerRun) =>
  (await pool.query('select status, epoch, log_end from runs where id = $1::uuid', [run.runId])).rows[0];

/** Holds the thread's row, begins to finalize, lets `meanwhile` happen, and lets go. */
async function whileTheThreadIsHeld(run: LedgerRun, meanwhile: (pool: Pool) => Promise<unknown>) {
  const holder = await pool.connect();
  try {
    await holder.query('begin');
    await holder.query('select 1 from threads where id = $1::uuid for no key update', [run.threadId]);
    const finalizing = end(run);
    await until(
      async () => {
        const { rows } = await pool.query(
          `select 1 from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`,
        );
        return rows.length > 0;
      },
      { message: 'the end of the run to wait for its thread' },
    );
    await meanwhile(pool);
    await holder.query('commit');
    return await finalizing;
  } finally {
    holder.release();
  }
}

describe('finalize', () => {
  test('stores the end, and then the log has what was held and the seal', async () => {
    const run = await insertRunningRun(pool);
    expect(await end(run)).toMatchObject({ applied: true, run: { status: 'succeeded', log_end: 4 } });
    const { entries } = await deps.log.read(run.runId, -1, 10);
    expect(entries.map((entry) => [entry.cursor, JSON.parse(entry.payload).type])).toEqual([
      [3, 'graph.part'],
      [4, 'run.sealed'],
    ]);
  });

  test('seals after the events that wait to be sent, and tells its own viewers before', async () => {
    const run = await insertRunningRun(pool);
    let waiting = true;
    const viewer = await deps.hub.attach(run.runId, cursorOf(1, 2));
    const by = { owner: true, epoch: run.epoch, given: 3 } as const;
    await finalize({ ...deps, unsent: (id) => id === run.runId && waiting }, run.runId, by, succeeded);
    const told = await viewer.next(5_000, new AbortController().signal);
    expect(told.at(-1)).toMatchObject({ entry: { cursor: cursorOf(1, 4), event: { type: 'run.sealed' } } });
    // What waited is sent now. After the end the log would refuse it.
    expect(await deps.log.last(run.runId)).toBeNull();
    const late = { cursor: cursorOf(1, 2), payload: '{"type":"run.requeued","reason":"drain"}' };
    expect(await deps.log.append([{ runId: run.runId, entries: [late] }])).toEqual(['appended']);
    waiting = false;
    await until(async () => (await deps.log.last(run.runId))?.cursor === cursorOf(1, 4), { message: 'the seal' });
    viewer.close();
  });

  test('an owner whose epoch is over writes nothing and is told what the run is now', async () => {
    const run = await insertRunningRun(pool, { epoch: 2 });
    const lost = await end({ ...run, epoch: 1 });
    expect(lost).toMatchObject({ applied: false, survivor: { status: 'running', epoch: 2 } });
    expect(await row(run)).toEqual({ status: 'running', epoch: 2, log_end: null });
    expect((await deps.log.read(run.runId, -1, 10)).entries).toEqual([]);
  });

  test('waits for the thread before it holds the run', async () => {
    const run = await insertRunningRun(pool);
    const result = await whileTheThreadIsHeld(run, (others) =>
      others.query('select 1 from runs where id = $1::uuid for no key update nowait', [run.runId]),
    );
    expect(result).toMatchObject({ applied: true });
  });

  test('a cancel that is stamped while it waits wins', async () => {
    const run = await insertRunningRun(pool);
    const result = await whileTheThreadIsHeld(run, (others) =>
      others.query('update runs set cancel_requested_at = clock_timestamp() where id = $1::uuid', [run.runId]),
    );
    // Held questions are dropped, so the seal is the next id.
    expect(result).toMatchObject({ applied: true, run: { status: 'cancelled', log_end: 3 } });
  });

  test('what must follow the end is queued with it', async () => {
    const run = await insertRunningRun(pool);
    await pool.query('update runs set webhook = $2 where id = $1::uuid', [run.runId, 'https://hooks.example.org/a']);
    expect(await end(run)).toMatchObject({ applied: true });
    const { rows } = await pool.query('select status from outbox where run_id = $1::uuid', [run.runId]);
    expect(rows).toEqual([{ status: 'pending' }]);
  });

  test('a run that is put back while it waits is lost', async () => {
    const run = await insertRunningRun(pool);
    const result = await whileTheThreadIsHeld(run, (others) =>
      others.query(`update runs set status = 'queued', epoch = epoch + 1, worker_id = null where id = $1::uuid`, [
        run.runId,
      ]),
    );
    expect(result).toMatchObject({ applied: false, survivor: { status: 'queued', epoch: 2 } });
  });
});

test('a log whose owner died right after the seal is not kept for ever', async () => {
  const run = await insertRunningRun(pool);
  const result = await end(run, { ...succeeded, held: [] });
  if (!result.applied) throw new Error('not applied');
  const { log_end: cursor } = result.run;
  if (cursor === null) throw new Error('no end of the log');
  // As the owner leaves it: the seal is there, and nothing says when the log may go.
  await deps.log.remove(run.runId);
  await deps.log.append([{ runId: run.runId, entries: [{ cursor, payload: '{"type":"run.sealed"}' }] }]);
  await sealIfMissing({ ...deps, streamTtlMs: 10 }, result.run);
  await until(async () => (await deps.log.last(run.runId)) === null, { message: 'the log to expire' });
});

test('what is prepared goes on working when a newer version adds a column to the runs', async () => {
  const own = await createDatabase();
  const one = testPool(own.url, 1);
  const graphs: GraphRegistry = {
    ids: () => ['chat'],
    has: () => true,
    contextOf: () => 'checkpoint',
    instantiate: () => Promise.reject(new Error('nothing is executed here')),
  };
  const admitDeps = { pool: one, graphs, defaultGraph: 'chat', webhooks: { allowPrivate: false, secret: null } };
  try {
    const life = async (threadId: string | null): Promise<string> => {
      const { run } = await admitMessage(admitDeps, { owner: 'anna', thread_id: threadId, content: 'hello' });
      const claimed = await claim(one, randomUUID(), 1);
      expect(claimed.map((next) => next.id)).toEqual([run.id]);
      const by = { owner: true, epoch: 1, given: 0 } as const;
      expect(await finalize({ ...deps, pool: one }, run.id, by, succeeded)).toMatchObject({ applied: true });
      return run.thread_id;
    };
    const threadId = await life(null);
    await life(threadId);
    await one.query('alter table runs add column added_later text');
    await life(null);
    await life(threadId);
  } finally {
    await one.end();
    await own.drop();
  }
});
