/** What a failure leaves, and trying again: in place after a transient fault, by request after a failed turn. */
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type Cluster, call, ended, follow, send, startCluster, textOf } from '#tests/support/cluster.ts';
import { fail, say } from '#tests/support/fake-model-script.ts';
import type { TestServer } from '#tests/support/server.ts';

let cluster: Cluster;
let a: TestServer;
let b: TestServer;

beforeAll(async () => {
  cluster = await startCluster({ size: 2, model: { strict: true } });
  [a, b] = cluster.servers as [TestServer, TestServer];
});
afterAll(() => cluster.stop());

interface TurnBody {
  status: string;
  question: { content: unknown };
  answer: { content: unknown; partial: boolean } | null;
  can_rerun: boolean;
}
const turnsOf = async (threadId: string): Promise<TurnBody[]> =>
  (await call<{ turns: TurnBody[] }>(b, 'GET', `/api/v1/threads/${threadId}/turns`)).body.turns;
const retry = (server: TestServer, threadId: string) =>
  call<{ run_id: string; code: string }>(server, 'POST', `/api/v1/threads/${threadId}/retry`);
const SECRET = 'sk-live-123456 at postgres://user:pw@host';

describe('a transient fault', () => {
  test('is tried again in place: the client sees retry, then the whole answer once', async () => {
    let failures = 2;
    cluster.model.setScript(() => (failures-- > 0 ? fail(503, { error: { message: SECRET } }) : say('here I am')));
    const sent = await send(a, 'hello');
    const stream = await follow(b, sent);
    await stream.closed;
    const events = stream.frames.map((frame) => frame.event);
    expect(events.filter((event) => event === 'retry')).toHaveLength(2);
    expect(events.at(-1)).toBe('run_end');
    expect(textOf(stream)).toBe('here I am');
    expect(await ended(a, sent.run_id)).toMatchObject({ status: 'succeeded', error: null });
    expect(await turnsOf(sent.thread_id)).toMatchObject([{ status: 'succeeded', answer: { content: 'here I am' } }]);
  });

  test('after the first tokens: what was shown is dropped by name, and shown again', async () => {
    let first = true;
    cluster.model.setScript(() => {
      if (!first) return say('whole answer');
      first = false;
      return {
        steps: [
          { do: 'text', text: 'half ' },
          { do: 'text', text: 'an' },
          { do: 'gate', gate: 'seen' },
          { do: 'reset' },
        ],
      };
    });
    const sent = await send(a, 'hello');
    const stream = await follow(a, sent);
    await stream.waitFor((frame) => frame.event === 'message_chunk');
    cluster.model.release('seen');
    await stream.closed;
    const shown = stream.frames.find((frame) => frame.event === 'message_chunk');
    const retried = stream.frames.find((frame) => frame.event === 'retry');
    expect(JSON.parse(retried?.data ?? '{}')).toMatchObject({
      attempt: 1,
      dropped: [(JSON.parse(shown?.data ?? '{}') as { message_id: string }).message_id],
    });
    expect(await turnsOf(sent.thread_id)).toMatchObject([
      { status: 'succeeded', answer: { content: 'whole answer', partial: false } },
    ]);
  });

  test('that stays ends the run with a code, a safe sentence and what helps', async () => {
    cluster.model.setScript(fail(401, { error: { message: SECRET } }));
    const sent = await send(a, 'hello');
    const stream = await follow(b, sent);
    await stream.closed;
    expect(stream.raw()).not.toContain('sk-live');
    expect(JSON.parse(stream.frames.at(-2)?.data ?? '{}')).toMatchObject({ code: 'MODEL_AUTH', recovery: 'retry' });
    const run = await ended(a, sent.run_id);
    expect(run).toMatchObject({ status: 'failed', error: { code: 'MODEL_AUTH' } });
    expect(JSON.stringify(run)).not.toContain('sk-live');
    expect(a.logs() + b.logs()).toContain('sk-live');
  });
});

describe('POST retry', () => {
  async function failedTurn(): Promise<string> {
    cluster.model.setScript(fail(400, { error: { message: 'no' } }));
    const sent = await send(a, 'the question');
    expect((await ended(a, sent.run_id)).status).toBe('failed');
    return sent.thread_id;
  }

  test('runs the turn again from where it began: one question, one answer', async () => {
    const threadId = await failedTurn();
    expect(await turnsOf(threadId)).toMatchObject([{ status: 'failed', can_rerun: true }]);
    cluster.model.setScript(say('the answer'));
    const calls = cluster.model.calls.length;
    const again = await retry(b, threadId);
    expect(again.status).toBe(202);
    expect((await ended(a, again.body.run_id)).status).toBe('succeeded');
    expect(await turnsOf(threadId)).toMatchObject([
      {
        status: 'succeeded',
        question: { content: 'the question' },
        answer: { content: 'the answer' },
        can_rerun: false,
      },
    ]);
    const roles = cluster.model.calls[calls]?.body.messages.map((message) => message.role);
    expect(roles).toEqual(['system', 'user']);
    expect(await retry(a, threadId)).toMatchObject({ status: 409, body: { code: 'NOT_RERUNNABLE' } });
  });

  test('of two at once one wins', async () => {
    const threadId = await failedTurn();
    cluster.model.setScript(say('slow', { delayMs: 300 }));
    const both = await Promise.all([retry(a, threadId), retry(b, threadId)]);
    expect(both.map((answer) => answer.status).sort()).toEqual([202, 409]);
    const lost = both.find((answer) => answer.status === 409);
    expect(lost?.body.code).toBe('RUN_IN_PROGRESS');
    const won = both.find((answer) => answer.status === 202);
    expect((await ended(a, won?.body.run_id ?? '')).status).toBe('succeeded');
  });
});

test('after a cancel in half a tool call the next message works, and the model is told what was said', async () => {
  const half = { do: 'tool_call', index: 0, id: 'call_a', name: 'calculate', args: '{"expression": "1' } as const;
  cluster.model.setScript({ steps: [{ do: 'text', text: 'let me see ' }, half, { do: 'hang' }] });
  const sent = await send(a, 'do it');
  const stream = await follow(a, sent);
  await stream.waitFor((frame) => frame.event === 'tool_call_chunks');
  const cancelled = await call(b, 'POST', `/api/v1/threads/${sent.thread_id}/cancel?wait=true`);
  expect(cancelled.body).toMatchObject({ status: 'cancelled' });
  cluster.model.setScript(say('fine'));
  const next = await send(b, 'and now?', {}, sent.thread_id);
  expect(await ended(b, next.run_id)).toMatchObject({ status: 'succeeded', error: null });
  const told = cluster.model.calls.at(-1)?.body.messages ?? [];
  expect(told.map(({ role, content }) => ({ role, content })).slice(1)).toEqual([
    { role: 'user', content: 'do it' },
    { role: 'assistant', content: 'let me see ' },
    { role: 'user', content: 'and now?' },
  ]);
});
