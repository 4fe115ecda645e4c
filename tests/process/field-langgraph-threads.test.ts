/**
 * Threads of the LangGraph dialect: what they cost to keep (field case A34) and to read (A35), that nobody reaches another
 * user's (A41), and that a deleted one stays deleted (A45).
 */
import { fileURLToPath } from 'node:url';
import type { Client } from '@langchain/langgraph-sdk';
import { Redis } from 'ioredis';
import pg from 'pg';
import { afterAll, beforeAll, describe, expect, inject, test } from 'vitest';
import { createRng } from '#tests/chaos/rng.ts';
import { type Cluster, call, startCluster } from '#tests/support/cluster.ts';
import { say } from '#tests/support/fake-model-script.ts';
import { clientOf, human, messagesOf, partsOf, partsUntil, textsOf } from '#tests/support/langgraph-client.ts';
import { type PostgresMeter, startPostgresMeter } from '#tests/support/postgres-meter.ts';
import type { TestServer } from '#tests/support/server.ts';
import { until } from '#tests/support/until.ts';

let cluster: Cluster;
let a: TestServer;
let b: TestServer;
/** Ann's, on one process and on the other. */
let client: Client;
let other: Client;
let ledger: pg.Pool;
let redis: Redis;

const ANN = { 'x-dev-user': 'ann' };
const BEN = { 'x-dev-user': 'ben' };

beforeAll(async () => {
  const file = (name: string) => fileURLToPath(new URL(`../support/graphs/${name}.ts`, import.meta.url));
  const chat = fileURLToPath(new URL('../../src/graphs/chat.ts', import.meta.url));
  cluster = await startCluster({
    size: 2,
    model: { script: () => say('one two three four five six seven eight nine ten') },
    server: {
      config: {
        auth: { mode: 'dev' },
        graphs: {
          chat: `${chat}:graph`,
          pages: `${file('pages')}:pages`,
          echo: `${file('plain')}:uncompiled`,
          asks: `${file('approvals')}:twoNodes`,
        },
      },
    },
  });
  [a, b] = cluster.servers as [TestServer, TestServer];
  [client, other] = [clientOf(a, ANN), clientOf(b, ANN)];
  ledger = new pg.Pool({ connectionString: cluster.database.url, max: 4 });
  redis = new Redis(inject('redisUrl'));
});
afterAll(async () => {
  await ledger?.end();
  redis?.disconnect();
  await cluster?.stop();
});

const newThread = async (): Promise<string> => (await client.threads.create()).thread_id;
const isRunning = (threadId: string, runId: string) =>
  until(async () => (await client.runs.get(threadId, runId)).status === 'running', { message: 'the run to run' });

/** Every table that says of which thread a row is, by the column that says it. */
async function rowsOf(threadIds: string[]): Promise<{ [table: string]: number }> {
  const { rows: columns } = await ledger.query<{ table: string; column: string }>(
    `select c.table_name as table, c.column_name as column from information_schema.columns c
     join information_schema.tables t using (table_schema, table_name)
     where c.table_schema = 'public' and t.table_type = 'BASE TABLE'
       and (c.column_name = 'thread_id' or (c.table_name = 'threads' and c.column_name = 'id'))`,
  );
  expect(columns.length).toBeGreaterThan(7);
  const counts: { [table: string]: number } = {};
  for (const { table, column } of columns) {
    const { rows } = await ledger.query(
      `select count(*)::int as count from "${table}" where "${column}"::text = any($1::text[])`,
      [threadIds],
    );
    counts[table] = rows[0].count;
  }
  return counts;
}

