/** A worker whose lease has lapsed begins no further step of a graph: somebody else may be at it. */
import { MessagesAnnotation, START, StateGraph } from '@langchain/langgraph';
import { afterAll, beforeAll, expect, test } from 'vitest';
import type { Pool } from '#src/postgres/pool.ts';
import type { Lease } from '#src/runs/lease-gate.ts';
import { Stop } from '#src/runs/stop.ts';
import { createDatabase, type TestDatabase } from '#tests/support/database.ts';
import { executedUnder } from '#tests/support/executed.ts';
import { insertRunningRun, type LedgerRun } from '#tests/support/ledger.ts';
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

async function running(): Promise<LedgerRun> {
  const run = await insertRunningRun(pool);
  const input = { messages: [{ type: 'human', id: 'h', content: 'go' }] };
  await pool.query('update runs set input = $2 where id = $1::uuid', [run.runId, input]);
  return run;
}

/** Two nodes; the lease lapses while the first is at work. `waits` resolves when somebody waits for its renewal. */
function lapsing() {
  const waits = Promise.withResolvers<void>();
  const renewal = Promise.withResolvers<void>();
  let holds = true;
  const ran: string[] = [];
  const lease: Lease = {
    holds: () => holds,
    renewed: () => {
      waits.resolve();
      return renewal.promise;
    },
  };
  const graph = new StateGraph(MessagesAnnotation)
    .addNode('first', () => {
      ran.push('first');
      holds = false;
      return {};
    })
    .addNode('second', () => {
      ran.push('second');
      return {};
    })
    .addEdge(START, 'first')
    .addEdge('first', 'second');
  const renew = (): void => {
    holds = true;
    renewal.resolve();
  };
  return { graph, lease, ran, waits: waits.promise, renew };
}

test('the next step begins when the lease is renewed', async () => {
  const { graph, lease, ran, waits, renew } = lapsing();
  const execution = executedUnder(pool, graph, await running(), { lease });
  await waits;
  expect(ran).toEqual(['first']);
  renew();
  expect((await execution)?.outcome.status).toBe('succeeded');
  expect(ran).toEqual(['first', 'second']);
});

test('the next step never begins when the renewal says that the run is lost', async () => {
  const { graph, lease, ran, waits, renew } = lapsing();
  const abort = new AbortController();
  const execution = executedUnder(pool, graph, await running(), { lease, abort });
  await waits;
  abort.abort(new Stop('lost'));
  renew();
  expect(await execution).toBeNull();
  expect(ran).toEqual(['first']);
});

test('a run that goes on from a checkpoint waits before its first step', async () => {
  const { graph, lease, ran, waits, renew } = lapsing();
  const first = await running();
  const abort = new AbortController();
  const broken = executedUnder(pool, graph, first, { lease, abort });
  await waits;
  abort.abort(new Stop('lost'));
  await broken;
  await pool.query('update runs set epoch = epoch + 1 where id = $1::uuid', [first.runId]);
  const again = Promise.withResolvers<void>();
  const waiting = Promise.withResolvers<void>();
  let holds = false;
  const later: Lease = {
    holds: () => holds,
    renewed: () => {
      waiting.resolve();
      return again.promise;
    },
  };
  const execution = executedUnder(pool, graph, first, { lease: later });
  await waiting.promise;
  expect(ran).toEqual(['first']);
  holds = true;
  again.resolve();
  renew();
  expect((await execution)?.outcome.status).toBe('succeeded');
  expect(ran).toEqual(['first', 'second']);
});
