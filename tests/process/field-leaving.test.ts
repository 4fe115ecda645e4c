/** Clients that leave, come back, open a second window, or send the same thing again. */
import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { connect, type Socket } from 'node:net';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import {
  type Cluster,
  call,
  ended,
  follow,
  type Sent,
  send,
  sendStreaming,
  startCluster,
  textOf,
} from '#tests/support/cluster.ts';
import type { ModelCall } from '#tests/support/fake-model.ts';
import { callTools, type Reply, say } from '#tests/support/fake-model-script.ts';
import { dataOf, idsOf } from '#tests/support/frames.ts';
import type { TestServer } from '#tests/support/server.ts';
import { until } from '#tests/support/until.ts';

let cluster: Cluster;
let a: TestServer;
let b: TestServer;

beforeAll(async () => {
  cluster = await startCluster({ size: 2, model: { strict: true } });
  [a, b] = cluster.servers as [TestServer, TestServer];
});
afterAll(() => cluster.stop());

const now = () => performance.timeOrigin + performance.now();
const words = (count: number): string => Array.from({ length: count }, (_, index) => `w${index}`).join(' ');

interface Turn {
  status: string;
  active_run_id: string | null;
  question: { id: string; content: unknown };
  answer: { content: string; partial: boolean } | null;
}
async function turnsOf(server: TestServer, threadId: string): Promise<Turn[]> {
  return (await call<{ turns: Turn[] }>(server, 'GET', `/api/v1/threads/${threadId}/turns`)).body.turns;
}

/** Answers by the first word of the last human message, so that runs of one test file do not share a script. */
const replies = new Map<string, Reply>();
function reply(name: string, said: Reply): string {
  replies.set(name, said);
  cluster.model.setScript((request) => {
    const human = request.messages.findLast(({ role }) => role === 'user');
    return replies.get(String(human?.content)) ?? say('?');
  });
  return name;
}
const callOf = (content: string): Promise<ModelCall> =>
  until(
    () => cluster.model.calls.findLast(({ body }) => body.messages.some((message) => message.content === content)),
    {
      message: `the model call of ${content}`,
    },
  );

/** A client without any library, which can be told how to leave. */
interface BareClient {
  socket: Socket;
  /** What came so far, headers included. */
  text(): string;
  /** fin: says goodbye, as a program that closes its socket. rst: vanishes. */
  leave(how: 'fin' | 'rst'): void;
}
async function barePost(server: TestServer, path: string, body: object): Promise<BareClient> {
  const socket = connect({ host: '127.0.0.1', port: Number(new URL(server.url).port) });
  socket.on('error', () => undefined);
  let text = '';
  socket.setEncoding('utf8').on('data', (more: string) => {
    text += more;
  });
  await once(socket, 'connect');
  const json = JSON.stringify(body);
  const headers = ['Host: test', 'Accept: text/event-stream', 'Content-Type: application/json'];
  socket.write(
    [`POST ${path} HTTP/1.1`, ...headers, `Content-Length: ${Buffer.byteLength(json)}`, '', json].join('\r\n'),
  );
  return {
    socket,
    text: () => text,
    leave: (how) => (how === 'rst' ? socket.resetAndDestroy() : socket.destroy()),
  };
}
async function afterChunks(client: BareClient, count: number): Promise<Pick<Sent, 'thread_id' | 'run_id'>> {
  await until(() => client.text().split('event: message_chunk').length > count, { message: `${count} chunks` });
  const [, metadata] = /event: metadata\nid: \d+\ndata: (.*)/.exec(client.text()) ?? [];
  return JSON.parse(metadata ?? 'null');
}

/** A thread whose turn waits for an answer; returns what to post to answer it. */
async function asked(name: string, afterwards: Reply): Promise<{ path: string; body: Record<string, unknown> }> {
  const question = callTools([{ id: `c-${name}`, name: 'send_email', args: { to: 'a', subject: 'b', body: 'c' } }]);
  replies.set(name, question);
  cluster.model.setScript((request) => (request.messages.at(-1)?.role === 'tool' ? afterwards : question));
  const sent = await send(a, name);
  const { interrupts } = (await ended(a, sent.run_id)) as unknown as { interrupts: { id: string }[] };
  return {
    path: `/api/v1/threads/${sent.thread_id}/answer`,
    body: { interrupts: Object.fromEntries(interrupts.map(({ id }) => [id, 'approve'])) },
  };
}

const DOORS = ['new thread', 'thread', 'answer'] as const;
const CUTS = ['fin', 'rst'] as const;
const LEAVINGS = DOORS.flatMap((door) => CUTS.map((cut) => [door, cut] as const));

