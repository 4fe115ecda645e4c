/** Old checkpoints: what goes, and that everything that stays reads as it did before. */
import { randomInt, randomUUID } from 'node:crypto';
import { Annotation, DeltaChannel, interrupt, Send, START, StateGraph } from '@langchain/langgraph';
import type { BaseCheckpointSaver } from '@langchain/langgraph-checkpoint';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { openSaver } from '#src/graphs/checkpoints.ts';
import type { DrivenGraph, GraphRegistry } from '#src/graphs/graph.ts';
import type { Pool } from '#src/postgres/pool.ts';
import { createPruner } from '#src/runs/sweep-checkpoints.ts';
import { createDatabase, type TestDatabase } from '#tests/support/database.ts';
import { endRun, insertRunningRun, type LedgerRun } from '#tests/support/ledger.ts';
import { NO_GRAPHS } from '#tests/support/no-graphs.ts';
import { silent, testPool } from '#tests/support/pools.ts';
import { until } from '#tests/support/until.ts';

let database: TestDatabase;
let pool: Pool;

beforeAll(async () => {
  database = await createDatabase();
  pool = testPool(database.url, 8);
});
afterAll(async () => {
  await pool.end();
  await database.drop();
});
beforeEach(async () => {
  await pool.query('delete from threads');
  await pool.query('truncate checkpoints, checkpoint_blobs, checkpoint_writes');
});

const saverOf = (run: Pick<LedgerRun, 'runId' | 'epoch'>): BaseCheckpointSaver =>
  openSaver(pool, { runId: run.runId, epoch: run.epoch, metadata: { run_id: run.runId } }, () => undefined).saver;
/** For reading only: every write through it is refused. */
const reader = (): BaseCheckpointSaver => saverOf({ runId: randomUUID(), epoch: 1 });

const append = (all: string[], more: string[]): string[] => [...all, ...more];
const appendAll = (all: string[] | undefined, more: string[][]): string[] => [...(all ?? []), ...more.flat()];

/** Two tasks in parallel, then one; `stored` keeps whole values, `deltas` differences with a snapshot every so many updates. */
function graphOf(snapshotFrequency: number | null, saver: BaseCheckpointSaver) {
  const State = Annotation.Root({
    stored: Annotation<string[]>({ reducer: append, default: () => [] }),
    ...(snapshotFrequency === null
      ? { deltas: Annotation<string[]>({ reducer: append, default: () => [] }) }
      : { deltas: () => new DeltaChannel<string[], string[]>(appendAll, { snapshotFrequency }) }),
  });
  const word = (name: string) => (state: typeof State.State) => {
    const n = state.stored.length;
    return { stored: [`${name}${n}`], deltas: [`${name}${n}`] };
  };
  return new StateGraph(State)
    .addNode('first', word('first'))
    .addNode('part', (task: { n: number }) => ({ deltas: [`part${task.n}`] }))
    .addNode('last', word('last'))
    .addEdge(START, 'first')
    .addConditionalEdges('first', () => [new Send('part', { n: 1 }), new Send('part', { n: 2 })], ['part'])
    .addEdge('part', 'last')
    .compile({ checkpointer: saver });
}

const at = (threadId: string, checkpointId?: string) => ({
  configurable: { thread_id: threadId, ...(checkpointId === undefined ? {} : { checkpoint_id: checkpointId }) },
  durability: 'sync' as const,
});

/** One run that ends: begins at the tip, or at an older checkpoint. */
async function turn(
  threadId: string | undefined,
  ordinal: number,
  snapshotFrequency: number | null,
  checkpointId?: string,
): Promise<LedgerRun> {
  const run = await insertRunningRun(pool, { ...(threadId === undefined ? {} : { threadId }), ordinal });
  const graph = graphOf(snapshotFrequency, saverOf(run));
  await graph.invoke({ stored: [`turn${ordinal}`], deltas: [`turn${ordinal}`] }, at(run.threadId, checkpointId));
  await endRun(pool, run);
  return run;
}