describe('a long thread (A34)', () => {
  const TURNS = 100;

  test('takes as many bytes for a late turn as for an early one', async () => {
    const threadId = await newThread();
    /** Bytes that the thread's rows hold, uncompressed and without what Postgres adds. */
    const held = async (): Promise<number> => {
      const { rows } = await ledger.query(
        `select (select coalesce(sum(length(checkpoint::text) + length(metadata::text)), 0) from checkpoints where thread_id = $1)
              + (select coalesce(sum(length(blob)), 0) from checkpoint_blobs where thread_id = $1)
              + (select coalesce(sum(length(blob)), 0) from checkpoint_writes where thread_id = $1) as bytes`,
        [threadId],
      );
      return Number(rows[0].bytes);
    };
    const after = new Map<number, number>();
    for (let turn = 1; turn <= TURNS; turn += 1) {
      const input = human(`question ${String(turn).padStart(4, '0')}`);
      await partsOf(client.runs.stream(threadId, 'chat', { input, streamMode: 'custom' }));
      if ([10, 30, TURNS - 20, TURNS].includes(turn)) after.set(turn, await held());
    }
    const between = (from: number, to: number) => ((after.get(to) ?? 0) - (after.get(from) ?? 0)) / (to - from);
    const [early, late] = [between(10, 30), between(TURNS - 20, TURNS)];
    expect(early).toBeGreaterThan(500);
    expect(late / early).toBeLessThan(1.2);

    // What is old can go, and the thread goes on from what is left.
    const whole = messagesOf((await client.threads.getState(threadId)).values);
    expect(whole).toHaveLength(2 * TURNS);
    const before = await held();
    await other.threads.prune([threadId], { strategy: 'keep_latest' });
    // All messages once, in one snapshot, and what the latest turn began at.
    expect(await held()).toBeLessThan(before * 0.6);
    const { rows } = await ledger.query('select count(*)::int as count from checkpoints where thread_id = $1', [
      threadId,
    ]);
    expect(rows[0].count).toBeLessThan(10);
    expect(messagesOf((await client.threads.getState(threadId)).values)).toEqual(whole);
    const values = await other.runs.wait(threadId, 'chat', { input: human('and on') });
    expect(messagesOf(values).slice(0, -2)).toEqual(whole);
  });

  test('is not pruned from under a question that is open or a run that runs', async () => {
    const asking = await newThread();
    await client.runs.wait(asking, 'asks', { input: human('go') });
    const working = await newThread();
    const { run_id } = await client.runs.create(working, 'pages', {
      input: {},
      config: { configurable: { count: 60, stepMs: 20 }, recursion_limit: 100 },
    });
    await isRunning(working, run_id);
    await other.threads.prune([asking, working], { strategy: 'keep_latest' });
    expect(await client.runs.join(working, run_id)).toMatchObject({ step: 60 });
    await client.runs.wait(asking, 'asks', { command: { resume: 'yes' } });
    const values = await other.runs.wait(asking, 'asks', { command: { resume: 'sure' } });
    expect(values).toMatchObject({ answers: ['one:yes', 'two:sure'] });
  });
});

describe('reading a thread of 300 checkpoints of 50 KB each (A35)', () => {
  const CHECKPOINTS = 300;
  const BYTES = 50_000;
  /** Postgres tells bytes in hexadecimal digits. */
  const STATE = 2 * BYTES;
  /** In a history each state comes with what its tasks wrote, which is the next one's value. */
  const STEP = 2 * STATE + 10_000;
  let threadId: string;
  let meter: PostgresMeter;
  /** Reads through the meter and executes nothing. */
  let server: TestServer;
  let metered: Client;

  beforeAll(async () => {
    threadId = await newThread();
    const asked = {
      input: human('go'),
      streamMode: 'custom' as const,
      config: { configurable: { count: CHECKPOINTS, bytes: BYTES }, recursion_limit: CHECKPOINTS + 10 },
    };
    await partsOf(client.runs.stream(threadId, 'pages', asked));
    meter = await startPostgresMeter(cluster.database.url);
    server = await cluster.add({ env: { DATABASE_URL: meter.url }, config: { roles: ['http'] } });
    metered = clientOf(server, ANN);
    // What a process asks once only.
    await metered.threads.getState(threadId);
  });
  afterAll(async () => {
    await server?.stop();
    await meter?.close();
  });

  /** Beside what is asked for, the server renews its lease and listens: a few rows, and few bytes. */
  const OTHER = { statements: 20, rows: 20, bytes: 20_000 };

  test('history reads as many states as were asked for', async () => {
    const reads = (limit: number, before?: string) =>
      meter.during(async () => {
        const states = await metered.threads.getHistory(threadId, {
          limit,
          ...(before === undefined ? {} : { before: { configurable: { checkpoint_id: before } } }),
        });
        expect(states).toHaveLength(limit);
      });
    const ten = await reads(10);
    expect(ten.bytes).toBeGreaterThan(10 * STATE);
    expect(ten.bytes).toBeLessThan(10 * STEP + OTHER.bytes);
    expect(ten.rows).toBeLessThan(10 * 20 + OTHER.rows);
    expect(ten.statements).toBeLessThan(10 * 2 + OTHER.statements);
    // The end of the thread is as far away as its beginning.
    const { rows } = await ledger.query<{ id: string }>(
      'select checkpoint_id as id from checkpoints where thread_id = $1 order by seq limit 1 offset 20',
      [threadId],
    );
    const early = await reads(10, rows[0]?.id);
    expect(early.bytes).toBeGreaterThan(8 * STATE);
    expect(early.bytes).toBeLessThan(10 * STEP + OTHER.bytes);
    expect(early.rows).toBeLessThan(10 * 20 + OTHER.rows);
  });

  test('a state costs itself', async () => {
    const one = await meter.during(() => metered.threads.getState(threadId));
    expect(one.bytes).toBeGreaterThan(STATE);
    expect(one.bytes).toBeLessThan(STATE + OTHER.bytes);
    expect(one.rows).toBeLessThan(20 + OTHER.rows);
    const thread = await meter.during(() => metered.threads.get(threadId));
    expect(thread.bytes).toBeLessThan(STATE + OTHER.bytes);
  });

  test('a list reads states only where its fields say so, and then one of each thread', async () => {
    const fields = await meter.during(async () => {
      const found = await metered.threads.search({ ids: [threadId], select: ['thread_id', 'status', 'metadata'] });
      expect(found).toHaveLength(1);
    });
    expect(fields.bytes).toBeLessThan(OTHER.bytes);
    const runs = await meter.during(() => metered.runs.list(threadId));
    expect(runs.bytes).toBeLessThan(OTHER.bytes);
    const count = await meter.during(() => metered.threads.count());
    expect(count.bytes).toBeLessThan(OTHER.bytes);
    const whole = await meter.during(() => metered.threads.search({ ids: [threadId] }));
    expect(whole.bytes).toBeGreaterThan(STATE);
    expect(whole.bytes).toBeLessThan(STATE + OTHER.bytes);
  });
});

