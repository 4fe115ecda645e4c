/**
 * Parallel nodes on a delta channel, cut by kill -9 at any write of a superstep; a turn that is stopped and tried again,
 * which forks the lineage; and state updates while a run goes on and between runs. What the thread holds in the end is what
 * the same graph makes in one process.
 */
import { randomUUID } from 'node:crypto';
import { Fenced, openSaver } from '#src/graphs/checkpoints.ts';
import type { RoundsSettings } from '#tests/support/graphs/delta-rounds.ts';
import { testPool } from '#tests/support/pools.ts';
import { editRounds, expectedRounds, type RoundsStep, storedRounds } from '#tests/support/rounds-state.ts';
import { until } from '#tests/support/until.ts';
import { mustEqual } from '../must.ts';
import type { Scenario } from '../scenario.ts';
import type { ChaosServer } from '../stage.ts';
import type { World } from '../world.ts';

export const scenario: Scenario = {
  row: 23,
  name: 'forks and state updates while running; parallel nodes on a delta channel',
  asserts:
    'the state equals that of the same graph in one process; an update during a run is refused, one between runs counts',
  together: true,
  weightS: 60,
  async run(world) {
    const survivor = await world.stage.shared('a');
    const settings = {
      rounds: world.rng.int(3, 5),
      width: world.rng.int(3, 6),
      slowestMs: world.rng.int(100, 400),
    } satisfies RoundsSettings;
    const thread = { settings, steps: [] as RoundsStep[], id: '' };
    await turnCutByKill(world, thread);
    await assertSame(world, thread);
    await stoppedAndTriedAgain(world, survivor, thread);
    await assertSame(world, thread);
    await editedWhileRunning(world, survivor, thread);
    await assertSame(world, thread);
    await edit(world, thread, 'between');
    await assertSame(world, thread);
    await turnCutByKill(world, thread);
    await assertSame(world, thread);
  },
};

interface Thread {
  settings: RoundsSettings;
  steps: RoundsStep[];
  /** '' before the first turn. */
  id: string;
}

interface SentBody {
  run_id: string;
  thread_id: string;
}

async function assertSame(world: World, { id, settings, steps }: Thread): Promise<void> {
  const expected = await expectedRounds(settings, steps);
  mustEqual(`state after ${steps.length} steps`, await storedRounds(world.stage.databaseUrl, id), expected);
}

async function send(world: World, server: ChaosServer, thread: Thread): Promise<string> {
  const path = thread.id === '' ? '/threads/messages' : `/threads/${thread.id}/messages`;
  const sent = await world.call<SentBody>(server, 'POST', path, {
    content: 'go',
    graph: 'rounds',
    config: { configurable: thread.settings },
  });
  mustEqual('status of a message', sent.status, 202);
  thread.id = sent.body.thread_id;
  return sent.body.run_id;
}

/** The owner dies at a random write of any superstep, before or after Postgres has it. */
async function turnCutByKill(world: World, thread: Thread): Promise<void> {
  const victim = await world.server({ name: `victim ${thread.steps.length}` });
  const { rounds, width } = thread.settings;
  const point = world.rng.pick(['writes_put', 'writes_put', 'checkpoint_put'] as const);
  const when = world.rng.pick(['before', 'after'] as const);
  const nth = point === 'writes_put' ? world.rng.int(1, rounds * (width + 1)) : world.rng.int(1, 2 * rounds);
  const fault = { point, when, nth, action: 'kill' } as const;
  const runId = await world.onlyClaims(victim, async () => {
    await victim.arm([fault]);
    const sent = await send(world, victim, thread);
    await world.claimed(victim, sent);
    return sent;
  });
  const reader = world.read({ runId, threadId: thread.id });
  await victim.reached(fault);
  await reader.done;
  const { status } = await world.ended(runId);
  mustEqual(`status after a kill ${when} ${point} ${nth}`, status, 'succeeded');
  thread.steps.push('turn');
}

