/**
 * A storm of readers who are cut off and come back with their last id, on any server; and readers who come with ids of the
 * future, of another run, of the distant past, and with what is no id at all.
 */
import { setTimeout as pause } from 'node:timers/promises';
import { openSse, type SseStream } from '#tests/support/sse.ts';
import { must, mustEqual } from '../must.ts';
import type { Scenario } from '../scenario.ts';
import type { ChaosServer } from '../stage.ts';
import type { Asked, World } from '../world.ts';

const READERS = process.env.CHAOS_PLAN === undefined ? 20 : 80;
const GARBAGE = ['abc', '1-', '-5', '1.5', '9'.repeat(40), '0x10', 'null', '1e3', '%00', '٣'];

export const scenario: Scenario = {
  row: 15,
  name: 'reconnect storm; ids that are old, future, garbage, of another run',
  asserts:
    'each reader has the run once and whole; a future id gets resync, garbage is 400, another run’s id skips nothing in silence',
  weightS: 35,
  async run(world) {
    const servers = [await world.stage.lasting('left'), await world.stage.lasting('right')];
    const run = await world.ask({ tokens: 120, delayMs: 40, tools: 1 });
    const other = await world.ask({ tokens: 12, delayMs: 5 });
    const readers = Array.from({ length: READERS }, () => world.read(run));
    const storm = cutAll(world, readers);
    const live = [future(world, servers, run), garbage(world, servers, run)];
    await Promise.all(readers.map((reader) => reader.done));
    storm.stop();
    await Promise.all(live);
    await world.ended(other.runId);
    await future(world, servers, other);
    await garbage(world, servers, other);
    await everyCursor(world, servers, other);
    mustEqual('epoch', (await world.ended(run.runId)).epoch, 1);
  },
};

function cutAll(world: World, readers: { cut(): void }[]): { stop(): void } {
  let stopped = false;
  void (async () => {
    while (!stopped) {
      await pause(world.rng.int(50, 300));
      const share = world.rng.pick([0.05, 0.3, 1]);
      for (const reader of readers) if (world.rng.chance(share)) reader.cut();
    }
  })();
  return {
    stop() {
      stopped = true;
    },
  };
}

function open(
  world: World,
  server: ChaosServer,
  run: Asked,
  after: string,
  by: 'header' | 'query',
): Promise<SseStream> {
  const cursor = by === 'query' ? `&last_event_id=${after}` : '';
  const url = `${server.url}/api/v1/threads/${run.threadId}/messages/stream?run_id=${run.runId}${cursor}`;
  return openSse(url, {
    headers: { 'x-dev-user': world.owner, ...(by === 'header' ? { 'last-event-id': after } : {}) },
  });
}

/** An id nobody was given: the reader is told before it is given anything else. */
async function future(world: World, servers: ChaosServer[], run: Asked): Promise<void> {
  for (const after of [String(world.rng.int(5_000, 900_000)), '7000003']) {
    const stream = await open(world, world.rng.pick(servers), run, after, world.rng.pick(['header', 'query']));
    mustEqual('status for an id of the future', stream.status, 200);
    await stream.waitFor(({ event }) => event === 'run_end', { timeoutMs: 120_000, message: 'the end' });
    mustEqual(`the first frame after ${after}`, stream.frames[0]?.event, 'resync_required');
    stream.close();
  }
}

async function garbage(world: World, servers: ChaosServer[], run: Asked): Promise<void> {
  for (const after of GARBAGE) {
    const stream = await open(world, world.rng.pick(servers), run, encodeURIComponent(after), 'query');
    stream.close();
    must(stream.status === 400, `the id ${after} was answered with ${stream.status}`);
  }
}

/** What comes after each id is the rest, whichever server is asked. */
async function everyCursor(world: World, servers: ChaosServer[], run: Asked): Promise<void> {
  const whole = world.read(run);
  const { frames } = await whole.done;
  for (const [index, { id }] of frames.entries()) {
    if (id === null || index === frames.length - 1) continue;
    const stream = await open(world, world.rng.pick(servers), run, String(id), world.rng.pick(['header', 'query']));
    await stream.closed;
    const rest = stream.frames.map(({ event, data }) => [event, data]);
    mustEqual(
      `what follows ${id}`,
      rest,
      frames.slice(index + 1).map(({ event, data }) => [event, data]),
    );
  }
}