describe('a thread of somebody else (A41)', () => {
  test('is not there, on every route, and nothing happens to it', async () => {
    const threadId = await newThread();
    const { assistant_id: assistant } = await client.assistants.create({ graphId: 'echo' });
    await client.runs.wait(threadId, assistant, { input: human('mine') });
    const live = await client.runs.create(threadId, 'pages', {
      input: {},
      config: { configurable: { count: 90, stepMs: 50 }, recursion_limit: 100 },
    });
    await isRunning(threadId, live.run_id);
    const asking = await newThread();
    await client.runs.wait(asking, 'asks', { input: human('go') });
    const [ended] = await client.runs.list(asking);
    const NEVER = '0 0 1 1 *';
    const cron = await client.crons.createForThread(asking, assistant, { schedule: NEVER });
    const checkpoint = (await client.threads.getState(asking)).checkpoint.checkpoint_id;
    await client.store.putItem(['notes'], 'key', { text: 'mine' });

    /** All that Ann has on the thread where nothing runs, to the byte. */
    const kept = async () => {
      const all: unknown[] = [];
      for (const table of ['threads', 'turns', 'messages', 'runs', 'lineages', 'interrupts', 'crons']) {
        const column = table === 'threads' ? 'id' : 'thread_id';
        all.push(
          (await ledger.query(`select * from ${table} where ${column} = $1::uuid order by 1::text`, [asking])).rows,
        );
      }
      for (const table of ['checkpoints', 'checkpoint_blobs', 'checkpoint_writes']) {
        all.push(
          (await ledger.query(`select * from ${table} where thread_id = $1 order by ${table}::text`, [asking])).rows,
        );
      }
      all.push((await ledger.query('select owner, namespace, key, value from store_items order by 2, 3')).rows);
      all.push((await ledger.query('select * from assistants where owner is not null')).rows);
      all.push(await redis.xrange(`runledger:{${ended?.run_id}}:log`, '-', '+'));
      return all;
    };
    const before = await kept();

    const run = { assistant_id: 'echo', input: human('yours') };
    const message = { content: 'yours', graph: 'echo' };
    const answers = { interrupts: { x: 1 } };
    for (const [thread, runId] of [
      [asking, ended?.run_id],
      [threadId, live.run_id],
    ]) {
      const threads: [method: string, path: string, body?: object, status?: number][] = [
        ['GET', ''],
        ['PATCH', '', { metadata: { x: 1 } }],
        ['DELETE', ''],
        ['POST', '/copy', {}, 409],
        ['GET', '/stream'],
        ['GET', '/state'],
        ['GET', `/state/${checkpoint}`],
        ['POST', '/state/checkpoint', { checkpoint: { checkpoint_id: checkpoint } }],
        ['POST', '/state', { values: human('yours') }],
        ['PATCH', '/state', { metadata: { x: 1 } }],
        ['GET', '/history'],
        ['POST', '/history', {}],
        ...['/runs', '/runs/stream', '/runs/wait'].flatMap((path) => [
          ['POST', path, run] as [string, string, object],
          ['POST', path, { ...run, if_not_exists: 'create' }] as [string, string, object],
          ['POST', path, { ...run, multitask_strategy: 'rollback' }] as [string, string, object],
          ['POST', path, { assistant_id: 'asks', command: { resume: 'yours' } }] as [string, string, object],
        ]),
        ['GET', '/runs'],
        ['GET', `/runs/${runId}`],
        ['GET', `/runs/${runId}/join?cancel_on_disconnect=1`],
        ['GET', `/runs/${runId}/stream?cancel_on_disconnect=1`],
        ['POST', `/runs/${runId}/cancel?wait=1`],
        ['POST', `/runs/${runId}/cancel?action=rollback`],
        ['DELETE', `/runs/${runId}`],
        ['POST', '/runs/crons', { assistant_id: 'echo', schedule: NEVER }],
      ];
      const own: [method: string, path: string, body?: object, status?: number][] = [
        ['GET', `/runs/${runId}/stream`],
        ['PATCH', `/runs/crons/${cron.cron_id}`, { schedule: '0 0 2 1 *' }],
        ['DELETE', `/runs/crons/${cron.cron_id}`],
        ['POST', '/runs/crons', { assistant_id: assistant, schedule: NEVER }],
        ['POST', '/runs/wait', { ...run, assistant_id: assistant }],
        ['GET', `/assistants/${assistant}`],
        ['GET', `/assistants/${assistant}/graph`],
        ['GET', `/assistants/${assistant}/schemas`],
        ['GET', `/assistants/${assistant}/subgraphs`],
        ['PATCH', `/assistants/${assistant}`, { metadata: { x: 1 } }],
        ['POST', `/assistants/${assistant}/versions`, {}],
        ['POST', `/assistants/${assistant}/latest`, { version: 1 }],
        ['DELETE', `/assistants/${assistant}?delete_threads=true`],
        // There is such a thread: an id is given once.
        ['POST', '/threads', { thread_id: thread }, 409],
        ['POST', '/threads', { thread_id: thread, if_exists: 'do_nothing' }, 409],
      ];
      const rest: [method: string, path: string, body?: object][] = [
        ['GET', ''],
        ['PATCH', '', { title: 'yours' }],
        ['DELETE', '?force=true'],
        ['GET', '/turns'],
        ['GET', '/status'],
        ['GET', '/messages/stream'],
        ['GET', `/messages/stream?run_id=${runId}`],
        ['POST', '/messages', message],
        ['POST', '/answer', answers],
        ['POST', '/retry', {}],
        ['POST', '/cancel', {}],
      ];
      const asked = [
        ...threads.map(([method, path, body, status]) => [method, `/threads/${thread}${path}`, body, status] as const),
        ...own,
        ...rest.map(([method, path, body]) => [method, `/api/v1/threads/${thread}${path}`, body] as const),
        ['GET', `/api/v1/runs/${runId}`] as const,
      ];
      for (const [method, path, body, status = 404] of asked) {
        const response = await fetch(`${b.url}${path}`, {
          method,
          headers: { ...BEN, ...(body === undefined ? {} : { 'content-type': 'application/json' }) },
          ...(body === undefined ? {} : { body: JSON.stringify(body) }),
        });
        expect([method, path, response.status]).toEqual([method, path, status]);
        expect(await response.text()).not.toContain('mine');
      }
    }

    // What names several, and what looks for some, finds none.
    const ben = clientOf(b, BEN);
    expect(await ben.threads.prune([asking, threadId])).toEqual({ pruned_count: 0 });
    await ben.runs.cancelMany({ runIds: [live.run_id] });
    await ben.runs.cancelMany({ threadId, status: 'all' });
    expect(await ben.threads.search({ ids: [asking, threadId] })).toEqual([]);
    expect(await ben.threads.count()).toBe(0);
    expect(await ben.crons.search()).toEqual([]);
    expect(await ben.crons.count()).toBe(0);
    expect((await ben.assistants.search({ limit: 100 })).map(({ assistant_id }) => assistant_id)).not.toContain(
      assistant,
    );
    expect(await ben.store.getItem(['notes'], 'key')).toBeNull();
    expect((await ben.store.searchItems([])).items).toEqual([]);
    expect((await ben.store.listNamespaces()).namespaces).toEqual([]);
    await ben.store.deleteItem(['notes'], 'key');
    expect((await call<{ threads: [] }>(b, 'GET', '/api/v1/threads', undefined, BEN)).body.threads).toEqual([]);

    expect(await kept()).toEqual(before);
    // The one that ran has not noticed.
    expect(await client.runs.join(threadId, live.run_id)).toMatchObject({ step: 90 });
    expect((await client.runs.list(threadId)).map(({ status }) => status)).toEqual(['success', 'success']);
    expect(textsOf((await client.threads.getState(threadId)).values)).toEqual(['mine', 'uncompiled: mine', 'turning']);
  });
});

