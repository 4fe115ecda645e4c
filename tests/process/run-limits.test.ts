/** The limits of a run are the run's, also when another worker goes on with it: its total time, and the length of its log. */
import { fileURLToPath } from 'node:url';
import { Redis } from 'ioredis';
import { afterAll, beforeAll, expect, inject, test } from 'vitest';
import { logKey } from '#src/events/keys.ts';
import { type Cluster, call, ended, follow, send, startCluster, textOf } from '#tests/support/cluster.ts';
import { say } from '#tests/support/fake-model-script.ts';
import { query } from '#tests/support/postgres.ts';
import type { TestServer } from '#tests/support/server.ts';
import { until } from '#tests/support/until.ts';

const MAX_EVENTS = 60;
let cluster: Cluster;

beforeAll(async () => {
  const endings = fileURLToPath(new URL('../support/graphs/endings.ts', import.meta.url));
  const chat = fileURLToPath(new URL('../../src/graphs/chat.ts', import.meta.url));
  const config = {
    graphs: { waiting: `${endings}:waiting`, chat: `${chat}:graph` },
    runs: { timeout: '30m' },
    events: { max_events: MAX_EVENTS },
  };
  cluster = await startCluster({ size: 1, server: { config } });
});
afterAll(() => cluster?.stop());

test('one that was begun long ago and is taken over now has no time left', async () => {
  const [survivor] = cluster.servers as [TestServer];
  const victim = await cluster.add();
  // Held still, so that it is the victim that claims.
  survivor.kill('SIGSTOP');
  const sent = await send(victim, 'wait', { graph: 'waiting' });
  const statusOf = async () => (await call(victim, 'GET', `/api/v1/runs/${sent.run_id}`)).body.status;
  await until(async () => (await statusOf()) === 'running', { message: 'the run to be claimed' });
  await query(
    cluster.database.url,
    `update runs set started_at = started_at - interval '1 hour' where id = '${sent.run_id}'`,
  );
  survivor.kill('SIGCONT');
  victim.kill('SIGKILL');
  expect(await ended(survivor, sent.run_id, 40_000)).toMatchObject({
    status: 'failed',
    error: { code: 'RUN_TIMEOUT' },
    takeovers: 1,
  });
});

test('what its first owner has put into the log counts for the next', async () => {
  const [survivor] = cluster.servers as [TestServer];
  const victim = await cluster.add();
  survivor.kill('SIGSTOP');
  const words = Array.from({ length: 120 }, (_, n) => `w${n}`).join(' ');
  cluster.model.setScript(say(words, { delayMs: 25 }));
  const sent = await send(victim, 'count', { graph: 'chat' });
  const reader = await follow(victim, sent);
  await until(() => textOf(reader).includes('w30'), { message: 'half of what the log takes' });
  survivor.kill('SIGCONT');
  victim.kill('SIGKILL');
  expect(await ended(survivor, sent.run_id, 40_000)).toMatchObject({ status: 'succeeded', takeovers: 1 });
  const whole = await follow(survivor, sent);
  await whole.closed;
  expect(whole.frames.map(({ event }) => event).slice(-2)).toEqual(['resync_required', 'run_end']);
  const redis = new Redis(inject('redisUrl'), { protocol: 2 });
  const entries = await redis.xlen(logKey(sent.run_id));
  redis.disconnect();
  // Beside them: the hand-over, the mark that the log is torn, and the end.
  expect(entries).toBeLessThan(MAX_EVENTS + 8);
  const { body } = await call<{ turns: unknown[] }>(survivor, 'GET', `/api/v1/threads/${sent.thread_id}/turns`);
  expect(body.turns).toMatchObject([{ answer: { content: words } }]);
});