/** Cancelled in the middle, closed, and tried again from where the turn began. */
async function stoppedAndTriedAgain(world: World, server: ChaosServer, thread: Thread): Promise<void> {
  const runId = await send(world, server, thread);
  const writes = `select count(distinct task_id)::int as tasks from checkpoint_writes where run_id = $1::uuid`;
  const enough = world.rng.int(2, thread.settings.width + 2);
  await until(async () => ((await world.rows<{ tasks: number }>(writes, [runId]))[0]?.tasks ?? 0) >= enough, {
    timeoutMs: 20_000,
    message: 'some nodes to be through',
  });
  await world.call(server, 'POST', `/threads/${thread.id}/cancel?wait=true`);
  const { status } = await world.ended(runId);
  thread.steps.push('turn');
  // The cancel may come too late: then the turn counts as it is.
  if (status === 'succeeded') return;
  const retry = await world.call<SentBody>(server, 'POST', `/threads/${thread.id}/retry`, {});
  mustEqual('status of the retry', retry.status, 202);
  mustEqual('status of what was tried again', (await world.ended(retry.body.run_id)).status, 'succeeded');
}

/** While a run goes on nobody else gets in: no second owner, no write without one. */
async function editedWhileRunning(world: World, server: ChaosServer, thread: Thread): Promise<void> {
  const runId = await send(world, server, thread);
  await until(async () => (await world.rows(`select 1 from runs where id = $1 and status = 'running'`, [runId]))[0], {
    message: 'the run to be claimed',
  });
  const began = await beginEdit(world, thread.id).catch((error: { constraint?: string }) => error);
  if (typeof began === 'string') {
    await world.rows(END_EDIT, [began]);
    const [run] = await world.rows<{ status: string }>('select status from runs where id = $1::uuid', [runId]);
    mustEqual('status of a run beside which an edit began', run?.status, 'succeeded');
  } else mustEqual('why an edit of a running thread is refused', began.constraint, 'runs_one_running');
  await withSaver(world, { runId, epoch: 0 }, async (saver) => {
    const written = await editRounds(saver, thread.id, thread.settings, 'nobody').then(
      () => 'written',
      (error: unknown) => (error instanceof Fenced ? 'fenced' : String(error)),
    );
    mustEqual('a write without ownership', written, 'fenced');
  });
  mustEqual('status of the run', (await world.ended(runId)).status, 'succeeded');
  thread.steps.push('turn');
}

const BEGIN_EDIT = `
  insert into runs (id, owner, thread_id, lineage_id, graph_id, kind, status, epoch, ordinal, worker_id)
  select $1::uuid, 'nobody of this world', id, id, 'rounds', 'edit', 'running', 1, run_count, (select id from workers limit 1)
  from threads where id = $2::uuid`;
const END_EDIT = `update runs set status = 'succeeded', ended_at = clock_timestamp() where id = $1::uuid`;

/** As a dialect would: a run of kind edit, which holds the thread. */
async function beginEdit(world: World, threadId: string): Promise<string> {
  const runId = randomUUID();
  await world.rows(`update threads set run_count = run_count + 1 where id = $1::uuid`, [threadId]);
  await world.rows(BEGIN_EDIT, [runId, threadId]);
  return runId;
}

async function edit(world: World, thread: Thread, text: string): Promise<void> {
  const runId = await beginEdit(world, thread.id);
  await withSaver(world, { runId, epoch: 1 }, (saver) => editRounds(saver, thread.id, thread.settings, text));
  await world.rows(END_EDIT, [runId]);
  thread.steps.push({ edit: text });
}

async function withSaver(
  world: World,
  owner: { runId: string; epoch: number },
  work: (saver: ReturnType<typeof openSaver>['saver']) => Promise<void>,
): Promise<void> {
  const pool = testPool(world.stage.databaseUrl, 1);
  try {
    await work(openSaver(pool, { ...owner, metadata: {} }, () => undefined).saver);
  } finally {
    await pool.end();
  }
}
