/**
 * What could be replayed is taken away under readers: the log is trimmed below their cursors (A11), a live reader falls
 * behind the trim, the log expires, and its run is read when only the thread is left. Nothing is skipped in silence.
 */
import { Redis } from 'ioredis';
import { BEFORE_START } from '#src/events/cursor.ts';
import { logKey } from '#src/events/keys.ts';
import { openSse, type SseStream } from '#tests/support/sse.ts';
import { until } from '#tests/support/until.ts';
import { must, mustEqual } from '../must.ts';
import { openRawReader } from '../raw-reader.ts';
import type { Scenario } from '../scenario.ts';
import type { ChaosServer } from '../stage.ts';
import type { Asked, World } from '../world.ts';

const FLOOD = { count: 400, bytes: 32 * 1024 };

export const scenario: Scenario = {
  row: 16,
  name: 'log trimmed below the cursor, expired, gone',
  asserts:
    'the gap is said before any data; an expired log is 410 with the run’s status, and the thread has the answer',
  together: true,
  weightS: 25,
  async run(world) {
    world.allowResync();
    const redis = new Redis(world.stage.redisUrl, { protocol: 2 });
    const server = await world.stage.lasting('reads');
    try {
      await trimmedAlive(world, redis, server);
      await fallsBehind(world, redis, server);
      await trimmedAfterItsEnd(world, redis, server);
      await expired(world, redis, server);
    } finally {
      redis.disconnect();
    }
  },
};

function open(world: World, server: ChaosServer, run: Run, after = BEFORE_START): Promise<SseStream> {
  return openSse(streamUrl(server, run, after), { headers: { 'x-dev-user': world.owner } });
}

type Run = Pick<Asked, 'runId' | 'threadId'>;

function streamUrl(server: ChaosServer, { threadId, runId }: Run, after: number): string {
  const cursor = after === BEFORE_START ? '' : `&last_event_id=${after}`;
  return `${server.url}/api/v1/threads/${threadId}/messages/stream?run_id=${runId}${cursor}`;
}

/** The first frame that is not the stream's own opening. */
function firstOf(stream: SseStream): string | undefined {
  return stream.frames.find(({ event, id }) => !(event === 'metadata' && id === undefined))?.event;
}

async function assertGapFirst(stream: SseStream, what: string): Promise<void> {
  await stream.waitFor(({ event }) => event === 'run_end', { timeoutMs: 60_000, message: `${what}: the end` });
  mustEqual(`${what}: first frame`, firstOf(stream), 'resync_required');
  stream.close();
}

/** Readers who come with an id that is gone, and with none, while the run goes on. One that is up to date loses nothing. */
async function trimmedAlive(world: World, redis: Redis, server: ChaosServer): Promise<void> {
  const run = await world.ask({ tokens: 120, delayMs: 30 });
  const current = world.read(run, { on: server, faithful: true });
  await current.hasChunks(world.rng.int(20, 60));
  await redis.xtrim(logKey(run.runId), 'MAXLEN', world.rng.int(2, 8));
  const other = await world.stage.lasting('another');
  const [late, fresh] = await Promise.all([open(world, other, run, world.rng.int(0, 5)), open(world, other, run)]);
  await Promise.all([assertGapFirst(late, 'an id that was trimmed'), assertGapFirst(fresh, 'from the start')]);
  const { frames } = await current.done;
  must(!frames.some(({ event }) => event === 'resync_required'), 'a reader that was up to date was told to resync');
}

/** A reader that takes nothing, until what it has not been given yet is trimmed; then it takes all. */
async function fallsBehind(world: World, redis: Redis, server: ChaosServer): Promise<void> {
  const sent = await world.call<{ run_id: string; thread_id: string }>(server, 'POST', '/threads/messages', {
    content: 'say a lot',
    graph: 'flood',
    config: { configurable: FLOOD },
  });
  const run = { runId: sent.body.run_id, threadId: sent.body.thread_id };
  const slow = await openRawReader(streamUrl(server, run, BEFORE_START), {
    owner: world.owner,
    bytesPerSecond: 0,
    keep: true,
  });
  await world.ended(run.runId);
  await redis.xtrim(logKey(run.runId), 'MAXLEN', 3);
  slow.takeAll();
  await until(() => slow.text().includes('event: run_end'), { timeoutMs: 60_000, message: 'the slow reader’s end' });
  slow.close();
  const seen = [...slow.text().matchAll(/^event: (\w+)/gm)].map(([, event]) => event);
  const events = seen.filter((event) => event === 'custom').length;
  must(events < FLOOD.count, 'the slow reader was ahead of the trim; it tests nothing');
  must(seen.includes('resync_required'), `${FLOOD.count - events} events were skipped in silence`);
}

async function trimmedAfterItsEnd(world: World, redis: Redis, server: ChaosServer): Promise<void> {
  const run = await world.ask({ tokens: 40, delayMs: 2, tools: 1 });
  await world.ended(run.runId);
  await world.read(run).done;
  const length = await redis.xlen(logKey(run.runId));
  await redis.xtrim(logKey(run.runId), 'MAXLEN', world.rng.int(1, length - 3));
  await assertGapFirst(await open(world, server, run), 'an ended run from the start');
  await assertGapFirst(await open(world, server, run, 0), 'an ended run after its first event');
}

async function expired(world: World, redis: Redis, server: ChaosServer): Promise<void> {
  const run = await world.ask({ tokens: 20, delayMs: 2 });
  await world.ended(run.runId);
  await world.read(run).done;
  await redis.pexpire(logKey(run.runId), 20);
  await until(async () => (await redis.exists(logKey(run.runId))) === 0, { message: 'the log to expire' });
  // Of one that ended a moment ago the server cannot tell whether its seal is still on its way.
  const longAgo = `select 1 from runs where id = $1::uuid and ended_at < clock_timestamp() - interval '6 s'`;
  await until(async () => (await world.rows(longAgo, [run.runId])).length === 1, { message: 'some seconds to pass' });
  for (const after of [BEFORE_START, 3]) {
    const stream = await open(world, server, run, after);
    await stream.closed;
    mustEqual('status of an expired stream', stream.status, 410);
    const body = JSON.parse(stream.raw()) as { code: string; run: { id: string; status: string } };
    mustEqual('what it says', [body.code, body.run], ['STREAM_EXPIRED', { id: run.runId, status: 'succeeded' }]);
  }
  const { body } = await world.call<{ turns: { answer: { content: string } }[] }>(
    server,
    'GET',
    `/threads/${run.threadId}/turns`,
  );
  mustEqual('words of the answer', body.turns[0]?.answer.content.trim().split(' ').length, 20);
}