async function thread(turns: number, snapshotFrequency: number | null): Promise<string> {
  const { threadId } = await turn(undefined, 1, snapshotFrequency);
  for (let n = 2; n <= turns; n += 1) await turn(threadId, n, snapshotFrequency);
  return threadId;
}

/** Ids of the root checkpoints, newest first. */
async function idsOf(threadId: string): Promise<string[]> {
  const { rows } = await pool.query(
    `select checkpoint_id from checkpoints where thread_id = $1 and checkpoint_ns = '' order by seq desc`,
    [threadId],
  );
  return rows.map((row) => row.checkpoint_id);
}

/** What each checkpoint reads as: its state, what is next, what waits. */
async function readAll(threadId: string, snapshotFrequency: number | null): Promise<Map<string, unknown>> {
  const graph = graphOf(snapshotFrequency, reader());
  const all = new Map<string, unknown>();
  for (const id of await idsOf(threadId)) {
    const { values, next, tasks } = await graph.getState(at(threadId, id));
    all.set(id, { values, next, tasks: tasks.map(({ name, interrupts }) => ({ name, interrupts })) });
  }
  return all;
}

async function countOf(table: string, threadId: string): Promise<number> {
  const { rows } = await pool.query(`select count(*)::int as count from ${table} where thread_id = $1`, [threadId]);
  return rows[0].count;
}

const graphsWith = (snapshotFrequency: number | null): GraphRegistry => ({
  ...NO_GRAPHS,
  has: () => true,
  instantiate: async (_id, saver) => graphOf(snapshotFrequency, saver) as unknown as DrivenGraph,
});

const prune = (keep: number, graphs = NO_GRAPHS): Promise<number> =>
  createPruner({ pool, graphs, keep, logger: silent }).next();

describe('a lineage whose channels keep whole values', () => {
  test('has the newest left, with their values and no others', async () => {
    const threadId = await thread(6, null);
    const before = await readAll(threadId, null);
    const ids = await idsOf(threadId);
    const writes = await countOf('checkpoint_writes', threadId);
    expect(await prune(4)).toBe(ids.length - 4);
    expect(await idsOf(threadId)).toEqual(ids.slice(0, 4));
    for (const [id, state] of await readAll(threadId, null)) expect(state).toEqual(before.get(id));
    expect(await countOf('checkpoint_writes', threadId)).toBeLessThan(writes);
    const { rows } = await pool.query(
      `select b.channel, b.version from checkpoint_blobs b
       where b.thread_id = $1 and not exists (
         select 1 from checkpoints c
         where c.thread_id = b.thread_id and c.checkpoint -> 'channel_versions' ->> b.channel = b.version)`,
      [threadId],
    );
    expect(rows).toEqual([]);
    // It goes on from there, and is pruned again when it has grown.
    await turn(threadId, 7, null);
    expect(await prune(4)).toBeGreaterThan(0);
    expect(await idsOf(threadId)).toHaveLength(4);
    expect((await graphOf(null, reader()).getState(at(threadId))).values.stored).toHaveLength(7 * 3);
  });

  test('that is short, or has not grown since, is left alone', async () => {
    const threadId = await thread(2, null);
    const count = (await idsOf(threadId)).length;
    expect(await prune(count)).toBe(0);
    expect(await prune(count - 1)).toBe(1);
    await pool.query('update lineages set pruned_seq = 1000000000');
    expect(await prune(1)).toBe(0);
  });

  test('keeps a tip that was moved back, however old, and what begins there', async () => {
    const threadId = await thread(5, null);
    const ids = await idsOf(threadId);
    const old = ids.at(-3) ?? '';
    await pool.query('update lineages set tip_checkpoint_id = $2 where id = $1::uuid', [threadId, old]);
    const before = await readAll(threadId, null);
    await prune(2);
    expect(await idsOf(threadId)).toEqual([...ids.slice(0, 2), old]);
    for (const [id, state] of await readAll(threadId, null)) expect(state).toEqual(before.get(id));
    await turn(threadId, 6, null);
    expect((await graphOf(null, reader()).getState(at(threadId))).values.stored.at(-1)).toMatch(/^last/);
  });

  test('keeps where its latest run began, for a rerun', async () => {
    const threadId = await thread(3, null);
    const ids = await idsOf(threadId);
    const [base, older] = [ids.at(-4), ids.at(-5)];
    await pool.query('update runs set base_checkpoint_id = $2 where thread_id = $1::uuid and ordinal = 3', [
      threadId,
      base,
    ]);
    await pool.query('update runs set base_checkpoint_id = $2 where thread_id = $1::uuid and ordinal = 2', [
      threadId,
      older,
    ]);
    await prune(1);
    expect(await idsOf(threadId)).toEqual([ids[0], base]);
  });

  test('keeps where every run of its latest turn began', async () => {
    const threadId = await thread(3, null);
    const ids = await idsOf(threadId);
    const turnId = randomUUID();
    await pool.query(
      'insert into turns (id, thread_id, ordinal, lineage_id) values ($1::uuid, $2::uuid, 1, $2::uuid)',
      [turnId, threadId],
    );
    await pool.query(
      `update runs set turn_id = $2::uuid, base_checkpoint_id = $3 where thread_id = $1::uuid and ordinal = 2`,
      [threadId, turnId, ids.at(-4)],
    );
    await prune(1);
    expect(await idsOf(threadId)).toEqual([ids[0], ids.at(-4)]);
  });
});