describe('a thread that is deleted (A45)', () => {
  const ROUNDS = 20;
  const rng = createRng(45);
  const work = {
    input: human('go'),
    streamMode: ['custom', 'updates', 'values'] as ('custom' | 'updates' | 'values')[],
    config: { configurable: { count: 400, bytes: 2_000, stepMs: 5 }, recursion_limit: 500 },
  };

  /** A run that has told so many steps, and goes on. */
  async function at(steps: number, on: Client): Promise<{ threadId: string; runId: string }> {
    const threadId = await newThread();
    const { run_id: runId } = await on.runs.create(threadId, 'pages', work);
    await partsUntil(
      (signal) => on.runs.joinStream(threadId, runId, { signal }),
      (parts) => parts.filter(({ event }) => event === 'custom').length >= steps,
    );
    return { threadId, runId };
  }

  async function expectGone(runs: { threadId: string; runId: string }[]): Promise<void> {
    const ids = runs.map(({ threadId }) => threadId);
    expect(Object.entries(await rowsOf(ids)).filter(([, count]) => count > 0)).toEqual([]);
    const logs = await Promise.all(runs.map(({ runId }) => redis.xlen(`runledger:{${runId}}:log`)));
    expect(logs).toEqual(runs.map(() => 0));
    // Made again, it holds what is new and nothing else.
    await Promise.all(
      ids.map(async (threadId) => {
        await client.threads.create({ threadId });
        expect(await other.threads.getState(threadId)).toMatchObject({ values: {}, next: [] });
        expect(await other.runs.list(threadId)).toEqual([]);
        const values = await other.runs.wait(threadId, 'echo', { input: human('new') });
        expect(textsOf(values)).toEqual(['new', 'uncompiled: new']);
        expect(await client.threads.getHistory(threadId, { limit: 100 })).toHaveLength(3);
      }),
    );
  }

  test('in the middle of a run, at whatever moment and through whichever process, is gone for good', async () => {
    const deleted: { threadId: string; runId: string }[] = [];
    const one = async (): Promise<void> => {
      const [maker, remover] = rng.shuffle([client, other]) as [Client, Client];
      const made = await at(rng.int(0, 25), maker);
      await remover.threads.delete(made.threadId);
      await expect(maker.threads.get(made.threadId)).rejects.toThrow('HTTP 404');
      deleted.push(made);
    };
    for (let round = 0; round < ROUNDS; round += 5) await Promise.all(Array.from({ length: 5 }, one));
    await expectGone(deleted);
  });

  test('while the process that executes its run stands still is gone when that goes on, too', async () => {
    const runs = await Promise.all(Array.from({ length: 4 }, () => at(3, client)));
    const { rows } = await ledger.query<{ id: string; pid: number }>(
      'select r.id, w.pid from runs r join workers w on w.id = r.worker_id where r.id = any($1::uuid[])',
      [runs.map(({ runId }) => runId)],
    );
    const [owner] = cluster.servers.filter(({ pid }) => rows.some((row) => row.pid === pid));
    if (owner === undefined) throw new Error('nobody owns a run');
    const theirs = runs.filter(({ runId }) => rows.some(({ id, pid }) => id === runId && pid === owner.pid));
    const remover = owner.pid === a.pid ? other : client;
    owner.kill('SIGSTOP');
    await Promise.all(runs.map(({ threadId }) => remover.threads.delete(threadId)));
    owner.kill('SIGCONT');
    const lost = (runId: string) => new RegExp(`${runId}.*(lost|fenced)`).test(owner.logs());
    await until(() => theirs.every(({ runId }) => lost(runId)), {
      timeoutMs: 30_000,
      message: 'the owner to find that it has lost its runs',
    });
    await until(async () => (await fetch(`${owner.url}/readyz`)).ok, { timeoutMs: 30_000, message: 'it to be well' });
    await expectGone(runs);
  });
});
