/** Runs as LangGraph clients ask for them: where they belong, what they come after, and what is left when they are taken back. */
import { randomUUID } from 'node:crypto';
import { emptyCheckpoint } from '@langchain/langgraph-checkpoint';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { RunledgerError } from '#src/errors.ts';
import type { InterruptFacts } from '#src/events/event.ts';
import { createHub } from '#src/events/live-hub.ts';
import { createMemoryLog } from '#src/events/memory-log.ts';
import { openSaver } from '#src/graphs/checkpoints.ts';
import type { GraphRegistry } from '#src/graphs/graph.ts';
import type { Pool } from '#src/postgres/pool.ts';
import type { AdmitDeps } from '#src/runs/admission.ts';
import { admitInput } from '#src/runs/admit-input.ts';
import { cancel } from '#src/runs/cancel.ts';
import { claim } from '#src/runs/claim.ts';
import { deleteRun } from '#src/runs/delete-run.ts';
import { edit } from '#src/runs/edit.ts';
import { type FinalizeDeps, finalize } from '#src/runs/finalize.ts';
import { emptyOutcome, type Outcome } from '#src/runs/outcome.ts';
import type { Run, StartRequest } from '#src/runs/run.ts';
import { createSweeps } from '#src/runs/sweeps.ts';
import { selectTurns } from '#src/threads/queries.ts';
import { searchListed } from '#src/threads/search.ts';
import { createDatabase, type TestDatabase } from '#tests/support/database.ts';
import { silent, testPool } from '#tests/support/pools.ts';

let database: TestDatabase;
let pool: Pool;
let deps: AdmitDeps;
let ends: FinalizeDeps;

beforeAll(async () => {
  database = await createDatabase();
  pool = testPool(database.url, 10);
  const graphs: GraphRegistry = {
    ids: () => ['chat', 'notes'],
    has: (id) => id === 'chat' || id === 'notes',
    contextOf: (id) => (id === 'notes' ? 'transcript' : 'checkpoint'),
    instantiate: () => Promise.reject(new Error('nothing is executed here')),
  };
  deps = { pool, graphs, defaultGraph: 'chat', webhooks: { allowPrivate: false, secret: null } };
  const log = createMemoryLog({ memoryLimitBytes: 1_000_000 });
  const hub = createHub({ log, logger: silent });
  ends = {
    pool,
    log,
    hub,
    streamTtlMs: 60_000,
    unsent: () => false,
    logger: silent,
    onEnded: () => undefined,
  };
});
afterAll(async () => {
  await ends.hub.close();
  await ends.log.close();
  await pool.end();
  await database.drop();
});

const human = (content: string, id?: string) => ({
  messages: [{ role: 'human', content, ...(id === undefined ? {} : { id }) }],
});
const request = (fields: Partial<StartRequest> = {}): StartRequest => ({
  owner: 'anna',
  thread_id: null,
  if_missing: 'create',
  temporary: false,
  graph_id: 'chat',
  assistant: { id: null, config: {}, context: null, metadata: {} },
  input: human('hi'),
  command: null,
  config: {},
  strategy: 'reject',
  delay_ms: 0,
  stream_modes: [],
  on_disconnect: 'continue',
  wire: {},
  ...fields,
});
const start = async (fields: Partial<StartRequest> = {}): Promise<Run> => (await admitInput(deps, request(fields))).run;

async function refusal(promise: Promise<unknown>): Promise<RunledgerError> {
  const outcome = await promise.catch((error: unknown) => error);
  expect(outcome).toBeInstanceOf(RunledgerError);
  return outcome as RunledgerError;
}

/** Claims the thread's next run; other threads' are left. */
async function claimOn(threadId: string): Promise<Run> {
  await pool.query(`update runs set available_at = 'infinity' where status = 'queued' and thread_id <> $1::uuid`, [
    threadId,
  ]);
  const [run] = await claim(pool, randomUUID(), 1);
  if (run === undefined) throw new Error('nothing to claim');
  return run;
}

