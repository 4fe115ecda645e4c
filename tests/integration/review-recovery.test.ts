/** What recovery, claims and reruns stand on when something else is broken as well. */
import { randomUUID } from 'node:crypto';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { cursorOf } from '#src/events/cursor.ts';
import { createHub } from '#src/events/live-hub.ts';
import type { EventLog } from '#src/events/log.ts';
import { createMemoryLog } from '#src/events/memory-log.ts';
import { createRedisLog } from '#src/events/redis-log.ts';
import { openSaver } from '#src/graphs/checkpoints.ts';
import type { GraphRegistry } from '#src/graphs/graph.ts';
import type { Pool } from '#src/postgres/pool.ts';
import { createRedis, type RedisClients } from '#src/redis/clients.ts';
import type { AdmitDeps } from '#src/runs/admission.ts';
import { admitMessage } from '#src/runs/admit.ts';
import { claim } from '#src/runs/claim.ts';
import { type CoordinatorDeps, createCoordinator } from '#src/runs/coordinator.ts';
import { findRun } from '#src/runs/queries.ts';
import { createRecovery, type Recovery } from '#src/runs/recover.ts';
import { admitRerun } from '#src/runs/rerun.ts';
import type { Run } from '#src/runs/run.ts';
import { progressOf, readPast } from '#src/runs/takeover.ts';
import { createWorker } from '#src/runs/worker.ts';
import { createDatabase, type TestDatabase } from '#tests/support/database.ts';
import { endRun, insertRunningRun, type LedgerRun } from '#tests/support/ledger.ts';
import { silent, testPool } from '#tests/support/pools.ts';
import { until } from '#tests/support/until.ts';

let database: TestDatabase;
let pool: Pool;
let redisAway: RedisClients;
let admit: AdmitDeps;

beforeAll(async () => {
  database = await createDatabase();
  pool = testPool(database.url);
  // Nothing listens there.
  redisAway = createRedis({ url: 'redis://127.0.0.1:1', logger: silent });
  const graphs: GraphRegistry = {
    ids: () => ['chat'],
    has: () => true,
    contextOf: () => 'checkpoint',
    instantiate: () => Promise.reject(new Error('nothing is executed here')),
  };
  admit = { pool, graphs, defaultGraph: 'chat', webhooks: { allowPrivate: false, secret: null } };
});
afterAll(async () => {
  await redisAway.close();
  await pool.end();
  await database.drop();
});

const rowOf = async (id: string): Promise<Run> => (await findRun(pool, id)) as Run;

function recoveryWith(log: EventLog): Recovery {
  return createRecovery({
    pool,
    workerId: randomUUID(),
    maxTakeovers: 3,
    putBack: { pool, log, logger: silent },
    finalize: {
      pool,
      log,
      hub: createHub({ log, logger: silent }),
      streamTtlMs: 1_000,
      unsent: () => false,
      logger: silent,
      onEnded: () => {},
    },
    leaseAgeMs: () => 60_000,
    wake: () => {},
    logger: silent,
  });
}

/** A worker that owns the run and, unless it lives, has been silent for a minute. */
async function insertOwner(runId: string, lives = false): Promise<void> {
  await pool.query(
    `insert into workers (id, lock_key, host, pid, log_kind, roles, renewed_at, expires_at)
     select worker_id, 0, 'host', 1, 'redis', '{worker}', clock_timestamp() - $2 * interval '1 minute',
            clock_timestamp() + interval '1 minute' - $2 * interval '2 minutes'
     from runs where id = $1::uuid`,
    [runId, lives ? 0 : 1],
  );
}

test('of two dead workers, each with an end that is not sealed, both lose their runs while the log is away', async () => {
  const log = createRedisLog({ redis: redisAway, logger: silent });
  const owned: LedgerRun[] = [];
  for (let n = 0; n < 2; n += 1) {
    const ended = await insertRunningRun(pool);
    await endRun(pool, ended);
    const run = await insertRunningRun(pool);
    await pool.query(
      'update runs set worker_id = (select worker_id from runs where id = $1::uuid) where id = $2::uuid',
      [ended.runId, run.runId],
    );
    await insertOwner(run.runId);
    owned.push(run);
  }
  const recovery = recoveryWith(log);
  recovery.start();
  const statuses = async (): Promise<string[]> =>
    Promise.all(owned.map(async (run) => (await rowOf(run.runId)).status));
  await until(async () => (await statuses()).includes('queued'), {
    timeoutMs: 20_000,
    message: 'a run to be put back',
  });
  // One look deals with both, although neither end can be sealed.
  await recovery.stop();
  expect(await statuses()).toEqual(['queued', 'queued']);
});

