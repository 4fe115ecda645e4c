/** SIGTERM: streams end with a hint, short runs end, long ones are handed back and go on elsewhere. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import {
  type Cluster,
  call,
  ended,
  follow,
  type RunBody,
  sendStreaming,
  startCluster,
} from '#tests/support/cluster.ts';
import { say } from '#tests/support/fake-model-script.ts';
import type { SseStream } from '#tests/support/sse.ts';
import { until } from '#tests/support/until.ts';

let cluster: Cluster;

beforeAll(async () => {
  cluster = await startCluster({ size: 1, server: { config: { runs: { drain_timeout: '1s' } } } });
});
afterAll(() => cluster.stop());

const words = (count: number): string => Array.from({ length: count }, (_, index) => `w${index}`).join(' ');
const first = (stream: SseStream) =>
  JSON.parse(stream.frames[0]?.data ?? '{}') as { run_id: string; thread_id: string };
const chunks = (stream: SseStream) => stream.frames.filter((frame) => frame.event === 'message_chunk');

test('a run that ends within the drain ends where it is; the process exits 0', async () => {
  const leaving = await cluster.add();
  cluster.model.setScript(say(words(20), { delayMs: 20 }));
  const stream = await sendStreaming(leaving, 'short');
  await until(() => chunks(stream).length > 2, { message: 'some text' });
  expect(await leaving.stop()).toBe(0);
  const { run_id } = first(stream);
  const [stayed] = cluster.servers;
  if (stayed === undefined) throw new Error('no server');
  expect(await ended(stayed, run_id)).toMatchObject({ status: 'succeeded' });
  const { body } = await call<RunBody & { takeovers: number }>(stayed, 'GET', `/api/v1/runs/${run_id}`);
  expect(body.takeovers).toBe(0);
});

test('a longer run goes on elsewhere, counts no takeover, and its client misses nothing and sees no error', async () => {
  const leaving = await cluster.add();
  const [stayed] = cluster.servers;
  if (stayed === undefined) throw new Error('no server');
  // Held still until the other leaves, so that it is the other that claims what it admits.
  stayed.kill('SIGSTOP');
  cluster.model.setScript(say(words(150), { delayMs: 20 }));
  const stream = await sendStreaming(leaving, 'long');
  await until(() => chunks(stream).length > 5, { message: 'some text' });
  const { run_id, thread_id } = first(stream);
  stayed.kill('SIGCONT');
  leaving.kill('SIGTERM');
  await until(async () => (await call(leaving, 'GET', '/readyz').catch(() => ({ status: 0 }))).status !== 200, {
    message: 'readiness to go off',
  });
  expect(await stream.closed).toEqual({ how: 'ended' });
  expect(stream.raw()).toContain('retry:');
  expect(stream.frames.map((frame) => frame.event)).not.toContain('error');
  const rest = await follow(stayed, { run_id, thread_id }, stream.frames.at(-1)?.id);
  await rest.closed;
  expect(await leaving.exit).toBe(0);
  const again = rest.frames.find((frame) => frame.event === 'metadata');
  expect(JSON.parse(again?.data ?? '{}')).toMatchObject({ takeover: 0 });
  const text = chunks(rest).slice(
    chunks(rest).findIndex((frame) => rest.frames.indexOf(frame) > rest.frames.indexOf(again ?? frame)),
  );
  expect(text.map((frame) => (JSON.parse(frame.data) as { delta: string }).delta).join('')).toBe(words(150));
  const ids = [...stream.frames, ...rest.frames].flatMap((frame) => (frame.id === undefined ? [] : [Number(frame.id)]));
  expect(ids).toEqual([...new Set(ids)].sort((x, y) => x - y));
  expect(rest.frames.at(-1)).toMatchObject({ event: 'run_end' });
  expect(rest.frames.map((frame) => frame.event)).not.toContain('resync_required');
});

test('a second signal ends it at once', async () => {
  const leaving = await cluster.add({ config: { runs: { drain_timeout: '60s' } } });
  cluster.model.setScript(say(words(2_000), { delayMs: 20 }));
  const stream = await sendStreaming(leaving, 'very long');
  await until(() => chunks(stream).length > 2, { message: 'some text' });
  leaving.kill('SIGTERM');
  await stream.closed;
  leaving.kill('SIGTERM');
  const begun = performance.now();
  expect(await leaving.exit).not.toBe(0);
  expect(performance.now() - begun).toBeLessThan(5_000);
});