/** Puts a checkpoint for a claimed run after the one it names. */
async function put(run: Run, parent?: string): Promise<string> {
  const handle = openSaver(pool, { runId: run.id, epoch: run.epoch, metadata: { thread_id: run.lineage_id } }, () => {
    throw new Error('fenced');
  });
  const at = {
    configurable: { thread_id: run.lineage_id, checkpoint_ns: '', ...(parent && { checkpoint_id: parent }) },
  };
  const version = handle.saver.getNextVersion(undefined);
  const checkpoint = { ...emptyCheckpoint(), channel_values: { n: run.id }, channel_versions: { n: version } };
  const metadata = { source: 'loop', step: 0, parents: {} } as const;
  const { configurable } = await handle.saver.put(at, checkpoint, metadata, { n: version });
  await handle.saver.putWrites({ configurable: { ...configurable } }, [['n', 'pending']], 'task');
  await handle.close();
  return String(configurable?.checkpoint_id);
}

const end = (run: Run, outcome: Partial<Outcome> = {}) =>
  finalize(
    ends,
    run.id,
    { owner: true, epoch: run.epoch, given: 1 },
    { ...emptyOutcome('succeeded'), leftCheckpoint: true, ...outcome },
  );

async function ran(
  fields: Partial<StartRequest> = {},
  interrupts: InterruptFacts[] = [],
  parent?: string,
): Promise<Run> {
  const admitted = await start(fields);
  const run = await claimOn(admitted.thread_id);
  await put(run, parent);
  await end(run, interrupts.length > 0 ? { status: 'interrupted', interrupts } : {});
  return run;
}

const tipOf = async (run: Run): Promise<string | null> =>
  (await pool.query('select tip_checkpoint_id as tip from lineages where id = $1::uuid', [run.lineage_id])).rows[0]
    ?.tip;
const rowsOf = async (table: string, run: Run): Promise<number> =>
  Number((await pool.query(`select count(*) from ${table} where thread_id = $1`, [run.lineage_id])).rows[0].count);
const statusOf = async (run: Run): Promise<string | undefined> =>
  (await pool.query('select status from runs where id = $1::uuid', [run.id])).rows[0]?.status;

describe('where a run belongs', () => {
  test('an input that ends in a message of a person opens a turn; the message is found again by its id', async () => {
    const run = await start({ input: human('what?') });
    expect(run).toMatchObject({ kind: 'message', lineage_id: run.thread_id, status: 'queued' });
    const [turn] = await selectTurns(pool, run.thread_id);
    expect(turn).toMatchObject({ id: run.turn_id, question: { content: 'what?' } });
    expect(run.input).toMatchObject({ messages: [{ id: turn?.question?.id }] });
  });

  test('a message keeps the id its client gave it', async () => {
    expect((await start({ input: human('what?', 'mine') })).input).toEqual(human('what?', 'mine'));
  });

  test.each([[{ n: 1 }], [null], [{ messages: [{ role: 'assistant', content: 'x' }] }], [{ messages: ['text'] }]])(
    'input %o opens none',
    async (input) => {
      expect(await start({ input })).toMatchObject({ kind: 'plain', turn_id: null });
    },
  );

  test('a graph with a transcript gets a lineage for each turn', async () => {
    const run = await start({ graph_id: 'notes' });
    expect(run.lineage_id).not.toBe(run.thread_id);
  });

  test('a thread that is missing is made with its id, or refused', async () => {
    const id = randomUUID();
    expect((await refusal(start({ thread_id: id, if_missing: 'reject' }))).code).toBe('THREAD_NOT_FOUND');
    expect((await start({ thread_id: id })).thread_id).toBe(id);
    // guard: an id that is another owner's is no thread of mine
    expect((await refusal(start({ thread_id: id, owner: 'bob' }))).code).toBe('THREAD_NOT_FOUND');
  });

  test('assistant < thread < run', async () => {
    const assistant = {
      id: randomUUID(),
      config: { configurable: { a: 1, b: 1, c: 1 }, recursion_limit: 7 },
      context: { x: 1, y: 1 },
      metadata: { by: 'assistant' },
    };
    const first = await start({ assistant, config: { configurable: { b: 2 }, context: { y: 2 } } });
    expect(first.config).toMatchObject({
      configurable: { a: 1, b: 2, c: 1 },
      context: { x: 1, y: 2 },
      recursion_limit: 7,
    });
    const config = { configurable: { c: 3 }, metadata: { run: true } };
    const second = await start({ assistant, thread_id: first.thread_id, strategy: 'enqueue', config });
    expect(second.config).toMatchObject({
      configurable: { a: 1, b: 2, c: 3 },
      metadata: { by: 'assistant', run: true },
    });
    const { threads } = await searchListed(pool, 'anna', {
      metadata: { assistant_id: assistant.id, graph_id: 'chat' },
      limit: 10,
      offset: 0,
      sort_by: 'created_at',
      sort_order: 'desc',
    });
    expect(threads).toMatchObject([{ id: first.thread_id, activity: 'busy' }]);
  });

  test('a checkpoint the lineage does not have is refused: LangGraph would begin an empty state', async () => {
    const { thread_id } = await ran();
    const config = { checkpoint: { checkpoint_id: randomUUID() } };
    expect(await refusal(start({ thread_id, config, input: null }))).toMatchObject({
      code: 'INVALID_REQUEST',
      path: 'checkpoint_id',
    });
  });
});

