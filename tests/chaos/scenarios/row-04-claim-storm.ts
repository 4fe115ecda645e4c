/**
 * 1,000 runs wait (100 in `npm test`, for each of its three seeds), and two workers begin to claim at the same moment: each
 * run is claimed once. Beside it 20 messages for one thread at once over both (A28): one is admitted, the others are told
 * who is in the way.
 */
import { until } from '#tests/support/until.ts';
import { must, mustEqual } from '../must.ts';
import type { Scenario } from '../scenario.ts';
import type { ChaosServer } from '../stage.ts';
import type { World } from '../world.ts';

const RUNS = process.env.CHAOS_PLAN === undefined ? 100 : 1_000;
/** Requests at a time. */
const SENDERS = 20;

export const scenario: Scenario = {
  row: 4,
  name: 'claim storm: 1,000 runs, two workers',
  asserts: 'each run is claimed once, by one of the two; of 20 messages at once on one thread one is admitted',
  weightS: 35,
  async run(world) {
    const workers = [await world.stage.lasting('left'), await world.stage.lasting('right')];
    for (const worker of workers) await worker.arm([{ point: 'claim', action: 'hold', every: true }]);
    const admitted = await admitAll(world, workers);
    await oneOfTwenty(world, workers);
    const startMs = performance.now();
    await Promise.all(workers.map((worker) => worker.arm([])));
    const live = `select count(*)::int as count from runs where owner = $1 and ended_at is null`;
    await until(async () => (await world.rows<{ count: number }>(live, [world.owner]))[0]?.count === 0, {
      timeoutMs: 120_000,
      message: 'every run to end',
    });
    world.measure(`${RUNS} runs`, performance.now() - startMs);
    await assertClaimedOnce(world, workers, admitted);
  },
};

async function admitAll(world: World, workers: ChaosServer[]): Promise<number> {
  let sent = 0;
  const sender = async (): Promise<void> => {
    while (sent < RUNS) {
      sent += 1;
      const message = { content: `one of ${RUNS}`, graph: 'echo' };
      const { status } = await world.call(world.rng.pick(workers), 'POST', '/threads/messages', message);
      mustEqual('status of a message', status, 202);
    }
  };
  await Promise.all(Array.from({ length: SENDERS }, sender));
  return sent;
}

/** The claims are still held: the one that was admitted stays queued. */
async function oneOfTwenty(world: World, workers: ChaosServer[]): Promise<void> {
  const [any] = workers as [ChaosServer];
  const thread = await world.call<{ id: string }>(any, 'POST', '/threads', {});
  const answers = await Promise.all(
    Array.from({ length: 20 }, () =>
      world.call<{ run_id: string }>(world.rng.pick(workers), 'POST', `/threads/${thread.body.id}/messages`, {
        content: 'me first',
      }),
    ),
  );
  const admitted = answers.filter(({ status }) => status === 202);
  mustEqual('admitted of 20 on one thread', admitted.length, 1);
  for (const { status, body } of answers) {
    must(status === 202 || status === 409, `one of 20 messages on one thread was answered with ${status}`);
    mustEqual('the run that is in the way', body.run_id, admitted[0]?.body.run_id);
  }
  // Its content is no question to the model.
  await world.call(any, 'POST', `/threads/${thread.body.id}/cancel`);
}

async function assertClaimedOnce(world: World, workers: ChaosServer[], runs: number): Promise<void> {
  const claims = await world.rows<{ runId: string; pid: number; epoch: number }>(
    `select s.run_id as "runId", w.pid, s.to_epoch as epoch
     from chaos.status s join runs r on r.id = s.run_id join chaos.worker w on w.id = s.worker_id
     where r.owner = $1 and s.to_status = 'running'`,
    [world.owner],
  );
  mustEqual('claims', claims.length, runs);
  mustEqual('claimed runs', new Set(claims.map(({ runId }) => runId)).size, runs);
  must(
    claims.every(({ epoch }) => epoch === 1),
    'a run was claimed at a later epoch than its first',
  );
  // A few are over before the second has heard that it may begin.
  if (runs < 500) return;
  for (const { name, pid } of workers) {
    must(
      claims.some((claim) => claim.pid === pid),
      `${name} claimed nothing`,
    );
  }
}
