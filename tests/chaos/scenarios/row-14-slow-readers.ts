/**
 * Hundreds of readers of a run that says megabytes who take a kilobyte a second, or nothing at all: each costs the server
 * little, the run and a reader who keeps up notice nothing, and a slow one that comes back with its id misses nothing.
 */
import { setTimeout as pause } from 'node:timers/promises';
import { until } from '#tests/support/until.ts';
import { heldMb } from '../held-memory.ts';
import { must, mustEqual } from '../must.ts';
import { openRawReader, type RawReader } from '../raw-reader.ts';
import type { Scenario } from '../scenario.ts';
import type { ChaosServer } from '../stage.ts';
import type { Asked, World } from '../world.ts';

/** In the long run more. What they cost the machine is mostly the kernel's: 2 MB each that are sent and not taken. */
const READERS = process.env.CHAOS_PLAN === undefined ? 60 : 240;
const EVENTS = 300;
const EVENT_BYTES = 16 * 1024;
/**
 * What may grow: per reader the page of the log it is in the middle of (128 KB, as events and as frames) and a few pieces of
 * 64 KB, made and not taken, beside what the run itself takes. All of it buffered would be 6 MB each.
 */
const PER_READER_KB = 600;
/** The run, its readers who keep up, and what a new server loads: 115 to 175 MB were seen, with 60 readers as with 240. */
const RUN_MB = 200;

type Run = Pick<Asked, 'runId' | 'threadId'>;

export const scenario: Scenario = {
  row: 14,
  name: 'readers that are slow, and readers that never read',
  asserts:
    'memory is bounded per reader; a fast reader and the run are not held up; the slow one gets the rest from its id',
  weightS: 35,
  async run(world) {
    const server = await world.stage.lasting('read');
    const baseMb = await heldMb(server);
    const talk = await world.ask({ on: server, tokens: 150, delayMs: 40 });
    const run = await startFlood(world, server);
    const readers = await crowd(world, server, run);
    try {
      await keepsUp(world, server, { run, talk, baseMb });
      await comesBack(world, server, run, readers);
    } finally {
      for (const reader of readers) reader.close();
    }
  },
};

/** Beside the crowd: a reader of the same run, and one of another, get all of it; the memory stays within its bound. */
async function keepsUp(
  world: World,
  server: ChaosServer,
  { run, talk, baseMb }: { run: Run; talk: Run; baseMb: number },
): Promise<void> {
  const fast = world.read(run, { on: server, faithful: true });
  const other = world.read(talk, { on: server, faithful: true });
  const startMs = performance.now();
  let highestMb = 0;
  let over = false;
  const watching = (async () => {
    for (; !over; await pause(1_000)) highestMb = Math.max(highestMb, await heldMb(server));
  })();
  await Promise.all([fast.done, other.done]);
  over = true;
  await watching;
  world.measure('fast reader', performance.now() - startMs);
  world.measure('memory held more, MB', highestMb - baseMb);
  mustEqual('status of the flood', (await world.ended(run.runId)).status, 'succeeded');
  const limitMb = RUN_MB + (READERS * PER_READER_KB) / 1024;
  must(highestMb - baseMb < limitMb, `it held ${baseMb} MB, then ${highestMb}; the limit is ${limitMb} more`);
}

async function startFlood(world: World, server: ChaosServer): Promise<Run> {
  const answer = await world.call<{ run_id: string; thread_id: string }>(server, 'POST', '/threads/messages', {
    content: 'say a lot',
    graph: 'flood',
    config: { configurable: { count: EVENTS, bytes: EVENT_BYTES } },
  });
  mustEqual('status of the message', answer.status, 202);
  return { runId: answer.body.run_id, threadId: answer.body.thread_id };
}

function streamUrl(server: ChaosServer, run: Run, after?: number): string {
  const cursor = after === undefined ? '' : `&last_event_id=${after}`;
  return `${server.url}/api/v1/threads/${run.threadId}/messages/stream?run_id=${run.runId}${cursor}`;
}

/** Half of them read slowly, half of them not at all; the first keeps what it reads. */
async function crowd(world: World, server: ChaosServer, run: Run): Promise<RawReader[]> {
  const readers: RawReader[] = [];
  for (let count = 0; count < READERS; count += 1) {
    const bytesPerSecond = count % 2 === 0 ? 1_000 : 0;
    readers.push(
      await openRawReader(streamUrl(server, run), { owner: world.owner, bytesPerSecond, keep: count === 0 }),
    );
  }
  return readers;
}

/** A slow reader gives up and comes back, fast now: what it has and what it gets are the whole run. */
async function comesBack(world: World, server: ChaosServer, run: Run, readers: RawReader[]): Promise<void> {
  const [slow] = readers;
  must(slow !== undefined && !slow.gone, 'a slow reader was cut off long before its time');
  await until(() => /\nid: \d+\n/.test(slow.text()), { timeoutMs: 60_000, message: 'a first whole event' });
  const last = Number([...slow.text().matchAll(/\nid: (\d+)\n/g)].at(-1)?.[1]);
  const rest = world.read(run, { on: server, from: last });
  const { frames, ended } = await rest.done;
  mustEqual('how the slow reader ended', ended, 'end');
  mustEqual('the first id it gets', frames[0]?.id, last + 1);
  mustEqual('the events it gets', frames.filter(({ event }) => event === 'custom').length, EVENTS - last);
}