describe('beside a live run', () => {
  test('reject refuses and names it, enqueue waits', async () => {
    const first = await start();
    const { thread_id } = first;
    expect(await refusal(start({ thread_id }))).toMatchObject({
      code: 'RUN_IN_PROGRESS',
      details: { run_id: first.id },
    });
    const second = await start({ thread_id, strategy: 'enqueue' });
    expect((await claimOn(thread_id)).id).toBe(first.id);
    expect(await claim(pool, randomUUID(), 1)).toEqual([]);
    await end(await running(first));
    expect((await claimOn(thread_id)).id).toBe(second.id);
  });

  test('reject comes after a run that has been asked to stop, and refuses beside that', async () => {
    const first = await start();
    const { thread_id } = first;
    const claimed = await claimOn(thread_id);
    await cancel({ ...ends, hintOwner: () => undefined }, first.id, 'interrupt');
    const second = await start({ thread_id });
    expect(await refusal(start({ thread_id }))).toMatchObject({ details: { run_id: second.id } });
    expect(await claim(pool, randomUUID(), 1)).toEqual([]);
    await end(claimed);
    expect((await claimOn(thread_id)).id).toBe(second.id);
  });

  test.each(['interrupt', 'rollback'] as const)(
    '%s asks the others to stop, in the same transaction',
    async (strategy) => {
      const first = await start();
      await claimOn(first.thread_id);
      const waiting = await start({ thread_id: first.thread_id, strategy: 'enqueue' });
      const { run, cancelled } = await admitInput(deps, request({ thread_id: first.thread_id, strategy }));
      expect(new Set(cancelled.map(({ id }) => id))).toEqual(new Set([first.id, waiting.id]));
      const { rows } = await pool.query(
        'select cancel_action from runs where thread_id = $1::uuid and cancel_requested_at is not null',
        [run.thread_id],
      );
      expect(rows).toEqual([{ cancel_action: strategy }, { cancel_action: strategy }]);
    },
  );

  test('a delayed run is not claimed before its time', async () => {
    const run = await start({ delay_ms: 3_600_000 });
    expect(await claim(pool, randomUUID(), 50)).not.toContainEqual(expect.objectContaining({ id: run.id }));
  });

  async function running(run: Run): Promise<Run> {
    return { ...run, epoch: 1 };
  }
});

describe('resuming', () => {
  const question = (id: string) => ({ id, value: 'go on?' });
  const one = 'a'.repeat(32);
  const two = 'b'.repeat(32);

  test('a bare value answers the one open question, in the turn that asked', async () => {
    const asked = await ran({}, [question(one)]);
    const run = await start({ thread_id: asked.thread_id, input: null, command: { resume: { ok: true } } });
    expect(run).toMatchObject({ kind: 'answer', turn_id: asked.turn_id, command: { resume: { [one]: { ok: true } } } });
  });

  test('a bare value is ambiguous for several; by their ids each is answered', async () => {
    const { thread_id } = await ran({}, [question(one), question(two)]);
    const bare = start({ thread_id, input: null, command: { resume: 'yes' } });
    expect(await refusal(bare)).toMatchObject({ code: 'INTERRUPT_AMBIGUOUS', details: { interrupt_ids: [one, two] } });
    await start({ thread_id, input: null, command: { resume: { [two]: 'yes' } } });
    const { rows } = await pool.query('select id, status from interrupts where thread_id = $1::uuid order by id', [
      thread_id,
    ]);
    expect(rows).toEqual([
      { id: one, status: 'open' },
      { id: two, status: 'answered' },
    ]);
  });

  test('a new message may come instead; a rollback of it leaves the question open', async () => {
    const asked = await ran({}, [question(one)]);
    const { thread_id } = asked;
    const before = await tipOf(asked);
    await start({ thread_id });
    const run = await claimOn(thread_id);
    await put(run, String(before));
    await cancel({ ...ends, hintOwner: () => undefined }, run.id, 'rollback');
    await end(run);
    const { rows } = await pool.query('select status from interrupts where thread_id = $1::uuid', [thread_id]);
    expect(rows).toEqual([{ status: 'open' }]);
    expect(await tipOf(asked)).toBe(before);
  });
});

