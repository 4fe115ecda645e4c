/** A worker dies with events that never reached the log, of steps that are not run again: its readers are told. */
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, expect, inject, test } from 'vitest';
import { type Cluster, ended, follow, send, startCluster, textOf } from '#tests/support/cluster.ts';
import { say } from '#tests/support/fake-model-script.ts';
import { GREETING } from '#tests/support/graphs/speak-twice.ts';
import { type SlowService, startSlowService } from '#tests/support/slow-service.ts';
import { startTcpProxy, type TcpProxy } from '#tests/support/tcp-proxy.ts';

let cluster: Cluster;
let redis: TcpProxy;
let service: SlowService;

beforeAll(async () => {
  const graph = fileURLToPath(new URL('../support/graphs/speak-twice.ts', import.meta.url));
  cluster = await startCluster({ server: { config: { graphs: { chat: `${graph}:speakTwice` } } } });
  service = await startSlowService();
  redis = await startTcpProxy({ port: Number(new URL(inject('redisUrl')).port) });
});
afterAll(async () => {
  await cluster.stop();
  await redis.close();
  await service.close();
});

test('the reader of a run that goes on elsewhere is told of the step whose events are lost', async () => {
  const [survivor] = cluster.servers;
  if (survivor === undefined) throw new Error('no server');
  const victim = await cluster.add({ env: { REDIS_URL: redis.through(inject('redisUrl')) } });
  // Held still until the victim dies, so that it is the victim that claims what it admits.
  survivor.kill('SIGSTOP');
  cluster.model.setScript(() => ({ steps: [{ do: 'gate', gate: 'never' }] }));
  const sent = await send(victim, 'hello', { config: { configurable: { url: `${service.url}/greet` } } });
  const seen = await follow(victim, sent);
  await seen.waitFor((frame) => frame.event === 'metadata');
  redis.set({ kind: 'black-hole' });
  service.release('/greet');
  // Its own readers are served without the log, and the second step has begun, so the first is in the checkpoints.
  await seen.waitFor((frame) => frame.event === 'message_chunk');
  await cluster.model.waitForCall(1);
  victim.kill('SIGKILL');
  await seen.closed;
  cluster.model.setScript(say('the answer'));
  survivor.kill('SIGCONT');
  const whole = await follow(survivor, sent);
  expect(await ended(survivor, sent.run_id, 30_000)).toMatchObject({ status: 'succeeded' });
  await whole.closed;
  const told = textOf(whole).includes(GREETING);
  const warned = whole.frames.some((frame) => frame.event === 'resync_required');
  expect({ told, warned }).toEqual({ told: false, warned: true });

  // One that was served without the log has seen more than the log has, and cannot know what became of it.
  const ahead = await follow(survivor, sent, Number(seen.frames.findLast((frame) => frame.id !== undefined)?.id));
  await ahead.closed;
  expect(textOf(ahead)).toBe('the answer');
  expect(ahead.frames.map((frame) => frame.event)).toContain('resync_required');
});
