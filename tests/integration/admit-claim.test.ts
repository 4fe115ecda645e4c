import { randomUUID } from 'node:crypto';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { RunledgerError } from '#src/errors.ts';
import type { GraphRegistry } from '#src/graphs/graph.ts';
import type { Pool } from '#src/postgres/pool.ts';
import { inTransaction } from '#src/postgres/transaction.ts';
import type { AdmitDeps } from '#src/runs/admission.ts';
import { admitMessage } from '#src/runs/admit.ts';
import { admitAnswer } from '#src/runs/answer.ts';
import { claim } from '#src/runs/claim.ts';
import type { MessageRequest } from '#src/runs/run.ts';
import { settleTurn } from '#src/threads/settle.ts';
import { createDatabase, type TestDatabase } from '#tests/support/database.ts';
import { testPool } from '#tests/support/pools.ts';
import { until } from '#tests/support/until.ts';

let database: TestDatabase;
let pool: Pool;
let deps: AdmitDeps;

beforeAll(async () => {
  database = await createDatabase();
  pool = testPool(database.url, 20);
  const graphs: GraphRegistry = {
    ids: () => ['chat', 'notes'],
    has: (id) => id === 'chat' || id === 'notes',
    contextOf: (id) => (id === 'notes' ? 'transcript' : 'checkpoint'),
    instantiate: () => Promise.reject(new Error('nothing is executed here')),
  };
  deps = { pool, graphs, defaultGraph: 'chat', webhooks: { allowPrivate: false, secret: null } };
});
afterAll(async () => {
  await pool.end();
  await database.drop();
});

const owner = () => `owner-${randomUUID()}`;
const message = (fields: Partial<MessageRequest> = {}): MessageRequest => ({
  owner: 'anna',
  thread_id: null,
  content: 'hello',
  ...fields,
});

async function refusal(promise: Promise<unknown>): Promise<RunledgerError> {
  const outcome = await promise.then(
    () => 'nothing was refused',
    (error: unknown) => error,
  );
  expect(outcome).toBeInstanceOf(RunledgerError);
  return outcome as RunledgerError;
}

const count = async (sql: string, values: unknown[]): Promise<number> =>
  Number((await pool.query(sql, values)).rows[0].count);

/** Ends a claimed run as its owner would, without a log. */
async function end(runId: string, status = 'succeeded'): Promise<void> {
  await pool.query(
    `update runs set status = $2, ended_at = clock_timestamp(), log_end = 0 where id = $1::uuid and status in ('queued', 'running')`,
    [runId, status],
  );
}