describe('a run taken back', () => {
  test('leaves the thread as it was: checkpoints, writes, values, tip, turn', async () => {
    const former = await ran();
    const before = { tip: await tipOf(former), rows: await Promise.all(TABLES.map((table) => rowsOf(table, former))) };
    await start({ thread_id: former.thread_id });
    const run = await claimOn(former.thread_id);
    const first = await put(run, String(before.tip));
    await put(run, first);
    expect(await tipOf(run)).not.toBe(before.tip);
    await cancel({ ...ends, hintOwner: () => undefined }, run.id, 'rollback');
    const result = await end(run);
    expect(result).toMatchObject({ applied: true, run: { status: 'cancelled' } });
    expect(await tipOf(former)).toBe(before.tip);
    expect(await Promise.all(TABLES.map((table) => rowsOf(table, former)))).toEqual(before.rows);
    expect((await selectTurns(pool, former.thread_id)).map(({ id }) => id)).toEqual([former.turn_id]);
    const { threads } = await searchListed(pool, 'anna', { ids: [former.thread_id], ...ALL });
    expect(threads).toMatchObject([{ activity: 'idle' }]);
  });

  test('that nobody has claimed leaves nothing either', async () => {
    const former = await ran();
    const tip = await tipOf(former);
    const run = await start({ thread_id: former.thread_id });
    await cancel({ ...ends, hintOwner: () => undefined }, run.id, 'rollback');
    expect(await tipOf(former)).toBe(tip);
    expect(await selectTurns(pool, former.thread_id)).toHaveLength(1);
  });

  test('an interrupt instead keeps what was written', async () => {
    const former = await ran();
    await start({ thread_id: former.thread_id });
    const run = await claimOn(former.thread_id);
    const tip = await put(run, String(await tipOf(former)));
    await cancel({ ...ends, hintOwner: () => undefined }, run.id, 'interrupt');
    await end(run);
    expect(await tipOf(former)).toBe(tip);
    expect(await statusOf(run)).toBe('cancelled');
  });

  test('its row goes when nobody can follow it any more', async () => {
    const run = await start();
    await cancel({ ...ends, hintOwner: () => undefined }, run.id, 'rollback');
    await sweeper().sweep();
    expect(await statusOf(run)).toBe('cancelled');
    await pool.query(`update runs set ended_at = ended_at - interval '2 minutes' where id = $1::uuid`, [run.id]);
    expect((await sweeper().sweep()).rolledBack).toBeGreaterThan(0);
    expect(await statusOf(run)).toBeUndefined();
  });
});

describe('a run deleted', () => {
  test('takes its checkpoints with it when nothing is built on them', async () => {
    const former = await ran();
    const tip = await tipOf(former);
    const run = await ran({ thread_id: former.thread_id }, [], String(tip));
    await deleteRun(pool, 'anna', run.thread_id, run.id);
    expect(await statusOf(run)).toBeUndefined();
    expect(await tipOf(former)).toBe(tip);
    expect(await rowsOf('checkpoints', former)).toBe(1);
    expect(await selectTurns(pool, run.thread_id)).toHaveLength(1);
  });

  test('leaves them to a later run that is built on them', async () => {
    const former = await ran();
    const later = await ran({ thread_id: former.thread_id }, [], String(await tipOf(former)));
    const tip = await tipOf(later);
    await deleteRun(pool, 'anna', former.thread_id, former.id);
    expect(await tipOf(later)).toBe(tip);
    expect(await rowsOf('checkpoints', later)).toBe(2);
  });

  test('is refused while it lives, and for another owner', async () => {
    const run = await start();
    expect((await refusal(deleteRun(pool, 'anna', run.thread_id, run.id))).code).toBe('RUN_IN_PROGRESS');
    expect((await refusal(deleteRun(pool, 'bob', run.thread_id, run.id))).code).toBe('THREAD_NOT_FOUND');
  });
});

