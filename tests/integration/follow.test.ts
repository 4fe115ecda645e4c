/** Following a run at its edges: cursors of no event of the run, and an end whose only event is on its way. */
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { BEFORE_START, cursorOf } from '#src/events/cursor.ts';
import type { Hub } from '#src/events/hub.ts';
import { createHub } from '#src/events/live-hub.ts';
import { createMemoryLog } from '#src/events/memory-log.ts';
import type { Pool } from '#src/postgres/pool.ts';
import { assertReplayable, type FollowDeps, follow } from '#src/runs/follow.ts';
import { findRun } from '#src/runs/queries.ts';
import { createRowWatch } from '#src/runs/row-watch.ts';
import type { Followed, Run } from '#src/runs/run.ts';
import { createDatabase, type TestDatabase } from '#tests/support/database.ts';
import { endRun, insertRunningRun, type LedgerRun } from '#tests/support/ledger.ts';
import { silent, testPool } from '#tests/support/pools.ts';

let database: TestDatabase;
let pool: Pool;
let hub: Hub;
let deps: FollowDeps;

beforeAll(async () => {
  database = await createDatabase();
  pool = testPool(database.url);
  const log = createMemoryLog({ memoryLimitBytes: 1_000_000 });
  // It never looks at the end of the log by itself.
  hub = createHub({ log, logger: silent, tailCheckMs: 600_000 });
  deps = { log, hub, rows: createRowWatch(pool), logger: silent };
});
afterAll(async () => {
  await hub.close();
  await deps.log.close();
  await pool.end();
  await database.drop();
});

const rowOf = async ({ runId }: LedgerRun): Promise<Run> => (await findRun(pool, runId)) as Run;

function append({ runId, epoch }: LedgerRun, n: number): Promise<unknown> {
  const payload = JSON.stringify({ type: 'graph.part', mode: 'custom', ns: [], data: n });
  return deps.log.append([{ runId, entries: [{ cursor: cursorOf(epoch, n), payload }] }]);
}

const told = (item: Followed) => (item.kind === 'event' ? item.cursor : item.kind);

describe('a cursor of an epoch that has not begun', () => {
  test('is told to resync at once, and goes on after what there is', async () => {
    const run = await insertRunningRun(pool, { epoch: 2 });
    await append(run, 0);
    await append(run, 1);
    const left = new AbortController();
    const following = follow(deps, await rowOf(run), cursorOf(9, 5), left.signal);
    expect((await following.next()).value).toEqual({ kind: 'resync' });
    const next = following.next();
    await append(run, 2);
    expect(told((await next).value as Followed)).toBe(cursorOf(2, 2));
    left.abort();
    await following.return();
  });

  test('also on a run without any event yet', async () => {
    const run = await insertRunningRun(pool);
    const left = new AbortController();
    const following = follow(deps, await rowOf(run), cursorOf(2, 0), left.signal);
    expect((await following.next()).value).toEqual({ kind: 'resync' });
    const next = following.next();
    await append(run, 0);
    expect(told((await next).value as Followed)).toBe(cursorOf(1, 0));
    left.abort();
    await following.return();
  });
});

describe('a run that has ended and has no log', () => {
  test('a moment ago: its seal may be on its way, so its stream begins, and ends from the row', async () => {
    const run = await insertRunningRun(pool);
    await endRun(pool, run);
    const row = await rowOf(run);
    await assertReplayable(deps, row);
    const items: Followed[] = [];
    for await (const item of follow(deps, row, BEFORE_START, new AbortController().signal)) items.push(item);
    expect(items.map((item) => (item.kind === 'event' ? item.event.type : item.kind))).toEqual([
      'resync',
      'run.sealed',
    ]);
  });

  test('a while ago: it is expired', async () => {
    const run = await insertRunningRun(pool);
    await endRun(pool, run);
    await pool.query(`update runs set ended_at = ended_at - interval '1 minute' where id = $1::uuid`, [run.runId]);
    await expect(assertReplayable(deps, await rowOf(run))).rejects.toMatchObject({
      code: 'STREAM_EXPIRED',
      details: { run_id: run.runId, status: 'succeeded' },
    });
  });
});
