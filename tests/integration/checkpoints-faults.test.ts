/** What LangGraph's own Postgres saver gets wrong, each shown wrong with it and right with ours. */
import { randomUUID } from 'node:crypto';
import { Annotation, DeltaChannel, END, START, StateGraph } from '@langchain/langgraph';
import type { BaseCheckpointSaver } from '@langchain/langgraph-checkpoint';
import { PostgresSaver } from '@langchain/langgraph-checkpoint-postgres';
import { afterAll, afterEach, beforeAll, describe, expect, test, vi } from 'vitest';
import { Fenced, openSaver, SaverClosed } from '#src/graphs/checkpoints.ts';
import type { Pool } from '#src/postgres/pool.ts';
import { createDatabase, type TestDatabase } from '#tests/support/database.ts';
import { endRun, insertRunningRun, type LedgerRun, takeOver } from '#tests/support/ledger.ts';
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
afterEach(() => {
  vi.useRealTimers();
});

const ours = (run: LedgerRun, onFenced = (): void => {}): BaseCheckpointSaver =>
  openSaver(pool, { runId: run.runId, epoch: run.epoch, metadata: { run_id: run.runId } }, onFenced).saver;
const stock = (): BaseCheckpointSaver => new PostgresSaver(pool);

const Words = Annotation.Root({
  words: Annotation<string[]>({ reducer: (all, more) => [...all, ...more], default: () => [] }),
});

/** One node that adds its word. */
function adds(word: string, saver: BaseCheckpointSaver) {
  return new StateGraph(Words)
    .addNode('add', () => ({ words: [word] }))
    .addEdge(START, 'add')
    .addEdge('add', END)
    .compile({ checkpointer: saver });
}

const at = (threadId: string) => ({ configurable: { thread_id: threadId }, durability: 'sync' as const });
const wordsOf = async (saver: BaseCheckpointSaver, threadId: string): Promise<string[]> =>
  (await adds('', saver).getState(at(threadId))).values.words;

async function nextRun(threadId: string, ordinal: number): Promise<LedgerRun> {
  return insertRunningRun(pool, { threadId, ordinal });
}

describe('a fork', () => {
  async function fork(make: (run: LedgerRun) => BaseCheckpointSaver): Promise<string[]> {
    const run = await insertRunningRun(pool);
    const saver = make(run);
    const graph = adds('said', saver);
    await graph.invoke({ words: ['hi'] }, at(run.threadId));
    const history = [];
    for await (const state of graph.getStateHistory(at(run.threadId))) history.push(state);
    const beforeNode = history.find((state) => state.next.includes('add'));
    const forked = await graph.updateState(beforeNode?.config ?? {}, { words: ['FORKED'] }, 'add');
    return (await graph.getState(forked)).values.words;
  }

  test('keeps its own value; the stock saver gives it that of the branch it left', async () => {
    expect(await fork(ours)).toEqual(['hi', 'FORKED']);
    expect(await fork(stock)).not.toEqual(['hi', 'FORKED']);
  });
});

describe('two writers that continue the same checkpoint', () => {
  /** Both have read the same tip; the old owner's node ends first, then the new owner's. */
  async function race(make: (run: LedgerRun) => BaseCheckpointSaver) {
    const first = await insertRunningRun(pool);
    await adds('base', make(first)).invoke({ words: ['hi'] }, at(first.threadId));
    const zombie = gated('ZOMBIE', make(first));
    const zombieEnd = zombie.graph.invoke({ words: ['q'] }, at(first.threadId)).then(
      () => null,
      (error: unknown) => error,
    );
    await zombie.begun;
    const second = await takeOver(pool, first);
    const owner = gated('OWNER', make(second));
    const ownerEnd = owner.graph.invoke(null, at(first.threadId));
    await owner.begun;
    zombie.go();
    const error = await zombieEnd;
    owner.go();
    const { words } = await ownerEnd;
    return { error, inProcess: words, stored: await wordsOf(make(second), first.threadId) };
  }

  function gated(word: string, saver: BaseCheckpointSaver) {
    const gate = Promise.withResolvers<void>();
    const begun = Promise.withResolvers<void>();
    const graph = new StateGraph(Words)
      .addNode('add', async () => {
        begun.resolve();
        await gate.promise;
        return { words: [word] };
      })
      .addEdge(START, 'add')
      .addEdge('add', END)
      .compile({ checkpointer: saver });
    return { graph, begun: begun.promise, go: () => gate.resolve() };
  }

  test('the old owner is refused and what is stored is what the new one made; the stock saver stores the zombie', async () => {
    const fenced = await race(ours);
    expect(fenced.error).toBeInstanceOf(Fenced);
    expect(fenced.stored).toEqual(['hi', 'base', 'q', 'OWNER']);
    expect(fenced.stored).toEqual(fenced.inProcess);
    const unfenced = await race(stock);
    expect(unfenced.error).toBeNull();
    expect(unfenced.stored).not.toEqual(unfenced.inProcess);
  });
});

describe('a worker whose clock is an hour ahead', () => {
  async function ahead(make: (run: LedgerRun) => BaseCheckpointSaver): Promise<string[]> {
    const first = await insertRunningRun(pool);
    vi.useFakeTimers({ now: Date.now() + 3_600_000, toFake: ['Date'] });
    await adds('one', make(first)).invoke({ words: ['1'] }, at(first.threadId));
    vi.useRealTimers();
    await endRun(pool, first);
    const second = await nextRun(first.threadId, 2);
    await adds('two', make(second)).invoke({ words: ['2'] }, at(first.threadId));
    return wordsOf(make(second), first.threadId);
  }

  test('does not swallow the next turn; with the stock saver it does', async () => {
    expect(await ahead(ours)).toEqual(['1', 'one', '2', 'two']);
    expect(await ahead(stock)).toEqual(['1', 'one']);
  });
});

