/** What takes back, deletes, copies or passes over a run's work, and must leave everybody else's as it was. */
import { randomUUID } from 'node:crypto';
import { emptyCheckpoint } from '@langchain/langgraph-checkpoint';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { RunledgerError } from '#src/errors.ts';
import type { InterruptFacts } from '#src/events/event.ts';
import { createHub } from '#src/events/live-hub.ts';
import { createMemoryLog } from '#src/events/memory-log.ts';
import { openReader, openSaver } from '#src/graphs/checkpoints.ts';
import type { GraphRegistry } from '#src/graphs/graph.ts';
import type { Pool } from '#src/postgres/pool.ts';
import type { AdmitDeps } from '#src/runs/admission.ts';
import { admitInput } from '#src/runs/admit-input.ts';
import { cancel } from '#src/runs/cancel.ts';
import { claim } from '#src/runs/claim.ts';
import { deleteRun } from '#src/runs/delete-run.ts';
import { edit } from '#src/runs/edit.ts';
import { failure } from '#src/runs/failures.ts';
import { type FinalizeDeps, finalize } from '#src/runs/finalize.ts';
import { listRuns } from '#src/runs/list.ts';
import { emptyOutcome, type Outcome } from '#src/runs/outcome.ts';
import { handBack } from '#src/runs/put-back.ts';
import { admitRerun } from '#src/runs/rerun.ts';
import { createRowWatch } from '#src/runs/row-watch.ts';
import type { Run, StartRequest } from '#src/runs/run.ts';
import { findEnds } from '#src/runs/run-end.ts';
import { createRunService } from '#src/runs/service.ts';
import { createStateService } from '#src/runs/state.ts';
import { createEndings } from '#src/runs/wait.ts';
import { createDatabase, type TestDatabase } from '#tests/support/database.ts';
import { silent, testPool } from '#tests/support/pools.ts';
import { until } from '#tests/support/until.ts';

let database: TestDatabase;
let pool: Pool;
let deps: AdmitDeps;
let ends: FinalizeDeps;

beforeAll(async () => {
  database = await createDatabase();
  pool = testPool(database.url, 10);
  const graphs: GraphRegistry = {
    ids: () => ['chat'],
    has: (id) => id === 'chat',
    contextOf: () => 'checkpoint',
    instantiate: () => Promise.reject(new Error('nothing is executed here')),
  };
  deps = { pool, graphs, defaultGraph: 'chat', webhooks: { allowPrivate: false, secret: null } };
  const log = createMemoryLog({ memoryLimitBytes: 1_000_000 });
  const hub = createHub({ log, logger: silent });
  ends = { pool, log, hub, streamTtlMs: 60_000, unsent: () => false, logger: silent, onEnded: () => undefined };
});
afterAll(async () => {
  await ends.hub.close();
  await ends.log.close();
  await pool.end();
  await database.drop();
});

const request = (fields: Partial<StartRequest> = {}): StartRequest => ({
  owner: 'anna',
  thread_id: null,
  if_missing: 'create',
  temporary: false,
  graph_id: 'chat',
  assistant: { id: null, config: {}, context: null, metadata: {} },
  input: { messages: [{ role: 'human', content: 'hi' }] },
  command: null,
  config: {},
  strategy: 'enqueue',
  delay_ms: 0,
  stream_modes: [],
  on_disconnect: 'continue',
  wire: {},
  ...fields,
});
const start = async (fields: Partial<StartRequest> = {}): Promise<Run> => (await admitInput(deps, request(fields))).run;
const stop = (run: Run, action: 'interrupt' | 'rollback') =>
  cancel({ ...ends, hintOwner: () => undefined }, run.id, action);

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

const placeOf = (run: Run, id?: string | null) => ({
  configurable: { thread_id: run.lineage_id, checkpoint_ns: '', ...(id && { checkpoint_id: id }) },
});