describe('a lineage with a channel that keeps differences', () => {
  const snapshots = async (threadId: string): Promise<number> => {
    const { rows } = await pool.query(
      `select count(*)::int as count from checkpoint_blobs where thread_id = $1 and channel = 'deltas' and type <> 'empty'`,
      [threadId],
    );
    return rows[0].count;
  };

  test('gets a snapshot with the oldest that is kept, and the rest goes', async () => {
    const threadId = await thread(6, 1_000);
    const before = await readAll(threadId, 1_000);
    const ids = await idsOf(threadId);
    expect(await snapshots(threadId)).toBe(0);
    expect(await prune(5, graphsWith(1_000))).toBe(ids.length - 5);
    expect(await snapshots(threadId)).toBe(1);
    const left = await readAll(threadId, 1_000);
    expect([...left.keys()]).toEqual(ids.slice(0, 5));
    for (const [id, state] of left) expect(state).toEqual(before.get(id));
    // It goes on from there, also in a branch from the oldest.
    await turn(threadId, 7, 1_000);
    const { values } = await graphOf(1_000, reader()).getState(at(threadId));
    expect(values.deltas?.filter((word: string) => word.startsWith('turn'))).toEqual(
      Array.from({ length: 7 }, (_, n) => `turn${n + 1}`),
    );
    const oldest = ids[4] ?? '';
    const known = (await graphOf(1_000, reader()).getState(at(threadId, oldest))).values.deltas ?? [];
    await turn(threadId, 8, 1_000, oldest);
    const forked = (await graphOf(1_000, reader()).getState(at(threadId))).values.deltas ?? [];
    expect(forked.slice(0, known.length + 1)).toEqual([...known, 'turn8']);
  });

  test('also with what is pinned: each keeps what it reads as', async () => {
    const threadId = await thread(8, 1_000);
    const ids = await idsOf(threadId);
    const old = ids.at(-6) ?? '';
    await pool.query('update lineages set tip_checkpoint_id = $2 where id = $1::uuid', [threadId, old]);
    const before = await readAll(threadId, 1_000);
    await prune(3, graphsWith(1_000));
    const left = await readAll(threadId, 1_000);
    expect([...left.keys()]).toEqual([...ids.slice(0, 3), old]);
    for (const [id, state] of left) expect(state).toEqual(before.get(id));
  });

  test('gets no snapshot for little, and the next only when it has grown in proportion', async () => {
    const threadId = await thread(2, 1_000);
    const count = (await idsOf(threadId)).length;
    expect(await prune(count - 1, graphsWith(1_000))).toBe(0);
    expect(await snapshots(threadId)).toBe(0);
    await pool.query('update lineages set pruned_seq = 0, kept_extra = 0');
    for (let n = 3; n <= 20; n += 1) await turn(threadId, n, 1_000);
    expect(await prune(2, graphsWith(1_000))).toBeGreaterThan(0);
    const { rows } = await pool.query('select kept_extra from lineages where id = $1::uuid', [threadId]);
    // 20 turns of four steps: a quarter.
    expect(rows[0].kept_extra).toBeGreaterThanOrEqual(19);
    await turn(threadId, 21, 1_000);
    expect(await prune(2, graphsWith(1_000))).toBe(0);
  });

  test('a snapshot and the removal are one transaction', async () => {
    const threadId = await thread(6, 1_000);
    const before = await readAll(threadId, 1_000);
    await pool.query(`
      create function refuse() returns trigger language plpgsql as $$
      begin
        if (select count(*) from gone) > 0 then raise exception 'not now'; end if;
        return null;
      end $$`);
    await pool.query(`
      create trigger refuse after delete on checkpoints referencing old table as gone
      for each statement execute function refuse()`);
    try {
      expect(await prune(5, graphsWith(1_000))).toBe(0);
    } finally {
      await pool.query('drop function refuse cascade');
    }
    expect(await snapshots(threadId)).toBe(0);
    expect(await readAll(threadId, 1_000)).toEqual(before);
  });

  test('of a graph that cannot be made keeps what it is built from', async () => {
    const threadId = await thread(6, 1_000);
    const broken = { ...graphsWith(1_000), instantiate: NO_GRAPHS.instantiate };
    expect(await prune(5, broken)).toBe(0);
    expect(await snapshots(threadId)).toBe(0);
  });

  test('without a snapshot keeps all, and is looked at again only when it has doubled', async () => {
    const threadId = await thread(4, 1_000);
    const ids = await idsOf(threadId);
    expect(await prune(2)).toBe(0);
    expect(await idsOf(threadId)).toEqual(ids);
    const { rows } = await pool.query('select kept_extra, pruned_seq from lineages where id = $1::uuid', [threadId]);
    expect(rows[0].kept_extra).toBe(ids.length - 2);
    await turn(threadId, 5, 1_000);
    await prune(2);
    const again = await pool.query('select pruned_seq from lineages where id = $1::uuid', [threadId]);
    expect(again.rows[0].pruned_seq).toBe(rows[0].pruned_seq);
    for (let n = 6; n <= 9; n += 1) await turn(threadId, n, 1_000);
    await prune(2);
    const later = await pool.query('select pruned_seq from lineages where id = $1::uuid', [threadId]);
    expect(later.rows[0].pruned_seq).not.toBe(rows[0].pruned_seq);
  });

  test('with snapshots is pruned behind the one that the kept are built from', async () => {
    const threadId = await thread(8, 6);
    const before = await readAll(threadId, 6);
    const ids = await idsOf(threadId);
    const removed = await prune(3);
    expect(removed).toBeGreaterThan(ids.length / 3);
    const left = await readAll(threadId, 6);
    expect(left.size).toBe(ids.length - removed);
    expect([...left.keys()].slice(0, 3)).toEqual(ids.slice(0, 3));
    for (const [id, state] of left) expect(state).toEqual(before.get(id));
  });

  test('that has become one of whole values is still rebuilt from the differences', async () => {
    const threadId = await thread(3, 1_000);
    const before = await readAll(threadId, null);
    const ids = await idsOf(threadId);
    await prune(1);
    const left = await readAll(threadId, null);
    expect(left.size).toBe(ids.length);
    for (const [id, state] of left) expect(state).toEqual(before.get(id));
  });
});