async function postThrough(door: (typeof DOORS)[number], name: string, said: Reply, more: object): Promise<BareClient> {
  if (door === 'answer') {
    const { path, body } = await asked(name, said);
    return barePost(a, path, { ...body, ...more });
  }
  const content = reply(name, said);
  if (door === 'new thread') return barePost(a, '/api/v1/threads/messages', { content, ...more });
  const { body } = await call<{ id: string }>(a, 'POST', '/api/v1/threads', {});
  return barePost(a, `/api/v1/threads/${body.id}/messages`, { content, ...more });
}

describe('a client that leaves in mid answer', () => {
  test.each(LEAVINGS)('by %s with %s, on_disconnect continue: the run ends as if it had stayed', async (door, cut) => {
    const client = await postThrough(door, `stay ${door} ${cut}`, say(words(40), { delayMs: 20 }), {});
    const ids = await afterChunks(client, 5);
    client.leave(cut);
    expect((await ended(b, ids.run_id)).status).toBe('succeeded');
    expect((await turnsOf(b, ids.thread_id)).at(-1)).toMatchObject({ answer: { content: words(40), partial: false } });
    const late = await follow(b, ids);
    await late.closed;
    expect(textOf(late)).toBe(words(40));
    expect(dataOf(late, 'run_end')).toMatchObject([{ status: 'succeeded' }]);
  });

  test.each(LEAVINGS)(
    'by %s with %s, on_disconnect cancel: the model is left within 2 s, the text is kept',
    async (door, cut) => {
      const name = `leave ${door} ${cut}`;
      const client = await postThrough(door, name, say(words(900), { delayMs: 20 }), { on_disconnect: 'cancel' });
      const ids = await afterChunks(client, 5);
      // Somebody else who watches neither prevents it nor is needed for it.
      const other = await follow(b, ids);
      const leftAt = now();
      client.leave(cut);
      const modelCall = await cluster.model.waitForEnd(await callOf(name));
      expect(modelCall.aborted).toBe(true);
      expect((modelCall.abortedAt ?? Number.POSITIVE_INFINITY) - leftAt).toBeLessThan(2_000);
      await other.closed;
      expect(dataOf(other, 'run_end')).toMatchObject([{ status: 'cancelled' }]);
      expect((await turnsOf(b, ids.thread_id)).at(-1)).toMatchObject({
        status: 'cancelled',
        answer: { content: textOf(other), partial: true },
      });
    },
  );

  test('before the answer began: the run is stopped all the same', async () => {
    const content = reply('gone at once', say(words(900), { delayMs: 20 }));
    for (let round = 0; round < 5; round += 1) {
      const thread = (await call<{ id: string }>(a, 'POST', '/api/v1/threads', {})).body.id;
      const client = await barePost(a, `/api/v1/threads/${thread}/messages`, { content, on_disconnect: 'cancel' });
      // The request is on its way before the goodbye; nothing of the answer is.
      client.leave('fin');
      const stopped = async () => (await turnsOf(b, thread))[0]?.status === 'cancelled';
      await until(stopped, { timeoutMs: 3_000, message: 'the run to be admitted and stopped' });
    }
  });

  test('is the one that counts: viewers who leave stop nothing, nor does the client of a short answer', async () => {
    const content = reply('watched', say(words(60), { delayMs: 20 }));
    const sent = await send(a, content, { on_disconnect: 'cancel' });
    const viewers = await Promise.all([follow(a, sent), follow(b, sent)]);
    await Promise.all(viewers.map((viewer) => viewer.waitFor(({ event }) => event === 'message_chunk')));
    for (const viewer of viewers) viewer.close();
    expect((await ended(b, sent.run_id)).status).toBe('succeeded');
    expect((await turnsOf(b, sent.thread_id)).at(-1)?.answer).toMatchObject({ content: words(60), partial: false });
  });
});