describe('parallel writes to a delta channel', () => {
  const NODES = ['d', 'b', 'a', 'c', 'f', 'e'];

  function fanOut(saver: BaseCheckpointSaver) {
    const State = Annotation.Root({
      words: () =>
        new DeltaChannel<string[], string[]>((all, writes) => [...all, ...writes.flat()], { snapshotFrequency: 1_000 }),
    });
    let graph = new StateGraph(State) as unknown as StateGraph<
      typeof State,
      { words: string[] },
      { words?: string[] },
      string
    >;
    for (const name of NODES)
      graph = graph
        .addNode(name, () => ({ words: [name] }))
        .addEdge(START, name)
        .addEdge(name, END);
    return graph.compile({ checkpointer: saver });
  }

  async function rebuilt(make: (run: LedgerRun) => BaseCheckpointSaver): Promise<boolean> {
    const run = await insertRunningRun(pool);
    const live = await fanOut(make(run)).invoke({ words: ['in'] }, at(run.threadId));
    const again = await fanOut(make(run)).getState(at(run.threadId));
    return JSON.stringify(live.words) === JSON.stringify(again.values.words);
  }

  test('are rebuilt in the order they were applied; the stock saver loses it', async () => {
    const trials = Array.from({ length: 8 });
    expect((await Promise.all(trials.map(() => rebuilt(ours)))).every(Boolean)).toBe(true);
    expect((await Promise.all(trials.map(() => rebuilt(stock)))).every(Boolean)).toBe(false);
  });
});

describe('the fence', () => {
  test.each(['ended', 'deleted', 'taken over'])('refuses put and putWrites for a run that is %s', async (how) => {
    const run = await insertRunningRun(pool);
    const onFenced = vi.fn();
    const saver = ours(run, onFenced);
    const config = await adds('x', saver).updateState(at(run.threadId), { words: ['x'] }, 'add');
    const count = async () =>
      (await pool.query('select count(*) from checkpoints where thread_id = $1', [run.threadId])).rows[0].count;
    const before = await count();
    if (how === 'ended') await endRun(pool, run);
    else if (how === 'deleted') await pool.query('delete from runs where id = $1::uuid', [run.runId]);
    else await takeOver(pool, run);
    await expect(adds('y', saver).updateState(at(run.threadId), { words: ['y'] }, 'add')).rejects.toThrow(Fenced);
    await expect(saver.putWrites(config, [['words', ['y']]], randomUUID())).rejects.toThrow(Fenced);
    expect(onFenced).toHaveBeenCalledTimes(2);
    expect(await count()).toBe(before);
    const writes = await pool.query('select count(*) from checkpoint_writes where thread_id = $1', [run.threadId]);
    expect(Number(writes.rows[0].count)).toBe(0);
  });

  test('a repeated put by a fenced worker is refused too, though it would insert nothing', async () => {
    const run = await insertRunningRun(pool);
    const saver = ours(run);
    await adds('x', saver).updateState(at(run.threadId), { words: ['x'] }, 'add');
    const tuple = await saver.getTuple(at(run.threadId));
    if (tuple === undefined) throw new Error('no tip');
    const again = () =>
      saver.put(tuple.parentConfig ?? at(run.threadId), tuple.checkpoint, { source: 'loop', step: 1, parents: {} }, {});
    await again();
    await takeOver(pool, run);
    await expect(again()).rejects.toThrow(Fenced);
  });

  test('a closed handle refuses, and closing waits for what is in flight', async () => {
    const run = await insertRunningRun(pool);
    const handle = openSaver(pool, { runId: run.runId, epoch: run.epoch, metadata: {} }, () => {});
    const write = adds('x', handle.saver).updateState(at(run.threadId), { words: ['x'] }, 'add');
    await vi.waitFor(async () => expect(await wordsOf(ours(run), run.threadId).catch(() => [])).toBeDefined());
    await handle.close();
    await write.catch((error: unknown) => expect(error).toBeInstanceOf(SaverClosed));
    await expect(handle.saver.getTuple(at(run.threadId))).rejects.toThrow(SaverClosed);
  });
});

test('a lineage the stock saver began goes on with ours, and its fork stays right', async () => {
  const run = await insertRunningRun(pool);
  await adds('old', stock()).invoke({ words: ['1'] }, at(run.threadId));
  const saver = ours(run);
  expect(await wordsOf(saver, run.threadId)).toEqual(['1', 'old']);
  await adds('new', saver).invoke({ words: ['2'] }, at(run.threadId));
  expect(await wordsOf(saver, run.threadId)).toEqual(['1', 'old', '2', 'new']);
  const { rows } = await pool.query('select tip_checkpoint_id is not null as tip from lineages where id = $1::uuid', [
    run.threadId,
  ]);
  expect(rows).toEqual([{ tip: true }]);
});

test('NUL and lone surrogates: in values they are kept, in metadata they are replaced, nothing fails', async () => {
  const run = await insertRunningRun(pool);
  const bad = 'a\u0000b\ud800c';
  const saver = openSaver(pool, { runId: run.runId, epoch: 1, metadata: { note: bad } }, () => {}).saver;
  await adds(bad, saver).invoke({ words: ['1'] }, at(run.threadId));
  expect(await wordsOf(saver, run.threadId)).toEqual(['1', bad]);
  expect((await saver.getTuple(at(run.threadId)))?.metadata).toMatchObject({ note: 'a\ufffdb\ufffdc' });
});
