/** Who ends or goes on with a run that answers a question: nothing is answered twice, and no answer is lost. */
import { Command } from '@langchain/langgraph';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { createHub } from '#src/events/live-hub.ts';
import { createMemoryLog } from '#src/events/memory-log.ts';
import { openSaver, type RunSaver } from '#src/graphs/checkpoints.ts';
import type { Pool } from '#src/postgres/pool.ts';
import { failure } from '#src/runs/failures.ts';
import { type FinalizeDeps, finalize } from '#src/runs/finalize.ts';
import { emptyOutcome } from '#src/runs/outcome.ts';
import { findRun } from '#src/runs/queries.ts';
import type { Run } from '#src/runs/run.ts';
import { progressOf } from '#src/runs/takeover.ts';
import { createDatabase, type TestDatabase } from '#tests/support/database.ts';
import { oneNode } from '#tests/support/graphs/approvals.ts';
import { endRun, insertRunningRun, type LedgerRun, takeOver } from '#tests/support/ledger.ts';
import { silent, testPool } from '#tests/support/pools.ts';

let database: TestDatabase;
let pool: Pool;
let deps: FinalizeDeps;

beforeAll(async () => {
  database = await createDatabase();
  pool = testPool(database.url);
  const log = createMemoryLog({ memoryLimitBytes: 1024 ** 2 });
  deps = {
    pool,
    log,
    hub: createHub({ log, logger: silent }),
    streamTtlMs: 60_000,
    unsent: () => false,
    logger: silent,
    onEnded: () => {},
  };
});
afterAll(async () => {
  await pool.end();
  await database.drop();
});

const open = (run: LedgerRun): RunSaver =>
  openSaver(pool, { runId: run.runId, epoch: run.epoch, metadata: { run_id: run.runId } }, () => {});
const at = (threadId: string) => ({ configurable: { thread_id: threadId }, durability: 'sync' as const });
const rowOf = async (run: LedgerRun): Promise<Run> => (await findRun(pool, run.runId)) as Run;

interface State {
  answers: string[];
  __interrupt__?: { id: string; value: { question: string } }[];
}
const invoke = async (run: LedgerRun, input: unknown): Promise<State> =>
  (await oneNode.compile({ checkpointer: open(run).saver }).invoke(input as never, at(run.threadId))) as State;

/** A lineage that asks, and a running run that brings an answer to it. */
async function asked(value: string): Promise<{ id: string; run: LedgerRun }> {
  const first = await insertRunningRun(pool);
  const id = (await invoke(first, { answers: [] })).__interrupt__?.[0]?.id ?? '';
  await endRun(pool, first);
  const run = await insertRunningRun(pool, { threadId: first.threadId, ordinal: 2 });
  await pool.query(`update runs set kind = 'answer', command = $2 where id = $1::uuid`, [
    run.runId,
    { resume: { [id]: value } },
  ]);
  await pool.query(
    `insert into interrupts (lineage_id, id, thread_id, run_id, value, status, answered_by)
     values ($1::uuid, $2, $1::uuid, $3::uuid, '"sure?"', 'answered', $4::uuid)`,
    [first.threadId, id, first.runId, run.runId],
  );
  return { id, run };
}

async function storeAnswer(run: LedgerRun, taskId: string, value: string): Promise<void> {
  const { saver } = open(run);
  const tip = await saver.getTuple(at(run.threadId));
  await saver.putWrites(tip?.config ?? {}, [['__resume__', [value]]], taskId);
}

/** The task that asked. */
async function taskOf(run: LedgerRun): Promise<string> {
  const tip = await open(run).saver.getTuple(at(run.threadId));
  return tip?.pendingWrites?.find(([, channel]) => channel === '__interrupt__')?.[0] ?? '';
}

const statusOf = async (run: LedgerRun): Promise<string> =>
  (await pool.query('select status from interrupts where lineage_id = $1::uuid', [run.threadId])).rows[0].status;

test('an answer whose owner died while the task was at work is given again, not asked for again', async () => {
  const { id, run } = await asked('yes');
  await storeAnswer(run, id, 'yes');
  const next = await takeOver(pool, run);
  expect(await progressOf(pool, await rowOf(run))).toMatchObject({ own: false, continues: false });
  const state = await invoke(next, new Command({ resume: { [id]: 'yes' } }));
  expect(state.__interrupt__?.[0]?.value).toEqual({ question: 'two' });
});

