/** A worker dies, another goes on: nothing is lost, nothing is run twice, nobody is asked twice. */
import { fileURLToPath } from 'node:url';
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import {
  type Cluster,
  call,
  ended,
  follow,
  type Sent,
  send,
  sendStreaming,
  startCluster,
} from '#tests/support/cluster.ts';
import { callTools, say } from '#tests/support/fake-model-script.ts';
import type { TestServer } from '#tests/support/server.ts';
import type { SseStream } from '#tests/support/sse.ts';
import { until } from '#tests/support/until.ts';

let cluster: Cluster;

beforeAll(async () => {
  const approvals = fileURLToPath(new URL('../support/graphs/approvals.ts', import.meta.url));
  const chat = fileURLToPath(new URL('../../src/graphs/chat.ts', import.meta.url));
  const graphs = { chat: `${chat}:graph`, twoNodes: `${approvals}:twoNodes`, oneNode: `${approvals}:oneNode` };
  cluster = await startCluster({ size: 1, model: { strict: true }, server: { config: { graphs } } });
});
afterAll(() => cluster.stop());
afterEach(async () => {
  for (const server of cluster.servers.splice(1)) {
    server.kill('SIGKILL');
    await server.exit;
  }
});

const words = (count: number): string => Array.from({ length: count }, (_, index) => `w${index}`).join(' ');
const idsOf = (stream: SseStream): number[] =>
  stream.frames.flatMap((frame) => (frame.id === undefined ? [] : [Number(frame.id)]));
const data = (stream: SseStream, event: string): Record<string, unknown>[] =>
  stream.frames.filter((frame) => frame.event === event).map((frame) => JSON.parse(frame.data));

/** Messages as a client builds them: text by message id, forgetting what is dropped. */
function built(stream: SseStream): Map<string, string> {
  const texts = new Map<string, string>();
  for (const frame of stream.frames) {
    const body = JSON.parse(frame.data);
    if (frame.event === 'message_chunk' && body.type === 'text') {
      texts.set(body.message_id, (texts.get(body.message_id) ?? '') + body.delta);
    }
    if (frame.event === 'metadata' || frame.event === 'retry') for (const id of body.dropped ?? []) texts.delete(id);
  }
  return texts;
}

async function doomed(): Promise<{ survivor: TestServer; victim: TestServer }> {
  const [survivor] = cluster.servers as [TestServer];
  const victim = await cluster.add();
  // Held still until the victim dies, so that it is the victim that claims what it admits.
  survivor.kill('SIGSTOP');
  return { survivor, victim };
}

