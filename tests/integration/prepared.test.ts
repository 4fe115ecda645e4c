/** Prepared runs: they wait for their start, once; what comes after them replaces them; nobody else is held up by them. */
import { randomUUID } from 'node:crypto';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { BEFORE_START } from '#src/events/cursor.ts';
import { createHub } from '#src/events/live-hub.ts';
import { createMemoryLog } from '#src/events/memory-log.ts';
import type { Pool } from '#src/postgres/pool.ts';
import { admitMessage } from '#src/runs/admit.ts';
import { claim } from '#src/runs/claim.ts';
import { finalize } from '#src/runs/finalize.ts';
import { emptyOutcome } from '#src/runs/outcome.ts';
import { createRowWatch } from '#src/runs/row-watch.ts';
import type { MessageRequest, Run } from '#src/runs/run.ts';
import { createRunService, type RunService, type RunServiceDeps } from '#src/runs/service.ts';
import { startPrepared } from '#src/runs/start.ts';
import { createSweeps } from '#src/runs/sweeps.ts';
import { createEndings } from '#src/runs/wait.ts';
import { createDatabase, type TestDatabase } from '#tests/support/database.ts';
import { NO_GRAPHS } from '#tests/support/no-graphs.ts';
import { silent, testPool } from '#tests/support/pools.ts';

let database: TestDatabase;
let pool: Pool;
let deps: RunServiceDeps;
let runs: RunService;
let wakes = 0;

beforeAll(async () => {
  database = await createDatabase();
  pool = testPool(database.url, 8);
  const log = createMemoryLog({ memoryLimitBytes: 1_000_000 });
  const hub = createHub({ log, logger: silent });
  const graphs = { ...NO_GRAPHS, has: () => true };
  const ends = { pool, log, hub, streamTtlMs: 60_000, unsent: () => false, logger: silent, onEnded: () => undefined };
  deps = {
    pool,
    log,
    admit: { pool, graphs, defaultGraph: 'chat', webhooks: { allowPrivate: false, secret: null } },
    cancel: { ...ends, hintOwner: () => undefined },
    follow: { log, hub, rows: createRowWatch(pool), logger: silent },
    endings: createEndings(),
    wake: () => {
      wakes += 1;
    },
    logger: silent,
  };
  runs = createRunService(deps);
});
afterAll(async () => {
  await deps.cancel.hub.close();
  await deps.log.close();
  await pool.end();
  await database.drop();
});

const message = (more: Partial<MessageRequest> = {}): MessageRequest => ({
  owner: 'anna',
  thread_id: null,
  content: 'hello',
  ...more,
});
const prepare = async (more: Partial<MessageRequest> = {}): Promise<Run> =>
  (await runs.send(message({ prepared: true, ...more }))).run;
const statusOf = async ({ id }: Run) => (await runs.get('anna', id)).status;
const claimed = async ({ id }: Run): Promise<boolean> =>
  (await claim(pool, randomUUID(), 100)).some((run) => run.id === id);
const NOT_PREPARED = { code: 'NOT_PREPARED' };

describe('a prepared run', () => {
  test('wakes nobody and is not claimed before its start; then it is, and a second start is refused', async () => {
    const before = wakes;
    const run = await prepare();
    expect(run).toMatchObject({ status: 'prepared', epoch: 0 });
    expect(wakes).toBe(before);
    expect(await claimed(run)).toBe(false);
    expect(await runs.startPrepared('anna', run.thread_id, run.id)).toMatchObject({ id: run.id, status: 'queued' });
    expect(wakes).toBe(before + 1);
    const again = runs.startPrepared('anna', run.thread_id, run.id);
    await expect(again).rejects.toMatchObject({ ...NOT_PREPARED, details: { run_id: run.id, status: 'queued' } });
    expect(await claimed(run)).toBe(true);
    await expect(runs.startPrepared('anna', run.thread_id, run.id)).rejects.toMatchObject(NOT_PREPARED);
  });

  test('of many starts at once one wins', async () => {
    const run = await prepare();
    const starts = await Promise.allSettled(
      Array.from({ length: 6 }, () => startPrepared(pool, 'anna', run.thread_id, run.id)),
    );
    expect(starts.filter(({ status }) => status === 'fulfilled')).toHaveLength(1);
    for (const start of starts) if (start.status === 'rejected') expect(start.reason).toMatchObject(NOT_PREPARED);
  });

  test('is not started by another owner, on another thread, or when it does not exist', async () => {
    const run = await prepare();
    const other = await prepare();
    const start = (owner: string, threadId: string, runId: string) => runs.startPrepared(owner, threadId, runId);
    await expect(start('bert', run.thread_id, run.id)).rejects.toMatchObject({ code: 'THREAD_NOT_FOUND' });
    await expect(start('anna', other.thread_id, run.id)).rejects.toMatchObject({ code: 'RUN_NOT_FOUND' });
    await expect(start('anna', run.thread_id, randomUUID())).rejects.toMatchObject({ code: 'RUN_NOT_FOUND' });
    expect(await statusOf(run)).toBe('prepared');
  });

  test('that somebody has asked to stop is not started', async () => {
    const stamped = await prepare();
    await pool.query('update runs set cancel_requested_at = clock_timestamp() where id = $1::uuid', [stamped.id]);
    await expect(runs.startPrepared('anna', stamped.thread_id, stamped.id)).rejects.toMatchObject(NOT_PREPARED);
    const cancelled = await prepare();
    await runs.cancel('anna', cancelled.thread_id, {});
    const start = runs.startPrepared('anna', cancelled.thread_id, cancelled.id);
    await expect(start).rejects.toMatchObject({ ...NOT_PREPARED, details: { status: 'cancelled' } });
  });

  test('is the same run under the same request key, and another request than one that begins at once', async () => {
    const key = randomUUID();
    const run = await prepare({ request_key: key });
    expect((await runs.send(message({ prepared: true, request_key: key }))).run.id).toBe(run.id);
    await expect(runs.send(message({ request_key: key }))).rejects.toMatchObject({ code: 'IDEMPOTENCY_KEY_REUSED' });
  });
});

