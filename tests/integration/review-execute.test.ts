/** Where a run begins and what it leaves, when it is stopped before it began, tried again, or was to begin at what is gone. */
import { randomUUID } from 'node:crypto';
import { AIMessage, HumanMessage } from '@langchain/core/messages';
import { Annotation, interrupt, MessagesAnnotation, START, StateGraph } from '@langchain/langgraph';
import { afterAll, beforeAll, expect, test } from 'vitest';
import type { RunEvent } from '#src/events/event.ts';
import { openReader, openSaver } from '#src/graphs/checkpoints.ts';
import type { Pool } from '#src/postgres/pool.ts';
import { Stop } from '#src/runs/stop.ts';
import { createDatabase, type TestDatabase } from '#tests/support/database.ts';
import { type Compilable, executed, executedUnder } from '#tests/support/executed.ts';
import { endRun, insertRunningRun, type LedgerRun } from '#tests/support/ledger.ts';
import { testPool } from '#tests/support/pools.ts';
import { until } from '#tests/support/until.ts';

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

const at = (run: LedgerRun) => ({ configurable: { thread_id: run.threadId, checkpoint_ns: '' } });
const tipOf = async (run: LedgerRun): Promise<string> =>
  String((await openReader(pool).getTuple(at(run)))?.checkpoint.id);

/** The next run of the thread, with these columns. */
async function next(former: LedgerRun, ordinal: number, columns: { [name: string]: unknown }): Promise<LedgerRun> {
  const run = await insertRunningRun(pool, { threadId: former.threadId, ordinal });
  for (const [name, value] of Object.entries(columns)) {
    await pool.query(`update runs set ${name} = $2 where id = $1::uuid`, [run.runId, value]);
  }
  return run;
}

/** A lineage that waits for a person, asked by a run that has ended. */
async function asked(graph: Compilable, input: object): Promise<LedgerRun> {
  const run = await insertRunningRun(pool);
  const owner = { runId: run.runId, epoch: run.epoch, metadata: { run_id: run.runId } };
  const { saver } = openSaver(pool, owner, () => undefined);
  const compiled = graph.compile({ checkpointer: saver }) as {
    invoke(input: object, config: object): Promise<unknown>;
  };
  await compiled.invoke(input, { ...at(run), durability: 'sync' });
  await endRun(pool, run);
  return run;
}

const approval = new StateGraph(MessagesAnnotation)
  .addNode('call', () => ({
    messages: [new AIMessage({ id: 'call', content: '', tool_calls: [{ id: 'c1', name: 'pay', args: {} }] })],
  }))
  .addNode('tool', () => {
    interrupt('pay?');
    return {};
  })
  .addEdge(START, 'call')
  .addEdge('call', 'tool');

test('a run that is cancelled before it began leaves the question of the one before it as it waits', async () => {
  const former = await asked(approval, { messages: [new HumanMessage({ id: 'h', content: 'pay' })] });
  const tip = await tipOf(former);
  const run = await next(former, 2, {
    input: { messages: [{ type: 'human', id: 'x', content: 'no' }] },
    cancel_requested_at: new Date(),
    epoch: 2,
  });
  expect(await executed(pool, approval, { ...run, epoch: 2 })).toMatchObject({ status: 'cancelled' });
  expect(await tipOf(former)).toBe(tip);
});

test('an answer at an earlier checkpoint is given once, though its task failed after it had taken it', async () => {
  let failures = 1;
  const State = Annotation.Root({
    answers: Annotation<string[]>({ reducer: (all, more) => [...all, ...more], default: () => [] }),
  });
  const graph = new StateGraph(State)
    .addNode('both', () => {
      const one = String(interrupt('one'));
      if (one === 'again' && failures > 0) {
        failures -= 1;
        throw Object.assign(new Error('reset'), { code: 'ECONNRESET' });
      }
      return { answers: [one, String(interrupt('two'))] };
    })
    .addEdge(START, 'both');
  const former = await asked(graph, { answers: [] });
  const from = await tipOf(former);
  const moved = await next(former, 2, { command: { update: { answers: ['elsewhere'] }, goto: 'both' } });
  await executed(pool, graph, moved);
  await endRun(pool, moved);
  expect(await tipOf(former)).not.toBe(from);
  const config = { checkpoint: { checkpoint_id: from } };
  const run = await next(former, 3, { command: { resume: 'again' }, config });
  const outcome = await executed(pool, graph, run);
  expect(failures).toBe(0);
  expect(outcome).toMatchObject({ status: 'interrupted', interrupts: [{ value: 'two' }] });
});