describe('left alone', () => {
  const asking = (saver: BaseCheckpointSaver) =>
    new StateGraph(Annotation.Root({ stored: Annotation<string[]>({ reducer: append, default: () => [] }) }))
      .addNode('ask', () => ({ stored: [String(interrupt('may I?'))] }))
      .addEdge(START, 'ask')
      .compile({ checkpointer: saver });

  test.each(['open', 'answered'])('a lineage with an %s question', async (status) => {
    const threadId = await thread(3, null);
    const run = await insertRunningRun(pool, { threadId, ordinal: 4 });
    await asking(saverOf(run)).invoke({ stored: ['q'] }, at(threadId));
    await pool.query(
      `insert into interrupts (lineage_id, id, thread_id, run_id, value, status, answered_by)
       values ($1::uuid, 'i1', $1::uuid, $2::uuid, '"may I?"', $3, case $3 when 'answered' then $2::uuid end)`,
      [threadId, run.runId, status],
    );
    await endRun(pool, run);
    const ids = await idsOf(threadId);
    expect(await prune(1)).toBe(0);
    expect(await idsOf(threadId)).toEqual(ids);
    await pool.query(`update interrupts set status = 'closed', answered_by = null`);
    expect(await prune(1)).toBe(ids.length - 1);
    const { tasks } = await asking(reader()).getState(at(threadId));
    expect(tasks[0]?.interrupts).toMatchObject([{ value: 'may I?' }]);
  });

  test.each(['prepared', 'queued', 'running'])('a thread with a %s run', async (status) => {
    const threadId = await thread(3, null);
    const run = await insertRunningRun(pool, { threadId, ordinal: 4 });
    await pool.query('update runs set status = $2 where id = $1::uuid', [run.runId, status]);
    expect(await prune(1)).toBe(0);
  });

  test('a thread that somebody holds', async () => {
    const threadId = await thread(3, null);
    const holder = await pool.connect();
    try {
      await holder.query('begin');
      await holder.query('select 1 from threads where id = $1::uuid for no key update', [threadId]);
      expect(await prune(1)).toBe(0);
      await holder.query('rollback');
    } finally {
      holder.release();
    }
    expect(await prune(1)).toBeGreaterThan(0);
  });
});

