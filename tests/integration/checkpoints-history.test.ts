import { randomUUID } from 'node:crypto';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { DELTA_HISTORY } from '#src/graphs/checkpoint-sql.ts';
import type { Pool } from '#src/postgres/pool.ts';
import { createDatabase, type TestDatabase } from '#tests/support/database.ts';
import { testPool } from '#tests/support/pools.ts';

let database: TestDatabase;
let pool: Pool;

beforeAll(async () => {
  database = await createDatabase();
  pool = testPool(database.url);
  // A thread that grew since the last analyze, which is every new one: Postgres knows nothing of it.
  await pool.query('alter table checkpoints set (autovacuum_enabled = false)');
  await pool.query('alter table checkpoint_blobs set (autovacuum_enabled = false)');
  await pool.query('alter table checkpoint_writes set (autovacuum_enabled = false)');
});
afterAll(async () => {
  await pool.end();
  await database.drop();
});

const id = (number: number) => `checkpoint-${String(number).padStart(6, '0')}`;

/** A chain of checkpoints with one write each; `messages` is stored at `seedAt`, another channel at every one. */
async function chain(length: number, seedAt: number): Promise<string> {
  const threadId = randomUUID();
  const numbers = Array.from({ length }, (_, index) => index);
  await pool.query(
    `insert into checkpoints (thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, checkpoint)
     select $1, '', c.id, c.parent, c.checkpoint::jsonb from unnest($2::text[], $3::text[], $4::text[]) as c(id, parent, checkpoint)`,
    [
      threadId,
      numbers.map(id),
      numbers.map((number) => (number === 0 ? null : id(number - 1))),
      numbers.map((number) => JSON.stringify({ channel_versions: { messages: `m${number}`, other: `o${number}` } })),
    ],
  );
  await pool.query(
    `insert into checkpoint_blobs (thread_id, checkpoint_ns, channel, version, type, blob)
     select $1, '', 'other', 'o' || n, 'json', '"x"'::bytea from generate_series(0, $2::int - 1) n
     union all select $1, '', 'messages', 'm' || n, case when n = $3::int then 'json' else 'empty' end, '"seed"'::bytea
     from generate_series(0, $2::int - 1) n`,
    [threadId, length, seedAt],
  );
  await pool.query(
    `insert into checkpoint_writes (thread_id, checkpoint_ns, checkpoint_id, task_id, idx, channel, type, blob)
     select $1, '', c.id, 'task', 0, 'messages', 'json', '"w"'::bytea from unnest($2::text[]) as c(id)`,
    [threadId, numbers.map(id)],
  );
  return threadId;
}

test('the history of a channel goes back to the nearest checkpoint that stores it, oldest first', async () => {
  const threadId = await chain(20, 5);
  const { rows } = await pool.query(DELTA_HISTORY, [threadId, '', id(10), ['messages']]);
  expect(rows.map((row) => [row.kind, row.depth])).toEqual([
    ['seed', 4],
    ['write', 4],
    ['write', 3],
    ['write', 2],
    ['write', 1],
    ['write', 0],
  ]);
});

interface PlanNode {
  'Node Type': string;
  'Actual Rows': number;
  'Actual Loops': number;
  'Rows Removed by Filter'?: number;
  'Rows Removed by Join Filter'?: number;
  Plans?: PlanNode[];
}

/** Rows that each node of the plan looked at. */
function rowsSeen(node: PlanNode): number[] {
  const each = node['Actual Rows'] + (node['Rows Removed by Filter'] ?? 0) + (node['Rows Removed by Join Filter'] ?? 0);
  return [each * node['Actual Loops'], ...(node.Plans ?? []).flatMap(rowsSeen)];
}

test('without statistics a walk over n checkpoints looks at no more than a few times n rows', async () => {
  const length = 150;
  const threadId = await chain(length, 0);
  const client = await pool.connect();
  try {
    await client.query(`prepare history(text, text, text, text[]) as ${DELTA_HISTORY}`);
    const { rows } = await client.query(
      `explain (analyze, format json) execute history('${threadId}', '', '${id(length - 1)}', '{messages}')`,
    );
    const plan = rows[0]['QUERY PLAN'][0].Plan as PlanNode;
    expect(plan['Actual Rows']).toBe(length);
    expect(Math.max(...rowsSeen(plan))).toBeLessThan(5 * length);
  } finally {
    client.release(true);
  }
});