/** Two nodes side by side that ask, the left one twice; `answered` is called when the right one has its answer. */
function sideBySide(answered: () => Promise<void>) {
  const State = Annotation.Root({
    answers: Annotation<string[]>({ reducer: (all, more) => [...all, ...more], default: () => [] }),
  });
  return new StateGraph(State)
    .addNode('left', () => ({ answers: [String(interrupt('left?')), String(interrupt('and?'))] }))
    .addNode('right', async () => {
      const answer = String(interrupt('right?'));
      await answered();
      return { answers: [answer] };
    })
    .addEdge(START, 'left')
    .addEdge(START, 'right');
}

const ASKED_ON = `select 1 from checkpoint_writes where run_id = $1::uuid and channel = '__resume__' and task_id like '%-%'`;

test('of two answers brought together the one that no task had taken when its worker died is given again', async () => {
  const abort = new AbortController();
  const dies = { runId: '' };
  const graph = sideBySide(async () => {
    if (abort.signal.aborted) return;
    await until(async () => (await pool.query(ASKED_ON, [dies.runId])).rowCount, { message: 'the left to ask on' });
    abort.abort(new Stop('lost'));
    await new Promise(() => undefined);
  });
  const former = await asked(graph, { answers: [] });
  const state = await graph.compile({ checkpointer: openReader(pool) }).getState(at(former));
  const ids = state.tasks.flatMap(({ name, interrupts }) => interrupts.map(({ id }) => [id, name]));
  expect(ids).toHaveLength(2);
  const run = await next(former, 2, { command: { resume: Object.fromEntries(ids) } });
  dies.runId = run.runId;
  expect(await executedUnder(pool, graph, run, { abort })).toBeNull();
  await pool.query('update runs set epoch = epoch + 1 where id = $1::uuid', [run.runId]);
  expect(await executed(pool, graph, run)).toMatchObject({ status: 'interrupted', interrupts: [{ value: 'and?' }] });
});

test('a run that was to begin at a checkpoint that is gone does not begin at nothing', async () => {
  const former = await asked(approval, { messages: [new HumanMessage({ id: 'h', content: 'pay' })] });
  const tip = await tipOf(former);
  const config = { checkpoint: { checkpoint_id: randomUUID() } };
  const run = await next(former, 2, { input: { messages: [{ type: 'human', id: 'x', content: 'no' }] }, config });
  expect(await executed(pool, approval, run)).toMatchObject({ status: 'failed' });
  expect(await tipOf(former)).toBe(tip);
});

const AWAY = `
  create function away() returns trigger language plpgsql as $$ begin raise exception using errcode = '57P03'; end $$;
  create trigger away before insert on checkpoint_writes for each statement execute function away();
  create trigger away before insert on checkpoints for each statement execute function away()`;
const BACK = 'drop function away() cascade';

test('what a step said that could not be stored is dropped by name when the step is run again', async () => {
  let runs = 0;
  const graph = new StateGraph(MessagesAnnotation)
    .addNode('first', () => ({ messages: [new AIMessage({ id: 'kept', content: 'well' })] }))
    .addNode('second', async () => {
      runs += 1;
      await pool.query(runs === 1 ? AWAY : BACK);
      return { messages: [new AIMessage({ id: `said ${runs}`, content: 'done' })] };
    })
    .addEdge(START, 'first')
    .addEdge('first', 'second');
  const run = await insertRunningRun(pool);
  const input = { messages: [{ type: 'human', id: 'h', content: 'hello' }] };
  await pool.query('update runs set input = $2 where id = $1::uuid', [run.runId, input]);
  const told: RunEvent[] = [];
  expect(await executed(pool, graph, run, told)).toMatchObject({
    status: 'succeeded',
    answer: { stream_id: 'said 2' },
  });
  const lines = told.flatMap((event): (string | string[])[] => {
    if (event.type === 'message.whole') return [event.message.id];
    return event.type === 'run.retry' ? [event.dropped] : [];
  });
  expect(lines).toEqual(['kept', 'said 1', [], ['said 1'], 'said 2']);
});
