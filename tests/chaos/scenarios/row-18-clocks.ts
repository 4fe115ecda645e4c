/**
 * A worker's clock is an hour ahead, an hour behind, and steps in the middle of a run. Nobody takes a healthy run over for
 * it (A30), the turns of a thread that goes from worker to worker all count, and a worker that dies is noticed as ever.
 */
import { must, mustEqual } from '../must.ts';
import type { Scenario } from '../scenario.ts';
import type { ChaosServer } from '../stage.ts';
import type { World } from '../world.ts';

const HOUR_MS = 3_600_000;
const TURNS = 4;

export const scenario: Scenario = {
  row: 18,
  name: 'clock an hour off on one worker, both directions, and a step',
  asserts:
    'no run changes hands while its worker lives; every turn sees those before it, whichever worker ran them; a dead one is taken over',
  together: true,
  weightS: 50,
  async run(world) {
    const honest = await world.stage.shared('a');
    const ms = world.rng.pick([HOUR_MS, -HOUR_MS]);
    const off = await world.server({ name: 'off', faults: [{ point: 'now', action: 'skew', ms }] });
    const [onHonest, onOff] = [
      await world.askAndClaim(honest, { tokens: 150, delayMs: 40 }),
      await world.askAndClaim(off, { tokens: 150, delayMs: 40, tools: 1, webhook: world.owner }),
    ];
    const readers = [onHonest, onOff].flatMap((run) => [honest, off].map((on) => world.read(run, { on })));
    await Promise.all(readers.map((reader) => reader.hasChunks(5)));
    // Back to the true time and beyond it, in the middle of a run.
    await off.arm([{ point: 'now', action: 'skew', ms: -2 * ms }]);
    await settledTogether(world, off);
    await Promise.all(readers.map((reader) => reader.done));
    for (const { runId } of [onHonest, onOff]) {
      const { status, epoch } = await world.ended(runId);
      mustEqual('status and epoch', [status, epoch], ['succeeded', 1]);
    }
    await turnsOnBoth(world, honest, off);
    await isTakenOver(world, honest, off);
  },
};

/** From here on each would judge the other, by whatever clock. */
async function settledTogether(world: World, off: ChaosServer): Promise<void> {
  await off.settled();
  const [row] = await world.rows<{ off: number }>(
    `select count(*)::int as off from workers
     where abs(extract(epoch from expires_at - clock_timestamp())) > 60
        or abs(extract(epoch from started_at - clock_timestamp())) > 3000`,
  );
  mustEqual('workers whose times are not those of Postgres', row?.off, 0);
}

/** One thread, its turns run by one and the other in turn: the model is told all that was said. */
async function turnsOnBoth(world: World, honest: ChaosServer, off: ChaosServer): Promise<void> {
  let threadId: string | undefined;
  const tags: string[] = [];
  for (let turn = 0; turn < TURNS; turn += 1) {
    const by = (turn + world.seed) % 2 === 0 ? honest : off;
    const run = await world.askAndClaim(by, {
      tokens: 5,
      delayMs: 1,
      tools: world.rng.int(0, 2),
      ...(threadId === undefined ? {} : { threadId }),
    });
    threadId = run.threadId;
    tags.push(run.question.tag);
    await world.ended(run.runId);
    const call = world.stage.model.calls.findLast(({ body }) => JSON.stringify(body).includes(`#${run.question.tag} `));
    const asked = call?.body.messages.filter(({ role }) => role === 'user').map(({ content }) => String(content));
    const told = asked?.map((content) => content.split(' ')[0]);
    mustEqual(
      `what the model was told in turn ${turn + 1}`,
      told,
      tags.map((tag) => `#${tag}`),
    );
  }
}

async function isTakenOver(world: World, honest: ChaosServer, off: ChaosServer): Promise<void> {
  const run = await world.askAndClaim(off, { tokens: 60, delayMs: 30 });
  const reader = world.read(run, { on: honest });
  await reader.hasChunks(5);
  off.kill('SIGKILL');
  const killedMs = performance.now();
  const seen = reader.chunks;
  await reader.hasChunks(seen + 1, 60_000);
  world.measure('kill to next event', performance.now() - killedMs);
  await reader.done;
  const { status, takeovers } = await world.ended(run.runId);
  // More than one where the worker that went on with it was that of another seed, and was killed in its turn.
  must(status === 'succeeded' && takeovers >= 1, `the run of the dead worker ${status}, ${takeovers} takeovers`);
}
