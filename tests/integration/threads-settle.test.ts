import { randomUUID } from 'node:crypto';
import { afterAll, beforeAll, expect, test } from 'vitest';
import type { Pool } from '#src/postgres/pool.ts';
import { inTransaction } from '#src/postgres/transaction.ts';
import { type SettledRun, type Settlement, settleTurn } from '#src/threads/settle.ts';
import { createDatabase, type TestDatabase } from '#tests/support/database.ts';
import { insertRunningRun } from '#tests/support/ledger.ts';
import { testPool } from '#tests/support/pools.ts';

let database: TestDatabase;
let pool: Pool;

beforeAll(async () => {
  database = await createDatabase();
  pool = testPool(database.url);
});
afterAll(async () => {
  await pool.end();
  await database.drop();
});

/** A thread with a turn and a run, and how to settle that run. */
async function turn() {
  const { runId, threadId } = await insertRunningRun(pool);
  const turnId = randomUUID();
  await pool.query('insert into turns (id, thread_id, ordinal, lineage_id) values ($1::uuid, $2::uuid, 1, $2::uuid)', [
    turnId,
    threadId,
  ]);
  const run: SettledRun = { id: runId, thread_id: threadId, turn_id: turnId, lineage_id: threadId };
  const settle = (end: Partial<Settlement>, of: Partial<SettledRun> = {}): Promise<void> =>
    inTransaction(pool, (tx) =>
      settleTurn(tx, { ...run, ...of }, { answer: null, interrupts: [], taken: true, ...end }),
    );
  const answers = async () =>
    (
      await pool.query(
        'select content, stream_id, partial, replaced from messages where turn_id = $1::uuid and role = $2 order by seq',
        [turnId, 'assistant'],
      )
    ).rows;
  const asked = async () =>
    (
      await pool.query(
        'select id, value, status, answered_by from interrupts where lineage_id = $1::uuid order by seq',
        [threadId],
      )
    ).rows;
  return { runId, threadId, turnId, settle, answers, asked };
}

const question = (id: string, value: string) => ({ id, value });
const open = (id: string, value: string) => ({ id, value, status: 'open', answered_by: null });
const closed = (id: string, value: string) => ({ id, value, status: 'closed', answered_by: null });

test('an answer replaces the former ones of its turn, and nothing of another turn', async () => {
  const other = await turn();
  await other.settle({ answer: { content: 'elsewhere', stream_id: null, partial: false } });
  const { settle, answers } = await turn();
  await settle({ answer: { content: 'half', stream_id: 's1', partial: true } });
  await settle({ answer: { content: [{ type: 'text', text: 'whole' }], stream_id: 's2', partial: false } });
  expect(await answers()).toEqual([
    { content: 'half', stream_id: 's1', partial: true, replaced: true },
    { content: [{ type: 'text', text: 'whole' }], stream_id: 's2', partial: false, replaced: false },
  ]);
  expect(await other.answers()).toMatchObject([{ content: 'elsewhere', replaced: false }]);
});

test('without an answer the former one stays; without a turn nothing is shown', async () => {
  const { settle, answers } = await turn();
  await settle({ answer: { content: 'kept', stream_id: null, partial: false } });
  await settle({});
  await settle({ answer: { content: 'unseen', stream_id: null, partial: false } }, { turn_id: null });
  expect(await answers()).toMatchObject([{ content: 'kept', replaced: false }]);
});

test('questions are open until the graph goes on without them', async () => {
  const { settle, asked } = await turn();
  await settle({ interrupts: [question('a', 'may I?'), question('b', 'and \u0000?')] });
  expect(await asked()).toEqual([open('a', 'may I?'), open('b', 'and \u0000?')]);
  await settle({ interrupts: [question('b', 'again?'), question('c', 'new?')] });
  expect(await asked()).toEqual([closed('a', 'may I?'), open('b', 'again?'), open('c', 'new?')]);
  await settle({});
  expect((await asked()).map((row) => row.status)).toEqual(['closed', 'closed', 'closed']);
});

test('an answer the graph never took leaves its questions open again; others keep what they have', async () => {
  const { runId, threadId, settle, asked } = await turn();
  await settle({ interrupts: [question('a', 'mine'), question('b', 'not answered')] });
  await pool.query(
    `update interrupts set status = 'answered', answered_by = $2::uuid where lineage_id = $1::uuid and id = 'a'`,
    [threadId, runId],
  );
  await settle({ taken: false });
  expect(await asked()).toEqual([open('a', 'mine'), open('b', 'not answered')]);
});

test('the thread counts as active now', async () => {
  const { threadId, settle } = await turn();
  await pool.query(`update threads set active_at = 'epoch' where id = $1::uuid`, [threadId]);
  await settle({});
  const { rows } = await pool.query(
    `select active_at > clock_timestamp() - interval '1 min' as now from threads where id = $1::uuid`,
    [threadId],
  );
  expect(rows).toEqual([{ now: true }]);
});