describe('admission', () => {
  test('a first message makes a thread, its turn, its question and a queued run', async () => {
    const who = owner();
    const { run, message_id, replayed } = await admitMessage(deps, message({ owner: who, content: 'hello' }));
    expect(replayed).toBe(false);
    expect(run).toMatchObject({
      status: 'queued',
      epoch: 0,
      ordinal: 1,
      kind: 'message',
      owner: who,
      graph_id: 'chat',
    });
    expect(run.lineage_id).toBe(run.thread_id);
    const { rows } = await pool.query('select id, role, content from messages where turn_id = $1::uuid', [run.turn_id]);
    expect(rows).toEqual([{ id: message_id, role: 'user', content: 'hello' }]);
  });

  test('a graph with its own transcript gets a lineage per turn', async () => {
    const first = await admitMessage(deps, message({ owner: owner(), graph_id: 'notes' }));
    expect(first.run.lineage_id).not.toBe(first.run.thread_id);
  });

  test.each([
    ['THREAD_NOT_FOUND', { thread_id: randomUUID() }],
    ['GRAPH_NOT_FOUND', { graph_id: 'nope' }],
  ] as const)('%s leaves nothing behind', async (code, fields) => {
    const who = owner();
    expect((await refusal(admitMessage(deps, message({ owner: who, ...fields })))).code).toBe(code);
    expect(await count('select count(*) from threads where owner = $1', [who])).toBe(0);
    expect(await count('select count(*) from runs where owner = $1', [who])).toBe(0);
  });

  test("another owner's thread is not found", async () => {
    const { run } = await admitMessage(deps, message({ owner: owner() }));
    const error = await refusal(admitMessage(deps, message({ owner: owner(), thread_id: run.thread_id })));
    expect(error.code).toBe('THREAD_NOT_FOUND');
  });

  test('of twenty messages at once on one thread one is admitted, the others learn which', async () => {
    const who = owner();
    const { run } = await admitMessage(deps, message({ owner: who }));
    await end(run.id);
    const outcomes = await Promise.allSettled(
      Array.from({ length: 20 }, () => admitMessage(deps, message({ owner: who, thread_id: run.thread_id }))),
    );
    const won = outcomes.flatMap((outcome) => (outcome.status === 'fulfilled' ? [outcome.value.run.id] : []));
    expect(won).toHaveLength(1);
    for (const outcome of outcomes) {
      if (outcome.status === 'fulfilled') continue;
      expect(outcome.reason).toMatchObject({ code: 'RUN_IN_PROGRESS', details: { run_id: won[0] } });
    }
  });

  test('a message that waited for the thread sees what was admitted meanwhile', async () => {
    const who = owner();
    const { run } = await admitMessage(deps, message({ owner: who }));
    await end(run.id);
    const holder = await pool.connect();
    try {
      await holder.query('begin');
      await holder.query('select 1 from threads where id = $1::uuid for no key update', [run.thread_id]);
      const waiting = refusal(admitMessage(deps, message({ owner: who, thread_id: run.thread_id })));
      await until(
        async () => {
          const { rows } = await pool.query(
            `select 1 from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`,
          );
          return rows.length > 0;
        },
        { message: 'the second message to wait for the thread' },
      );
      await holder.query(
        `insert into runs (id, owner, thread_id, lineage_id, graph_id, kind, status, ordinal)
         values (gen_random_uuid(), $2, $1::uuid, $1::uuid, 'chat', 'plain', 'queued', 2)`,
        [run.thread_id, who],
      );
      await holder.query('commit');
      expect((await waiting).code).toBe('RUN_IN_PROGRESS');
    } finally {
      holder.release();
    }
  });

  test('the same request key and body, twenty times at once, is one run', async () => {
    const who = owner();
    const request = message({ owner: who, request_key: 'k1', content: [{ type: 'text', text: 'once' }] });
    const results = await Promise.all(Array.from({ length: 20 }, () => admitMessage(deps, { ...request })));
    expect(new Set(results.map((result) => result.run.id)).size).toBe(1);
    expect(new Set(results.map((result) => result.message_id)).size).toBe(1);
    expect(results.filter((result) => !result.replayed)).toHaveLength(1);
    expect(await count('select count(*) from threads where owner = $1', [who])).toBe(1);
  });

  test('a request key is not a thread: it answers with its run while another run lives', async () => {
    const who = owner();
    const request = message({ owner: who, request_key: 'k2' });
    const first = await admitMessage(deps, request);
    const again = await admitMessage(deps, request);
    expect(again).toMatchObject({ replayed: true, run: { id: first.run.id } });
  });

  test('the same key for another body is refused, for another owner it is another key', async () => {
    const who = owner();
    await admitMessage(deps, message({ owner: who, request_key: 'k3' }));
    const error = await refusal(admitMessage(deps, message({ owner: who, request_key: 'k3', content: 'other' })));
    expect(error.code).toBe('IDEMPOTENCY_KEY_REUSED');
    const other = await admitMessage(deps, message({ owner: owner(), request_key: 'k3', content: 'other' }));
    expect(other.replayed).toBe(false);
  });
});