describe('a second window', () => {
  test('sees the live run and its text, stops it, and both go on', async () => {
    const first = await sendStreaming(a, reply('two windows', say(words(900), { delayMs: 20 })));
    await first.waitFor(({ event }) => event === 'message_chunk');
    const { thread_id, run_id } = idsOf(first);

    const openedMs = performance.now();
    const status = await call(b, 'GET', `/api/v1/threads/${thread_id}/status`);
    expect(status.body).toMatchObject({ status: 'running', active_run_id: run_id });
    expect((await turnsOf(b, thread_id)).at(-1)).toMatchObject({ status: 'running', active_run_id: run_id });
    const second = await follow(b, { thread_id, run_id });
    await second.waitFor(({ event }) => event === 'message_chunk');
    expect(performance.now() - openedMs).toBeLessThan(1_000);
    // It is live: text that the model had not said when the window was opened.
    const soFar = textOf(first).length;
    await until(() => textOf(second).length > soFar + 20, { message: 'more text in the second window' });

    const stoppedMs = performance.now();
    const stop = await call(b, 'POST', `/api/v1/threads/${thread_id}/cancel`);
    expect(stop).toMatchObject({ status: 200, body: { run_id } });
    await Promise.all([first.closed, second.closed]);
    expect(performance.now() - stoppedMs).toBeLessThan(2_000);
    for (const stream of [first, second]) expect(dataOf(stream, 'run_end')).toMatchObject([{ status: 'cancelled' }]);
    expect(textOf(first)).toBe(textOf(second));
    for (const server of [a, b]) {
      expect((await turnsOf(server, thread_id))[0]).toMatchObject({
        status: 'cancelled',
        active_run_id: null,
        answer: { content: textOf(first), partial: true },
      });
      const next = await send(server, reply('and on', say('fine')), {}, thread_id);
      expect((await ended(server, next.run_id)).status).toBe('succeeded');
    }
  });
});

describe('the same message again', () => {
  test('with its request key, after the stream was dropped: the same run, from the start, and one model call', async () => {
    const text = words(40);
    const content = reply('once', say(text, { delayMs: 20 }));
    const request_key = randomUUID();
    const first = await sendStreaming(a, content, { request_key });
    await first.waitFor(({ event }) => event === 'message_chunk');
    first.close();
    const ids = idsOf(first);
    const again = await Promise.all([
      sendStreaming(b, content, { request_key }),
      sendStreaming(a, content, { request_key }),
    ]);
    await Promise.all(again.map((stream) => stream.closed));
    const afterwards = await sendStreaming(b, content, { request_key });
    await afterwards.closed;
    for (const stream of [...again, afterwards]) {
      expect(idsOf(stream)).toMatchObject(ids);
      expect(textOf(stream)).toBe(text);
      expect(stream.headers.get('content-location')).toContain(ids.run_id);
    }
    expect(await turnsOf(a, ids.thread_id)).toMatchObject([{ question: { content }, answer: { content: text } }]);
    expect(
      cluster.model.calls.filter(({ body }) => body.messages.some((message) => message.content === content)),
    ).toHaveLength(1);
    const other = await call(a, 'POST', '/api/v1/threads/messages', { content: 'another', request_key });
    expect(other).toMatchObject({ status: 409, body: { code: 'IDEMPOTENCY_KEY_REUSED', run_id: ids.run_id } });
  });

  test('many times at once, on both processes, by body or by header: one run', async () => {
    const content = reply('all at once', say('one answer', { delayMs: 50 }));
    const { body: thread } = await call<{ id: string }>(a, 'POST', '/api/v1/threads', {});
    const path = `/api/v1/threads/${thread.id}/messages`;
    const key = randomUUID();
    const answers = await Promise.all(
      Array.from({ length: 16 }, (_, index) =>
        index % 2 === 0
          ? call<Sent>(a, 'POST', path, { content, request_key: key })
          : call<Sent>(b, 'POST', path, { content }, { 'idempotency-key': key }),
      ),
    );
    expect(answers.map(({ status }) => status)).toEqual(answers.map(() => 202));
    expect(new Set(answers.map(({ body }) => `${body.run_id} ${body.message_id} ${body.turn_id}`)).size).toBe(1);
    await ended(a, answers[0]?.body.run_id ?? '');
    expect(await turnsOf(b, thread.id)).toMatchObject([{ answer: { content: 'one answer' } }]);
  });

  test('without a key, while the first is answered: 409 that says which run, and where to watch it', async () => {
    const content = reply('impatient', say(words(30), { delayMs: 20 }));
    const first = await sendStreaming(a, content);
    await first.waitFor(({ event }) => event === 'message_chunk');
    first.close();
    const { thread_id, run_id } = idsOf(first);
    for (const server of [a, b]) {
      const again = await call(server, 'POST', `/api/v1/threads/${thread_id}/messages`, { content });
      expect(again).toMatchObject({ status: 409, body: { code: 'RUN_IN_PROGRESS', run_id } });
      const location = again.headers.get('location');
      expect(location).toBe(`/api/v1/threads/${thread_id}/messages/stream?run_id=${run_id}`);
    }
    const rest = await follow(b, { thread_id, run_id });
    await rest.closed;
    expect(textOf(rest)).toBe(words(30));
    expect(await turnsOf(b, thread_id)).toHaveLength(1);
  });
});
