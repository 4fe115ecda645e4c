/** Two servers on one Postgres and one Redis: whatever a client does on one, it can go on with on the other. */
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import {
  type Cluster,
  call,
  ended,
  follow,
  seen,
  send,
  sendStreaming,
  startCluster,
  textOf,
} from '#tests/support/cluster.ts';
import { say } from '#tests/support/fake-model-script.ts';
import type { TestServer } from '#tests/support/server.ts';
import { until } from '#tests/support/until.ts';

let cluster: Cluster;
let a: TestServer;
let b: TestServer;

beforeAll(async () => {
  cluster = await startCluster({ size: 2 });
  [a, b] = cluster.servers as [TestServer, TestServer];
});
afterAll(() => cluster.stop());

const words = (count: number): string => Array.from({ length: count }, (_, index) => `w${index}`).join(' ');

describe('a run started on one process', () => {
  test('reads the same on the other, from every cursor, live and afterwards', async () => {
    cluster.model.setScript(say(words(40), { delayMs: 5 }));
    const sent = await send(a, 'count');
    const live = await follow(b, sent);
    const origin = await follow(a, sent);
    await Promise.all([live.closed, origin.closed]);
    expect(seen(live)).toEqual(seen(origin));
    expect(textOf(live)).toBe(words(40));
    const ids = live.frames.flatMap((frame) => (frame.id === undefined ? [] : [frame.id]));
    for (const [index, id] of ids.entries()) {
      const rest = await follow(index % 2 === 0 ? a : b, sent, id);
      await rest.closed;
      const from = live.frames.findIndex((frame) => frame.id === id) + 1;
      expect(seen(rest), `after ${id}`).toEqual(seen(live).slice(from));
    }
  });

  test('goes on when its client leaves, and the client finds it whole on the other process', async () => {
    cluster.model.setScript(say(words(30), { delayMs: 20 }));
    const stream = await sendStreaming(a, 'leave me');
    const chunk = await stream.waitFor((frame) => frame.event === 'message_chunk');
    stream.close();
    const { run_id, thread_id } = JSON.parse(stream.frames[0]?.data ?? '{}');
    const rest = await follow(b, { run_id, thread_id }, chunk.id);
    await rest.closed;
    const before = { frames: stream.frames.slice(0, stream.frames.indexOf(chunk) + 1) };
    expect(textOf(before) + textOf(rest)).toBe(words(30));
    expect(rest.frames.at(-1)?.event).toBe('run_end');
    expect((await ended(b, run_id)).status).toBe('succeeded');
  });

  test('is stopped by a cancel sent to the other within a second, and keeps its text', async () => {
    cluster.model.setScript(say(words(500), { delayMs: 20 }));
    const calls = cluster.model.calls.length;
    const stream = await sendStreaming(a, 'stop me');
    await until(() => textOf(stream).split(' ').length > 5, { message: 'some text' });
    const { run_id, thread_id } = JSON.parse(stream.frames[0]?.data ?? '{}');
    const asked = performance.timeOrigin + performance.now();
    const cancelled = await call(b, 'POST', `/api/v1/threads/${thread_id}/cancel?wait=true`);
    expect(cancelled).toMatchObject({ status: 200, body: { outcome: 'stopped', run_id, status: 'cancelled' } });
    const modelCall = await cluster.model.waitForEnd(await cluster.model.waitForCall(calls + 1));
    expect(modelCall.aborted).toBe(true);
    expect((modelCall.abortedAt ?? Number.POSITIVE_INFINITY) - asked).toBeLessThan(1_000);
    await stream.closed;
    expect(JSON.parse(stream.frames.at(-1)?.data ?? '{}')).toMatchObject({ status: 'cancelled' });
    const { body } = await call<{ turns: unknown[] }>(b, 'GET', `/api/v1/threads/${thread_id}/turns`);
    expect(body.turns).toMatchObject([{ status: 'cancelled', answer: { partial: true, content: textOf(stream) } }]);
    for (const server of [a, b, a]) {
      const again = await call(server, 'POST', `/api/v1/threads/${thread_id}/cancel`);
      expect(again).toMatchObject({ status: 200, body: { outcome: 'idle' } });
    }
    cluster.model.setScript(say('fine'));
    const next = await send(b, 'and now?', {}, thread_id);
    expect((await ended(a, next.run_id)).status).toBe('succeeded');
  });
});