/** Bare rows, one after the other, without a graph. */
async function bareThread(count: number, format: number): Promise<string> {
  const run = await insertRunningRun(pool);
  await pool.query(
    `insert into checkpoints (thread_id, checkpoint_id, parent_checkpoint_id, checkpoint)
     select $1, to_char(n, 'FM00000'), to_char(n - 1, 'FM00000'), jsonb_build_object('v', $3::int, 'channel_versions', '{}'::jsonb)
     from generate_series(1, $2::int) n`,
    [run.threadId, count, format],
  );
  await endRun(pool, run);
  return run.threadId;
}

test('a run that comes between the look and its lineage’s turn keeps it from being pruned', async () => {
  const threads = [await bareThread(5, 4), await bareThread(5, 4)].sort();
  const [first = '', second = ''] = threads;
  const holder = await pool.connect();
  try {
    await holder.query('begin');
    await holder.query('select 1 from checkpoints where thread_id = $1 for update', [first]);
    const pruned = prune(2);
    await until(
      async () => (await pool.query(`select 1 from pg_stat_activity where wait_event_type = 'Lock'`)).rows.length > 0,
      { message: 'the first lineage to be waited for' },
    );
    const run = await insertRunningRun(pool, { threadId: second, ordinal: 2 });
    await holder.query('rollback');
    expect(await pruned).toBe(3);
    expect(await idsOf(first)).toHaveLength(2);
    expect(await idsOf(second)).toHaveLength(5);
    await endRun(pool, run);
  } finally {
    holder.release();
  }
});