describe('answers', () => {
  async function waiting(): Promise<{ who: string; threadId: string; turnId: string | null }> {
    const who = owner();
    const { run } = await admitMessage(deps, message({ owner: who }));
    await inTransaction(pool, (tx) =>
      settleTurn(tx, run, {
        answer: null,
        interrupts: [
          { id: 'a', value: 'may I?' },
          { id: 'b', value: { nul: '\u0000', half: '\ud800' } },
        ],
        taken: true,
      }),
    );
    await end(run.id, 'interrupted');
    return { who, threadId: run.thread_id, turnId: run.turn_id };
  }

  test('an answer joins the turn that asked, and is the command of its run', async () => {
    const { who, threadId, turnId } = await waiting();
    const { run } = await admitAnswer(deps, { owner: who, thread_id: threadId, interrupts: { a: true } });
    expect(run).toMatchObject({ kind: 'answer', turn_id: turnId, command: { resume: { a: true } }, input: null });
  });

  test('while it waits a new message is refused', async () => {
    const { who, threadId } = await waiting();
    const error = await refusal(admitMessage(deps, message({ owner: who, thread_id: threadId })));
    expect(error).toMatchObject({ code: 'TURN_WAITING_APPROVAL', details: { interrupt_ids: ['a', 'b'] } });
  });

  test('of fifty double clicks one is admitted each time', async () => {
    for (let trial = 0; trial < 25; trial += 1) {
      const { who, threadId } = await waiting();
      const click = () => admitAnswer(deps, { owner: who, thread_id: threadId, interrupts: { a: 'yes' } });
      const outcomes = await Promise.allSettled([click(), click()]);
      const lost = outcomes.flatMap((outcome) =>
        outcome.status === 'rejected' ? [outcome.reason as RunledgerError] : [],
      );
      expect(lost.map((error) => error.code)).toEqual([
        expect.stringMatching(/^(INTERRUPT_ANSWERED|RUN_IN_PROGRESS)$/),
      ]);
    }
  });

  test('unknown and answered ids are refused before anything is written', async () => {
    const { who, threadId } = await waiting();
    const unknown = await refusal(admitAnswer(deps, { owner: who, thread_id: threadId, interrupts: { a: 1, zz: 1 } }));
    expect(unknown).toMatchObject({ code: 'INTERRUPT_NOT_FOUND', path: 'interrupts.zz' });
    const { run } = await admitAnswer(deps, { owner: who, thread_id: threadId, interrupts: { a: 1 } });
    await end(run.id);
    const answered = await refusal(admitAnswer(deps, { owner: who, thread_id: threadId, interrupts: { a: 1 } }));
    expect(answered).toMatchObject({ code: 'INTERRUPT_ANSWERED', path: 'interrupts.a' });
    const foreign = await refusal(admitAnswer(deps, { owner: owner(), thread_id: threadId, interrupts: { b: 1 } }));
    expect(foreign.code).toBe('THREAD_NOT_FOUND');
    const { rows } = await pool.query('select id, status from interrupts where thread_id = $1::uuid order by id', [
      threadId,
    ]);
    expect(rows).toEqual([
      { id: 'a', status: 'answered' },
      { id: 'b', status: 'open' },
    ]);
  });
});