test('an answer a task has taken is not given again', async () => {
  const { id, run } = await asked('yes');
  await invoke(run, new Command({ resume: { [id]: 'yes' } }));
  const next = await takeOver(pool, run);
  expect(await progressOf(pool, await rowOf(run))).toMatchObject({ own: false, continues: true });
  expect((await invoke(next, null)).__interrupt__?.[0]?.value).toEqual({ question: 'two' });
});

test('a run that is ended while nobody owns it leaves no answer behind that would overrule the next', async () => {
  const { id, run } = await asked('yes');
  // What a task that failed, and was to be tried again, has left.
  await storeAnswer(run, await taskOf(run), 'yes');
  await pool.query(`update runs set status = 'queued', epoch = 2, worker_id = null where id = $1::uuid`, [run.runId]);
  const ended = await finalize(
    deps,
    run.runId,
    { owner: false, epoch: 2, status: 'queued' },
    emptyOutcome('cancelled'),
  );
  expect(ended.applied).toBe(true);
  expect(await statusOf(run)).toBe('open');
  const next = await insertRunningRun(pool, { threadId: run.threadId, ordinal: 3 });
  await invoke(next, new Command({ resume: { [id]: 'no' } }));
  await endRun(pool, next);
  const last = await insertRunningRun(pool, { threadId: run.threadId, ordinal: 4 });
  const second = (await open(last).saver.getTuple(at(run.threadId)))?.pendingWrites?.find(
    ([, channel]) => channel === '__interrupt__',
  )?.[2] as { id: string }[] | undefined;
  const state = await invoke(last, new Command({ resume: { [second?.[0]?.id ?? id]: 'maybe' } }));
  expect(state.answers).toEqual(['one:no', 'two:maybe']);
});

test('a run that fails with its answer untaken leaves none behind either, and its question is open again', async () => {
  const { run } = await asked('yes');
  await storeAnswer(run, await taskOf(run), 'yes');
  const by = { owner: true, epoch: run.epoch, given: 0 } as const;
  expect((await finalize(deps, run.runId, by, emptyOutcome('failed', { error: failure('INTERNAL') }))).applied).toBe(
    true,
  );
  expect(await statusOf(run)).toBe('open');
  const { rows } = await pool.query(
    `select count(*)::int as count from checkpoint_writes where thread_id = $1::text and channel = '__resume__'`,
    [run.threadId],
  );
  expect(rows).toEqual([{ count: 0 }]);
});

test('a question the graph has got past is not open again when nobody owns the run at its end', async () => {
  const { run } = await asked('yes');
  const { saver } = open(run);
  const tip = await saver.getTuple(at(run.threadId));
  if (tip === undefined) throw new Error('no tip');
  const after = { ...tip.checkpoint, id: `${tip.checkpoint.id.slice(0, -1)}f` };
  await saver.put(tip.config, after, { ...tip.metadata, source: 'loop', step: 9, parents: {} }, {});
  await pool.query(`update runs set status = 'queued', epoch = 2, worker_id = null where id = $1::uuid`, [run.runId]);
  await finalize(deps, run.runId, { owner: false, epoch: 2, status: 'queued' }, emptyOutcome('cancelled'));
  expect(await statusOf(run)).toBe('closed');
});

test('an end whose COMMIT arrived and whose answer did not is known as ours, and sealed', async () => {
  const run = await insertRunningRun(pool);
  const by = { owner: true, epoch: run.epoch, given: 3 } as const;
  const first = await finalize(deps, run.runId, by, emptyOutcome('succeeded'));
  await deps.log.remove(run.runId);
  const again = await finalize(deps, run.runId, by, emptyOutcome('succeeded'));
  expect([first.applied, again.applied]).toEqual([true, true]);
  expect((await deps.log.last(run.runId))?.cursor).toBe(3);
  const other = await finalize(deps, run.runId, { ...by, epoch: 2 }, emptyOutcome('failed'));
  expect(other.applied).toBe(false);
});