describe('an edit', () => {
  const place = (run: Run) => ({
    owner: 'anna',
    threadId: run.thread_id,
    lineageId: run.lineage_id,
    graphId: 'chat',
    metadata: {},
  });

  test('is refused while a run lives, also one that waits', async () => {
    const run = await start();
    expect((await refusal(edit(pool, place(run), async () => undefined))).code).toBe('RUN_IN_PROGRESS');
  });

  test('that fails leaves nothing, not even its run', async () => {
    const run = await ran();
    const count = async () =>
      Number((await pool.query('select count(*) from runs where thread_id = $1::uuid', [run.thread_id])).rows[0].count);
    const before = await count();
    const failing = edit(pool, place(run), async (saver) => {
      const version = saver.getNextVersion(undefined);
      const checkpoint = { ...emptyCheckpoint(), channel_values: {}, channel_versions: { n: version } };
      const at = { configurable: { thread_id: run.lineage_id, checkpoint_ns: '' } };
      await saver.put(at, checkpoint, { source: 'update', step: 1, parents: {} }, {});
      throw new Error('the graph refuses');
    });
    await expect(failing).rejects.toThrow('the graph refuses');
    expect(await count()).toBe(before);
    expect(await rowsOf('checkpoints', run)).toBe(1);
  });

  test('gives its connection back when the graph never answers', async () => {
    const run = await ran();
    const hanging = edit(pool, place(run), () => new Promise(() => undefined));
    expect((await refusal(hanging)).code).toBe('UNAVAILABLE');
    expect(pool.idleCount).toBe(pool.totalCount);
    // The thread is free again.
    await edit(pool, place(run), async () => undefined);
  });

  test('keeps a run of the thread waiting until it has ended', async () => {
    const run = await ran();
    const order: string[] = [];
    const gate = Promise.withResolvers<void>();
    const begun = Promise.withResolvers<void>();
    const editing = edit(pool, place(run), async () => {
      begun.resolve();
      await gate.promise;
      order.push('edited');
    });
    await begun.promise;
    const admitted = start({ thread_id: run.thread_id }).then(() => order.push('admitted'));
    gate.resolve();
    await Promise.all([editing, admitted]);
    expect(order).toEqual(['edited', 'admitted']);
    const { rows } = await pool.query(`select status, kind from runs where thread_id = $1::uuid and kind = 'edit'`, [
      run.thread_id,
    ]);
    expect(rows).toEqual([{ status: 'succeeded', kind: 'edit' }]);
  });
});

test('the thread of a run that named none is shown nowhere, and goes some time after its end', async () => {
  const owner = randomUUID();
  const run = await start({ owner, temporary: true });
  expect(run.kind).toBe('plain');
  expect(await searchListed(pool, owner, ALL)).toEqual({ threads: [], total: 0 });
  await pool.query(`update threads set active_at = active_at - interval '1 hour' where id = $1::uuid`, [run.thread_id]);
  // guard: not while its run lives
  await sweeper().sweep();
  expect(await statusOf(run)).toBe('queued');
  await cancel({ ...ends, hintOwner: () => undefined }, run.id, 'interrupt');
  await sweeper().sweep();
  expect(await statusOf(run)).toBe('cancelled');
  await pool.query(`update threads set active_at = active_at - interval '1 hour' where id = $1::uuid`, [run.thread_id]);
  expect((await sweeper().sweep()).temporary).toBe(1);
  expect(await statusOf(run)).toBeUndefined();
});

const TABLES = ['checkpoints', 'checkpoint_writes', 'checkpoint_blobs'];
const ALL = { limit: 10, offset: 0, sort_by: 'created_at', sort_order: 'desc' } as const;
const sweeper = () =>
  createSweeps({
    pool,
    log: ends.log,
    graphs: deps.graphs,
    config: {
      runs: { preparedTtlMs: 3_600_000 },
      events: { streamTtlMs: 60_000 },
      retention: { outboxDeliveredMs: 1_000_000, outboxDeadMs: 1_000_000, threadsMs: null },
      checkpoints: { keep: null },
    },
    cancelPrepared: async () => undefined,
    logger: silent,
  });