test('an edit is not put back, where nobody would claim it: another run of the dead worker is', async () => {
  const [edit, run] = [await insertRunningRun(pool), await insertRunningRun(pool)];
  await pool.query(
    `update runs set kind = 'edit', worker_id = (select worker_id from runs where id = $2::uuid) where id = $1::uuid`,
    [edit.runId, run.runId],
  );
  await insertOwner(run.runId);
  const log = createMemoryLog({ memoryLimitBytes: 1_000_000 });
  const recovery = recoveryWith(log);
  recovery.start();
  await until(async () => (await rowOf(run.runId)).status === 'queued', { message: 'the run to be put back' });
  await recovery.stop();
  expect((await rowOf(edit.runId)).status).toBe('running');
});

test('a worker its peers take for dead claims nothing', async () => {
  const { run } = await admitMessage(admit, { owner: 'anna', thread_id: null, content: 'hello' });
  // Nothing is claimed, so nothing of what executes is needed.
  const deps = {
    workerId: randomUUID(),
    pool,
    concurrency: 5,
    runTimeoutMs: 1_000,
    present: () => false,
    logger: silent,
  };
  const coordinator = createCoordinator(deps as unknown as CoordinatorDeps);
  coordinator.start();
  expect(coordinator.hasRoom()).toBe(false);
  await coordinator.drain(0);
  expect((await rowOf(run.id)).status).toBe('queued');
});

test('a worker is there for its peers from its first renewal until it stops', async () => {
  let renewals = 0;
  const worker = createWorker({
    databaseUrl: database.url,
    logKind: 'redis',
    roles: ['worker'],
    logger: silent,
    onOwned: () => {
      renewals += 1;
    },
    onWake: () => {},
  });
  expect(worker.present()).toBe(false);
  await worker.start();
  await until(() => renewals > 0, { message: 'the first renewal' });
  expect(worker.present()).toBe(true);
  await worker.stop();
  expect(worker.present()).toBe(false);
});

async function put(run: LedgerRun, id: string, source: 'update' | 'loop' | 'input'): Promise<void> {
  const { saver } = openSaver(pool, { runId: run.runId, epoch: run.epoch, metadata: { run_id: run.runId } }, () => {});
  const checkpoint = { v: 4, id, ts: '', channel_values: {}, channel_versions: {}, versions_seen: {} };
  await saver.put({ configurable: { thread_id: run.threadId } }, checkpoint, { source, step: 0, parents: {} }, {});
}

test('a repair before the input is no progress, and a closed lineage is not gone on with as if all was well', async () => {
  const run = await insertRunningRun(pool);
  await put(run, 'a', 'update');
  expect(await progressOf(pool, await rowOf(run.runId))).toMatchObject({ own: false, continues: false, closed: false });
  await put(run, 'b', 'input');
  expect(await progressOf(pool, await rowOf(run.runId))).toMatchObject({ own: true, continues: true, closed: false });
  await put(run, 'c', 'update');
  expect(await progressOf(pool, await rowOf(run.runId))).toMatchObject({ own: true, closed: true });
});

test('what former epochs have put into the log is counted, for its limits are the run’s', async () => {
  const log = createMemoryLog({ memoryLimitBytes: 1_000_000 });
  const run = await rowOf((await insertRunningRun(pool, { epoch: 2 })).runId);
  const payloads = ['{"type":"run.requeued","reason":"drain"}', '{"type":"graph.part","data":"é"}'];
  const append = (n: number, payload: string) =>
    log.append([{ runId: run.id, entries: [{ cursor: cursorOf(1, n), payload }] }]);
  for (const [n, payload] of payloads.entries()) await append(n, payload);
  const bytes = Buffer.byteLength(payloads.join(''));
  expect((await readPast(log, run, silent)).written).toEqual({ events: 2, bytes, torn: false });
  const torn = '{"type":"log.torn","reason":"max_events"}';
  await append(2, torn);
  expect((await readPast(log, run, silent)).written).toEqual({ events: 3, bytes: bytes + torn.length, torn: true });
});

test('a second rerun goes back too when the run that opened the turn was cancelled before its claim', async () => {
  const end = (id: string) =>
    pool.query(`update runs set status = 'cancelled', ended_at = clock_timestamp(), log_end = 0 where id = $1::uuid`, [
      id,
    ]);
  const { run: opened } = await admitMessage(admit, { owner: 'bert', thread_id: null, content: 'hello' });
  await end(opened.id);
  const { run: first } = await admitRerun(admit, { owner: 'bert', thread_id: opened.thread_id });
  await until(async () => (await claim(pool, randomUUID(), 10)).some((run) => run.id === first.id), {
    message: 'the rerun to be claimed',
  });
  await put({ runId: first.id, threadId: first.thread_id, epoch: 1 }, 'x', 'input');
  await end(first.id);
  await admitRerun(admit, { owner: 'bert', thread_id: opened.thread_id });
  const { rows } = await pool.query('select tip_checkpoint_id from lineages where id = $1::uuid', [opened.lineage_id]);
  expect(rows).toEqual([{ tip_checkpoint_id: '' }]);
});