describe('kill -9 of the owner', () => {
  test('in mid answer: the run goes on elsewhere, the client gets the rest once', async () => {
    const { survivor, victim } = await doomed();
    cluster.model.setScript(say(words(60), { delayMs: 25 }));
    const stream = await sendStreaming(victim, 'count');
    await until(() => data(stream, 'message_chunk').length > 8, { message: 'some text' });
    const { run_id, thread_id } = data(stream, 'metadata')[0] as { run_id: string; thread_id: string };
    survivor.kill('SIGCONT');
    victim.kill('SIGKILL');
    await stream.closed;
    const rest = await follow(survivor, { run_id, thread_id }, idsOf(stream).at(-1));
    const taken = await rest.waitFor((frame) => frame.event === 'metadata', { timeoutMs: 20_000 });
    expect(JSON.parse(taken.data)).toMatchObject({
      run_id,
      takeover: 1,
      dropped: [data(stream, 'message_chunk')[0]?.message_id],
    });
    await rest.closed;
    const ids = [...idsOf(stream), ...idsOf(rest)];
    expect(ids).toEqual([...new Set(ids)].sort((x, y) => x - y));
    expect([...built(rest).values()]).toEqual([words(60)]);
    expect(data(rest, 'run_end')).toMatchObject([{ status: 'succeeded' }]);
    const { body } = await call<{ turns: unknown[] }>(survivor, 'GET', `/api/v1/threads/${thread_id}/turns`);
    expect(body.turns).toMatchObject([{ status: 'succeeded', answer: { content: words(60), partial: false } }]);
  });

  test('after a finished node: it is not run again', async () => {
    const { survivor, victim } = await doomed();
    const calls = cluster.model.calls.length;
    cluster.model.setScript((request) =>
      request.messages.at(-1)?.role === 'tool'
        ? say(words(80), { delayMs: 25 })
        : callTools([{ id: 'call_1', name: 'calculate', args: { expression: '17*23' } }]),
    );
    const stream = await sendStreaming(victim, 'how much?');
    await until(() => data(stream, 'message_chunk').length > 8, { message: 'text of the second call' });
    const { run_id, thread_id } = data(stream, 'metadata')[0] as { run_id: string; thread_id: string };
    survivor.kill('SIGCONT');
    victim.kill('SIGKILL');
    await stream.closed;
    const rest = await follow(survivor, { run_id, thread_id }, idsOf(stream).at(-1));
    await rest.closed;
    expect(data(rest, 'run_end')).toMatchObject([{ status: 'succeeded' }]);
    // one call that asked for the tool, the one that was cut, and the one that went on from there
    expect(cluster.model.calls.length - calls).toBe(3);
    expect(data(rest, 'tool_call_result')).toEqual([]);
  });

  test('and a cancel before anybody noticed: the run ends cancelled, with the text that was shown', async () => {
    const { survivor, victim } = await doomed();
    cluster.model.setScript(say(words(400), { delayMs: 25 }));
    const stream = await sendStreaming(victim, 'count');
    await until(() => data(stream, 'message_chunk').length > 8, { message: 'some text' });
    const { run_id, thread_id } = data(stream, 'metadata')[0] as { run_id: string; thread_id: string };
    survivor.kill('SIGCONT');
    victim.kill('SIGKILL');
    await stream.closed;
    const cancelled = await call(survivor, 'POST', `/api/v1/threads/${thread_id}/cancel?wait=true`);
    expect(cancelled.body).toMatchObject({ outcome: 'stopped', run_id, status: 'cancelled' });
    const shown = [...built(stream).values()].join('');
    const { body } = await call<{ turns: { answer: { content: string; partial: boolean } }[] }>(
      survivor,
      'GET',
      `/api/v1/threads/${thread_id}/turns`,
    );
    expect(body.turns).toMatchObject([{ status: 'cancelled', answer: { partial: true } }]);
    expect(body.turns[0]?.answer.content.startsWith(shown)).toBe(true);
    cluster.model.setScript(say('fine'));
    const next = await send(survivor, 'and now?', {}, thread_id);
    expect((await ended(survivor, next.run_id)).status).toBe('succeeded');
    const told = cluster.model.calls.at(-1)?.body.messages.map((message) => message.role);
    expect(told).toEqual(['system', 'user', 'assistant', 'user']);
  });

  test.each(['twoNodes', 'oneNode'])(
    'between two approvals (%s): each is asked once, none is answered for the person',
    async (graph) => {
      const { survivor, victim } = await doomed();
      const sent = await send(victim, 'go', { graph });
      expect((await ended(victim, sent.run_id)).status).toBe('interrupted');
      const first = await answerOpen(victim, sent, 'yes1');
      survivor.kill('SIGCONT');
      victim.kill('SIGKILL');
      expect((await ended(survivor, first, 30_000)).status).toBe('interrupted');
      expect((await turnOf(survivor, sent)).interrupts).toMatchObject([{ value: { question: 'two' } }]);
      const second = await answerOpen(survivor, sent, 'yes2');
      expect((await ended(survivor, second)).status).toBe('succeeded');
      expect((await turnOf(survivor, sent)).answer).toMatchObject({ content: 'one:yes1,two:yes2' });
    },
  );
});

interface TurnBody {
  status: string;
  interrupts: { id: string; value: unknown }[];
  answer: unknown;
}

async function turnOf(server: TestServer, sent: Sent): Promise<TurnBody> {
  const { body } = await call<{ turns: TurnBody[] }>(server, 'GET', `/api/v1/threads/${sent.thread_id}/turns`);
  const [turn] = body.turns;
  if (turn === undefined) throw new Error('no turn');
  return turn;
}

/** Answers what the turn asks; returns the answering run. */
async function answerOpen(server: TestServer, sent: Sent, value: string): Promise<string> {
  const [open] = (await turnOf(server, sent)).interrupts;
  const interrupts = { [open?.id ?? 'none']: value };
  const answer = await call<{ run_id: string }>(server, 'POST', `/api/v1/threads/${sent.thread_id}/answer`, {
    interrupts,
  });
  expect(answer.status).toBe(202);
  return answer.body.run_id;
}