test('thousands are removed in one go, the newest first', async () => {
  const threadId = await bareThread(3_003, 4);
  // Seen by a trigger: at no time is there one whose parent is gone while it should still be there.
  await pool.query(`
    create function orphans() returns trigger language plpgsql as $$
    begin
      if exists (
        select 1 from checkpoints c
        where c.checkpoint_id < '03001' and c.checkpoint_id > '00001'
          and not exists (select 1 from checkpoints p where p.checkpoint_id = c.parent_checkpoint_id)) then
        raise exception 'a checkpoint lost its parent before it went itself';
      end if;
      return null;
    end $$`);
  await pool.query('create trigger orphans after delete on checkpoints for each statement execute function orphans()');
  try {
    expect(await prune(3)).toBe(3_000);
  } finally {
    await pool.query('drop function orphans cascade');
  }
  expect(await idsOf(threadId)).toEqual(['03003', '03002', '03001']);
});

test('checkpoints of an old format keep their parents, which hold what they are to send', async () => {
  const threadId = await bareThread(4, 3);
  expect(await prune(1)).toBe(0);
  await pool.query(
    `update checkpoints set checkpoint = jsonb_set(checkpoint, '{v}', '4') where checkpoint_id = '00003'`,
  );
  await pool.query('update lineages set pruned_seq = 0, kept_extra = 0');
  expect(await prune(1)).toBe(2);
  expect(await idsOf(threadId)).toEqual(['00004', '00003']);
});

describe('subgraphs', () => {
  const Inner = Annotation.Root({ stored: Annotation<string[]>({ reducer: append, default: () => [] }) });
  function nested(saver: BaseCheckpointSaver, persistent: boolean) {
    const inner = new StateGraph(Inner)
      .addNode('one', () => ({ stored: ['one'] }))
      .addNode('two', () => ({ stored: [persistent ? 'two' : String(interrupt('go on?'))] }))
      .addEdge(START, 'one')
      .addEdge('one', 'two')
      .compile(persistent ? { checkpointer: true } : {});
    return new StateGraph(Inner).addNode('inner', inner).addEdge(START, 'inner').compile({ checkpointer: saver });
  }
  const namespaces = async (threadId: string): Promise<string[]> => {
    const { rows } = await pool.query(
      `select checkpoint_ns from checkpoints where thread_id = $1 and checkpoint_ns <> '' group by 1 order by max(seq)`,
      [threadId],
    );
    return rows.map((row) => row.checkpoint_ns);
  };

  test('of a task go with the checkpoint the task belongs to, and not before', async () => {
    let threadId: string | undefined;
    for (let n = 1; n <= 4; n += 1) {
      const run = await insertRunningRun(pool, { ...(threadId === undefined ? {} : { threadId }), ordinal: n });
      threadId = run.threadId;
      await nested(saverOf(run), false).invoke({ stored: [`turn${n}`] }, at(threadId));
      await endRun(pool, run);
    }
    if (threadId === undefined) throw new Error('no run was made');
    const before = await namespaces(threadId);
    expect(before).toHaveLength(4);
    // One of which nothing says what it belongs to.
    const [unknown = ''] = before;
    await pool.query(
      `insert into checkpoints (thread_id, checkpoint_ns, checkpoint_id, checkpoint, metadata) values ($1, $2, 'x', '{}', '{}')`,
      [threadId, unknown],
    );
    const left = [unknown, ...before.slice(-1)];
    const pending = await nested(reader(), false).getState(at(threadId), { subgraphs: true });
    await prune(1);
    expect(new Set(await namespaces(threadId))).toEqual(new Set(left));
    for (const table of ['checkpoint_writes', 'checkpoint_blobs']) {
      const { rows } = await pool.query(`select distinct checkpoint_ns as ns from ${table} where thread_id = $1`, [
        threadId,
      ]);
      expect(new Set(rows.map((row) => row.ns))).toEqual(new Set(['', ...left]));
    }
    expect(await nested(reader(), false).getState(at(threadId), { subgraphs: true })).toEqual(pending);
  });

  test('that outlive their task stay', async () => {
    const first = await insertRunningRun(pool, { ordinal: 1 });
    const { threadId } = first;
    await nested(saverOf(first), true).invoke({ stored: ['turn1'] }, at(threadId));
    await endRun(pool, first);
    await turn(threadId, 2, null);
    const before = await namespaces(threadId);
    expect(before).toEqual(['inner']);
    const count = await countOf('checkpoints', threadId);
    const removed = await prune(1);
    expect(removed).toBeGreaterThan(0);
    expect(await namespaces(threadId)).toEqual(before);
    expect(await countOf('checkpoints', threadId)).toBe(count - removed);
  });
});