describe('claim', () => {
  /** Each in a database of its own, because a claim takes whatever is queued. */
  async function withQueue(fn: (queue: { pool: Pool; deps: AdmitDeps }) => Promise<void>): Promise<void> {
    const own = await createDatabase();
    const ownPool = testPool(own.url, 20);
    try {
      await fn({ pool: ownPool, deps: { ...deps, pool: ownPool } });
    } finally {
      await ownPool.end();
      await own.drop();
    }
  }

  test('a thousand runs claimed by two workers at once: each once, none left', async () => {
    await withQueue(async (queue) => {
      const runs = await Promise.all(Array.from({ length: 1_000 }, () => admitMessage(queue.deps, message())));
      const workers = [randomUUID(), randomUUID()];
      const claimed: string[] = [];
      await Promise.all(
        [...workers, ...workers].map(async (worker) => {
          for (;;) {
            const batch = await claim(queue.pool, worker, 50);
            if (batch.length === 0) return;
            for (const run of batch) {
              expect(run).toMatchObject({ status: 'running', epoch: 1 });
              claimed.push(run.id);
            }
          }
        }),
      );
      const left = await claim(queue.pool, randomUUID(), 1_000);
      claimed.push(...left.map((run) => run.id));
      expect(claimed.sort()).toEqual(runs.map((admitted) => admitted.run.id).sort());
    });
  });

  test('per thread the oldest due run goes first, one at a time; a delayed one blocks nobody', async () => {
    await withQueue(async (queue) => {
      const { run } = await admitMessage(queue.deps, message());
      const insert = `
        insert into runs (id, owner, thread_id, lineage_id, graph_id, kind, status, ordinal, available_at)
        values ($1::uuid, 'anna', $2::uuid, $2::uuid, 'chat', 'plain', 'queued', $3, clock_timestamp() + $4 * interval '1 s')`;
      const [delayed, second, third] = [randomUUID(), randomUUID(), randomUUID()];
      await queue.pool.query(
        `update runs set status = 'succeeded', ended_at = clock_timestamp(), log_end = 0 where id = $1::uuid`,
        [run.id],
      );
      await queue.pool.query(insert, [delayed, run.thread_id, 2, 3600]);
      await queue.pool.query(insert, [second, run.thread_id, 3, 0]);
      await queue.pool.query(insert, [third, run.thread_id, 4, 0]);
      const worker = randomUUID();
      expect((await claim(queue.pool, worker, 10)).map((next) => next.id)).toEqual([second]);
      expect(await claim(queue.pool, worker, 10)).toEqual([]);
      await queue.pool.query(
        `update runs set status = 'succeeded', ended_at = clock_timestamp(), log_end = 0 where id = $1::uuid`,
        [second],
      );
      expect((await claim(queue.pool, worker, 10)).map((next) => next.id)).toEqual([third]);
    });
  });

  test('a run that cannot be claimed does not hold up those behind it', async () => {
    await withQueue(async (queue) => {
      const runs: string[] = [];
      for (let n = 0; n < 4; n += 1) runs.push((await admitMessage(queue.deps, message())).run.id);
      const [first = '', second = '', ...others] = runs;
      await queue.pool.query(`
        create function refuse() returns trigger language plpgsql as $$ begin raise 'broken'; end $$;
        create trigger refuse before update on runs for each row
          when (new.id in ('${first}', '${second}')) execute function refuse()`);
      const claimed = (await claim(queue.pool, randomUUID(), 50)).map(({ id }) => id);
      expect(claimed).toEqual(others);
      await expect(claim(queue.pool, randomUUID(), 50)).rejects.toThrow('broken');
    });
  });

  test('the ledger itself refuses a second running run of a thread, and a change to a terminal row', async () => {
    await withQueue(async (queue) => {
      const { run } = await admitMessage(queue.deps, message());
      await claim(queue.pool, randomUUID(), 1);
      const insert = `
        insert into runs (id, owner, thread_id, lineage_id, graph_id, kind, status, epoch, ordinal, worker_id)
        values (gen_random_uuid(), 'anna', $1::uuid, $1::uuid, 'chat', 'plain', 'running', 1, 9, gen_random_uuid())`;
      await expect(queue.pool.query(insert, [run.thread_id])).rejects.toMatchObject({ constraint: 'runs_one_running' });
      const set = (sql: string) => queue.pool.query(`update runs set ${sql} where id = $1::uuid`, [run.id]);
      await set(`status = 'succeeded', ended_at = clock_timestamp(), log_end = 5`);
      await expect(set(`status = 'running', ended_at = null, log_end = null`)).rejects.toThrow('terminal');
      await expect(set(`log_end = 6`)).rejects.toThrow('terminal');
      await expect(set(`epoch = 0`)).rejects.toThrow();
    });
  });
});