/** Puts a checkpoint for a claimed run after the one it names: it keeps that one's values, and sets one more. */
async function put(run: Run, after: string | null, channel: string): Promise<string> {
  const handle = openSaver(pool, { runId: run.id, epoch: run.epoch, metadata: {} }, () => {
    throw new Error('fenced');
  });
  const parent = after === null ? undefined : await handle.saver.getTuple(placeOf(run, after));
  const version = handle.saver.getNextVersion(undefined);
  const checkpoint = {
    ...emptyCheckpoint(),
    channel_values: { ...parent?.checkpoint.channel_values, [channel]: run.id },
    channel_versions: { ...parent?.checkpoint.channel_versions, [channel]: version },
  };
  const metadata = { source: 'loop', step: 0, parents: {} } as const;
  const { configurable } = await handle.saver.put(placeOf(run, after), checkpoint, metadata, { [channel]: version });
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

/** A run that has ended with one checkpoint, after the lineage's tip. */
async function ran(fields: Partial<StartRequest> = {}, interrupts: InterruptFacts[] = [], channel = 'n'): Promise<Run> {
  const { thread_id } = await start(fields);
  const run = await claimOn(thread_id);
  await put(run, await tipOf(run), channel);
  await end(run, interrupts.length > 0 ? { status: 'interrupted', interrupts } : {});
  return run;
}

const tipOf = async (run: Run): Promise<string | null> =>
  (await pool.query('select tip_checkpoint_id as tip from lineages where id = $1::uuid', [run.lineage_id])).rows[0]
    ?.tip;
const valuesAt = async (run: Run, id?: string | null): Promise<unknown> =>
  (await openReader(pool).getTuple(placeOf(run, id)))?.checkpoint.channel_values;

describe('a run that was put back', () => {
  test('goes on before an older one that has fallen due meanwhile', async () => {
    const delayed = await start({ delay_ms: 3_600_000 });
    const { thread_id } = delayed;
    const admitted = await start({ thread_id });
    const run = await claimOn(thread_id);
    expect(run.id).toBe(admitted.id);
    await put(run, null, 'n');
    await pool.query('update runs set available_at = clock_timestamp() where id = $1::uuid', [delayed.id]);
    await handBack({ pool, log: ends.log, logger: silent }, run);
    const again = await claimOn(thread_id);
    expect(again.id).toBe(run.id);
    await end(again);
    expect((await claimOn(thread_id)).id).toBe(delayed.id);
  });
});

describe('values shared with a checkpoint that stays', () => {
  const forked = async () => {
    const first = await ran();
    const from = await tipOf(first);
    const second = await ran({ thread_id: first.thread_id });
    const config = { checkpoint: { checkpoint_id: String(from) } };
    await start({ thread_id: first.thread_id, input: null, config });
    const run = await claimOn(first.thread_id);
    await put(run, await put(run, from, 'm'), 'm');
    return { first, from, second, run };
  };

  test('are kept when a run that was started there is rolled back', async () => {
    const { first, from, second, run } = await forked();
    await stop(run, 'rollback');
    await end(run);
    expect(await valuesAt(first, from)).toEqual({ n: first.id });
    expect(await valuesAt(first)).toEqual({ n: second.id });
    const { rows } = await pool.query(`select 1 from checkpoint_blobs where thread_id = $1 and channel = 'm'`, [
      run.lineage_id,
    ]);
    expect(rows).toEqual([]);
  });

  test('and when it is deleted', async () => {
    const { first, from, run } = await forked();
    await end(run);
    await deleteRun(pool, 'anna', run.thread_id, run.id);
    expect(await valuesAt(first, from)).toEqual({ n: first.id });
  });
});

describe('a run deleted', () => {
  test('while the next one is at work leaves it what it is built on', async () => {
    const former = await ran();
    const tip = await tipOf(former);
    await start({ thread_id: former.thread_id });
    const run = await claimOn(former.thread_id);
    await deleteRun(pool, 'anna', former.thread_id, former.id);
    const id = await put(run, tip, 'm');
    expect(await valuesAt(run, id)).toEqual({ n: former.id, m: run.id });
  });

  test('before a turn that failed and left nothing: tried again, that begins where the deleted one did', async () => {
    const first = await ran();
    const base = await tipOf(first);
    const second = await ran({ thread_id: first.thread_id });
    await start({ thread_id: first.thread_id });
    const failed = await claimOn(first.thread_id);
    await end(failed, { status: 'failed', error: failure('INTERNAL'), leftCheckpoint: false });
    await deleteRun(pool, 'anna', first.thread_id, second.id);
    await admitRerun(deps, { owner: 'anna', thread_id: first.thread_id });
    expect(await tipOf(first)).toBe(base);
    expect(await valuesAt(first)).toEqual({ n: first.id });
  });
});

test('a turn that was rolled back does not keep the one before it from being tried again', async () => {
  const { thread_id } = await start();
  const failed = await claimOn(thread_id);
  await end(failed, { status: 'failed', error: failure('INTERNAL'), leftCheckpoint: false });
  await stop(await start({ thread_id }), 'rollback');
  const { run } = await admitRerun(deps, { owner: 'anna', thread_id });
  expect(run.turn_id).toBe(failed.turn_id);
});

test('who followed a run before it was rolled back is told its end from the row', async () => {
  const run = await start();
  await stop(run, 'rollback');
  expect((await findEnds(pool, [run.id])).get(run.id)?.status).toBe('cancelled');
});

test('a rollback whose COMMIT arrived and whose answer did not is known as ours, and sealed', async () => {
  const { thread_id } = await start();
  const run = await claimOn(thread_id);
  await stop(run, 'rollback');
  await end(run);
  await ends.log.remove(run.id);
  expect((await end(run)).applied).toBe(true);
  expect(await ends.log.last(run.id)).not.toBeNull();
});

test('a copy of a thread is of one moment, though a run goes on writing', async () => {
  const { thread_id } = await start();
  const run = await claimOn(thread_id);
  const first = await put(run, null, 'n');
  const states = createStateService({ pool, checkpointPool: pool, graphs: deps.graphs, logger: silent });
  const holder = await pool.connect();
  try {
    // A copy can read and not insert; the run's own put needs only the other tables.
    await holder.query('begin; lock table checkpoint_writes in exclusive mode');
    const copying = states.copy('anna', thread_id);
    await until(copyWaits, { message: 'the copy waits', timeoutMs: 4_000 });
    await put(run, first, 'm');
    await holder.query('commit');
    const values = await valuesAt({ ...run, lineage_id: await copying });
    expect(values).toEqual({ n: run.id, m: run.id });
  } finally {
    holder.release(true);
  }
});

async function copyWaits(): Promise<boolean> {
  const { rows } = await pool.query(
    `select 1 from pg_locks where not granted and relation = 'checkpoint_writes'::regclass`,
  );
  return rows.length > 0;
}

test('a thread can be deleted while a run of it is being rolled back', async () => {
  const { thread_id } = await start();
  const run = await claimOn(thread_id);
  await stop(run, 'rollback');
  const endings = createEndings();
  const awaited = Promise.withResolvers<void>();
  const runs = createRunService({
    pool,
    log: ends.log,
    admit: deps,
    cancel: { ...ends, hintOwner: () => undefined },
    follow: { log: ends.log, hub: ends.hub, rows: createRowWatch(pool), logger: silent },
    endings: {
      ...endings,
      next(...args) {
        awaited.resolve();
        return endings.next(...args);
      },
    },
    wake: () => undefined,
    logger: silent,
  });
  const deleting = runs.deleteThread('anna', thread_id, { force: true });
  await awaited.promise;
  await end(run);
  await deleting;
  expect((await pool.query('select 1 from threads where id = $1::uuid', [thread_id])).rows).toEqual([]);
});

describe('an edit', () => {
  const place = (run: Run) => ({
    owner: 'anna',
    threadId: run.thread_id,
    lineageId: run.lineage_id,
    graphId: 'chat',
    metadata: {},
  });

  test('that Postgres refuses fails with what Postgres said, not with what came of it', async () => {
    const run = await ran();
    const refused = edit(pool, place(run), (_saver, tx) => tx.query('select 1 / 0'));
    await expect(refused).rejects.toMatchObject({ code: '22012' });
  });

  test('at a checkpoint the thread does not have is refused, and the thread keeps its state', async () => {
    const run = await ran();
    const tip = await tipOf(run);
    const graphs = { ...deps.graphs, instantiate: async () => ({}) } as unknown as GraphRegistry;
    const states = createStateService({ pool, checkpointPool: pool, graphs, logger: silent });
    const at = { checkpoint_id: randomUUID() };
    expect(await refusal(states.update('anna', run.thread_id, { values: {} }, at))).toMatchObject({
      code: 'INVALID_REQUEST',
      path: 'checkpoint_id',
    });
    expect(await tipOf(run)).toBe(tip);
  });
});

describe('an answer', () => {
  const one = 'a'.repeat(32);
  const two = 'b'.repeat(32);
  const asks = (id: string): InterruptFacts[] => [{ id, value: 'sure?' }];
  const resume = (thread_id: string, value: StartRequest['input'], fields: Partial<StartRequest> = {}) =>
    start({ thread_id, input: null, command: { resume: value }, ...fields });

  test('that comes again after its question was answered is refused: the next question is not its own', async () => {
    const { thread_id } = await ran({}, asks(one));
    await resume(thread_id, { [one]: 'yes' });
    // guard: while the first waits, and when it has led to another question
    expect((await refusal(resume(thread_id, { [one]: 'yes' }))).code).toBe('INTERRUPT_ANSWERED');
    const run = await claimOn(thread_id);
    await put(run, await tipOf(run), 'n');
    await end(run, { status: 'interrupted', interrupts: asks(two) });
    expect((await refusal(resume(thread_id, { [one]: 'yes' }))).code).toBe('INTERRUPT_ANSWERED');
    expect((await resume(thread_id, { [two]: 'no' })).kind).toBe('answer');
  });

  test('without an id does not wait for a question that nobody has asked yet', async () => {
    const { thread_id } = await ran({}, asks(one));
    await resume(thread_id, 'yes');
    expect((await refusal(resume(thread_id, 'yes'))).code).toBe('RUN_IN_PROGRESS');
  });

  test('at an earlier checkpoint is none to what is asked now', async () => {
    const asked = await ran({}, asks(one));
    const from = String(await tipOf(asked));
    const { thread_id } = await ran({ thread_id: asked.thread_id }, asks(two));
    const config = { checkpoint: { checkpoint_id: from } };
    const again = await resume(thread_id, 'other', { config });
    expect(again).toMatchObject({ kind: 'plain', command: { resume: 'other' } });
    const { rows } = await pool.query(`select status from interrupts where thread_id = $1::uuid and id = $2`, [
      thread_id,
      two,
    ]);
    expect(rows).toEqual([{ status: 'open' }]);
    await claimOn(thread_id);
    // guard: the tip, named, is the tip
    const other = await ran({}, asks(one));
    const tip = String(await tipOf(other));
    const named = await resume(other.thread_id, 'yes', { config: { checkpoint: { checkpoint_id: tip } } });
    expect(named.kind).toBe('answer');
  });
});

test('values that no column can hold are refused, or match nothing', async () => {
  expect(await refusal(start({ delay_ms: 1e300 }))).toMatchObject({ code: 'INVALID_REQUEST', path: 'after_seconds' });
  const run = await start();
  expect(await listRuns(pool, 'anna', run.thread_id, { metadata: { a: '\0' }, limit: 10, offset: 0 })).toEqual([]);
});