test('several at once prune many lineages once each, and agree', async () => {
  const threads = [];
  for (let n = 0; n < 6; n += 1) threads.push(await thread(3, n % 2 === 0 ? null : 4));
  const counts = await Promise.all([prune(3), prune(3), prune(3)]);
  const first = await Promise.all(threads.map(idsOf));
  for (const [n, ids] of first.entries()) if (n % 2 === 0) expect(ids).toHaveLength(3);
  expect(counts.reduce((sum, count) => sum + count)).toBeGreaterThan(0);
  expect(await prune(3)).toBe(0);
  expect(await Promise.all(threads.map(idsOf))).toEqual(first);
});

test('a pruner goes through all lineages, slice by slice, and begins again', async () => {
  // More lineages than one statement looks at; ids in order, so that the one to prune is in the second slice.
  await pool.query(
    `insert into threads (id, owner) select ('00000000-0000-4000-8000-' || lpad(n::text, 12, '0'))::uuid, 'anna' from generate_series(1, 600) n`,
  );
  await pool.query('insert into lineages (id, thread_id) select id, id from threads');
  const threadId = await thread(2, null);
  const pruner = createPruner({ pool, graphs: NO_GRAPHS, keep: 1, logger: silent });
  expect(threadId > '00000000-0000-4000-8000-999999999999').toBe(true);
  expect(await pruner.next()).toBe(0);
  expect(await pruner.next()).toBeGreaterThan(0);
  await turn(threadId, 3, null);
  expect(await pruner.next()).toBe(0);
  expect(await pruner.next()).toBeGreaterThan(0);
});

/** Anything a thread may go through, then a prune: what is left must read as before. A failing seed is in the message. */
test('whatever happened to a lineage, what is left reads as before', async () => {
  const seed = randomInt(2 ** 31);
  const random = generator(seed);
  const pick = (n: number): number => Math.floor(random() * n);
  for (let round = 0; round < 6; round += 1) {
    const frequency = [null, 2, 3, 7, 1_000][pick(5)] ?? null;
    const { threadId } = await turn(undefined, 1, frequency);
    const steps = 4 + pick(5);
    for (let n = 2; n <= steps; n += 1) {
      const ids = await idsOf(threadId);
      const anywhere = random() < 0.4 ? ids[pick(ids.length)] : undefined;
      if (random() < 0.3) {
        const run = await insertRunningRun(pool, { threadId, ordinal: n });
        const update = { stored: [`edit${n}`], deltas: [`edit${n}`] };
        await graphOf(frequency, saverOf(run)).updateState(at(threadId, anywhere), update, 'last');
        await endRun(pool, run);
      } else {
        await turn(threadId, n, frequency, anywhere);
      }
      if (random() < 0.4) {
        const before = await readAll(threadId, frequency);
        const keep = 1 + pick(6);
        const kept = (await idsOf(threadId)).slice(0, keep);
        const asked = random() < 0.7;
        if (asked) await pool.query('update lineages set pruned_seq = 0, kept_extra = 0');
        await prune(keep, asked ? graphsWith(frequency) : NO_GRAPHS);
        const left = await readAll(threadId, frequency);
        const told = `seed ${seed}, round ${round}, step ${n}, snapshots every ${frequency}, keep ${keep}`;
        expect([...left.keys()], told).toEqual(expect.arrayContaining(kept));
        for (const [id, state] of left) expect(state, told).toEqual(before.get(id));
      }
    }
  }
});

/** Numbers from 0 to 1 that a seed repeats. */
function generator(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let t = Math.imul(state ^ (state >>> 15), state | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
}