async function endOf(run: Run): Promise<unknown> {
  for await (const item of runs.follow(run, BEFORE_START, AbortSignal.timeout(10_000))) {
    if (item.kind === 'event' && item.event.type === 'run.sealed') return item.event;
  }
  return null;
}

describe('what comes after a prepared run', () => {
  test('a new turn replaces it: it is cancelled, its reader is told, and it cannot be started', async () => {
    const run = await prepare();
    const end = endOf(run);
    const next = await prepare({ thread_id: run.thread_id });
    expect(await end).toMatchObject({ status: 'cancelled', reason: 'SUPERSEDED' });
    expect(await runs.get('anna', run.id)).toMatchObject({ status: 'cancelled', reason: 'SUPERSEDED' });
    await expect(runs.startPrepared('anna', run.thread_id, run.id)).rejects.toMatchObject(NOT_PREPARED);
    const { run: last } = await runs.send(message({ thread_id: run.thread_id }));
    expect(await runs.get('anna', next.id)).toMatchObject({ status: 'cancelled', reason: 'SUPERSEDED' });
    expect(await statusOf(last)).toBe('queued');
  });

  test('when the process dies after the admission it is not started all the same, and the next sweep cancels it', async () => {
    const run = await prepare();
    // No more than the admission: nobody has cancelled what it replaces.
    const { superseded } = await admitMessage(deps.admit, message({ thread_id: run.thread_id }));
    expect(superseded).toEqual([run.id]);
    await expect(runs.startPrepared('anna', run.thread_id, run.id)).rejects.toMatchObject(NOT_PREPARED);
    expect(await statusOf(run)).toBe('prepared');
    const fresh = await prepare();
    const sweeps = createSweeps({
      pool,
      log: deps.log,
      graphs: NO_GRAPHS,
      config: {
        runs: { preparedTtlMs: 3_600_000 },
        events: { streamTtlMs: 60_000 },
        retention: { outboxDeliveredMs: 1e9, outboxDeadMs: 1e9, threadsMs: null },
        checkpoints: { keep: null },
      },
      cancelPrepared: ({ id, epoch }, reason) =>
        finalize(deps.cancel, id, { owner: false, epoch, status: 'prepared' }, emptyOutcome('cancelled', { reason })),
      logger: silent,
    });
    expect(await sweeps.sweep()).toMatchObject({ prepared: 1 });
    expect(await runs.get('anna', run.id)).toMatchObject({ status: 'cancelled', reason: 'SUPERSEDED' });
    expect(await statusOf(fresh)).toBe('prepared');
  });

  test('its thread is deleted without force, and its reader is told', async () => {
    const run = await prepare();
    const end = endOf(run);
    await expect(runs.deleteThread('bert', run.thread_id, { force: false })).rejects.toMatchObject({
      code: 'THREAD_NOT_FOUND',
    });
    expect(await statusOf(run)).toBe('prepared');
    await runs.deleteThread('anna', run.thread_id, { force: false });
    expect(await end).toMatchObject({ status: 'cancelled', reason: 'SUPERSEDED' });
    await expect(runs.get('anna', run.id)).rejects.toMatchObject({ code: 'RUN_NOT_FOUND' });
  });

  test('a turn that was replaced before it began can be tried again', async () => {
    const run = await prepare();
    await runs.cancel('anna', run.thread_id, {});
    const { run: again } = await runs.rerun({ owner: 'anna', thread_id: run.thread_id });
    expect(again).toMatchObject({ kind: 'rerun', turn_id: run.turn_id, status: 'queued', input: run.input });
  });
});
