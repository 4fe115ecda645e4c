/** The stream itself: how soon, from where, to whose pages, and what it says in silence. */
import { once } from 'node:events';
import { connect } from 'node:net';
import { afterAll, beforeAll, describe, expect, inject, test } from 'vitest';
import {
  type Cluster,
  call,
  ended,
  follow,
  type Sent,
  seen,
  send,
  sendStreaming,
  startCluster,
  textOf,
} from '#tests/support/cluster.ts';
import { callTools, say } from '#tests/support/fake-model-script.ts';
import { dataOf, idsOf } from '#tests/support/frames.ts';
import type { TestServer } from '#tests/support/server.ts';
import { openSse } from '#tests/support/sse.ts';
import { startTcpProxy } from '#tests/support/tcp-proxy.ts';
import { until } from '#tests/support/until.ts';

const PAGE = 'https://app.example';
const KEEPALIVE_MS = 1_000;

let cluster: Cluster;
let a: TestServer;
let b: TestServer;

beforeAll(async () => {
  const server = { sse_keepalive_interval: `${KEEPALIVE_MS}ms`, cors: { origins: [PAGE], credentials: true } };
  cluster = await startCluster({ size: 2, server: { config: { server } } });
  [a, b] = cluster.servers as [TestServer, TestServer];
});
afterAll(() => cluster.stop());

const words = (count: number): string => Array.from({ length: count }, (_, index) => `w${index}`).join(' ');

describe('tokens', () => {
  // No clock: the model says the next token only after the client has seen the one before. A server that collects tokens, or
  // waits for more of them, never gets past the first. How late they are is a figure of `npm run bench`.
  test('arrive one by one, each before the model says the next', async () => {
    const tokens = words(12).match(/\s?\w+/g) ?? [];
    const steps = tokens.flatMap((text, at) => [
      { do: 'text', text } as const,
      { do: 'gate', gate: `token ${at}` } as const,
    ]);
    cluster.model.setScript({ steps: [...steps, { do: 'finish', reason: 'stop' }] });
    const stream = await sendStreaming(a, 'count');
    for (const [at, token] of tokens.entries()) {
      const said = tokens.slice(0, at + 1).join('');
      await until(() => textOf(stream) === said, { message: `the client to see ${JSON.stringify(token)}` });
      cluster.model.release(`token ${at}`);
    }
    await stream.closed;
    expect(stream.frames.filter(({ event }) => event === 'message_chunk')).toHaveLength(tokens.length);
  });
});

describe('a cursor that is none', () => {
  const GARBAGE = [
    'abc',
    `'; DROP TABLE runs;--`,
    '-5',
    '-2',
    '1-',
    '0-0',
    '1-1',
    '18446744073709551616-0',
    '9999999999999-0',
  ];
  const MORE = [
    '1e3',
    '0x10',
    '1.5',
    ' 1',
    '+1',
    'NaN',
    '١',
    '😀',
    '18446744073709551616',
    '1'.repeat(10_000),
    '1\r\nx: y',
  ];
  let finished: Sent;

  beforeAll(async () => {
    cluster.model.setScript(say(words(3)));
    finished = await send(a, 'be done');
    await ended(a, finished.run_id);
  });

  const streamOf = (sent: Sent) => `/api/v1/threads/${sent.thread_id}/messages/stream?run_id=${sent.run_id}`;

  test('is 400 as JSON, in the query and in the header, on a finished and on a live run', async () => {
    cluster.model.setScript({
      steps: [
        { do: 'text', text: 'live ' },
        { do: 'gate', gate: 'garbage' },
      ],
    });
    const live = await send(a, 'stay');
    for (const sent of [finished, live]) {
      for (const value of [...GARBAGE, ...MORE]) {
        const query = await call(b, 'GET', `${streamOf(sent)}&last_event_id=${encodeURIComponent(value)}`);
        expect(query, `query ${value.slice(0, 30)}`).toMatchObject({
          status: 400,
          body: { code: 'INVALID_CURSOR', path: 'last_event_id' },
        });
        expect(query.headers.get('content-type')).toMatch(/^application\/json/);
      }
      // Leading and trailing blanks are no part of a header's value.
      for (const value of [...GARBAGE, '😀', '1'.repeat(10_000)]) {
        const answer = await rawGet(b, streamOf(sent), [`Last-Event-ID: ${value}`]);
        expect(answer, `header ${value.slice(0, 30)}`).toMatch(/^HTTP\/1\.1 400 [\s\S]*"code":"INVALID_CURSOR"/);
      }
    }
    cluster.model.release('garbage');
    expect((await ended(b, live.run_id)).status).toBe('succeeded');
    // Nothing of it was a fault of ours.
    expect(b.logs()).not.toMatch(/"level":(50|60)/);
  });

  test('an empty one is none: the stream begins at the start', async () => {
    const whole = await follow(b, finished);
    await whole.closed;
    const empty = await openSse(`${b.url}${streamOf(finished)}&last_event_id=`, { headers: { 'last-event-id': '' } });
    await empty.closed;
    expect(seen(empty)).toEqual(seen(whole));
    expect(dataOf(empty, 'metadata')).toMatchObject([{ run_id: finished.run_id }]);
  });

  test.each([1, 4_000, 999_000, 1_000_000, 7_000_003, 900_000_000_000_000])(
    'of the future (%i ahead) on a finished run: the end at once, and nothing else',
    async (ahead) => {
      const whole = await follow(a, finished);
      await whole.closed;
      const cursor = Number(whole.frames.at(-1)?.id) + ahead;
      for (const server of [a, b]) {
        const startedMs = performance.now();
        const stream = await follow(server, finished, cursor);
        await stream.closed;
        expect(performance.now() - startedMs).toBeLessThan(1_500);
        const events = stream.frames.map(({ event }) => event);
        expect(events.filter((event) => event !== 'resync_required')).toEqual(['run_end']);
        expect(dataOf(stream, 'run_end')).toMatchObject([{ status: 'succeeded' }]);
      }
    },
  );

  test('of the future on a live run: that reader is told to resync and goes on with this run; others notice nothing', async () => {
    const text = words(350);
    cluster.model.setScript(say(text, { delayMs: 20 }));
    const live = await send(a, 'stay');
    const honest = await Promise.all([follow(a, live), follow(b, live)]);
    await Promise.all(honest.map((stream) => stream.waitFor(({ event }) => event === 'message_chunk')));
    const cursors = ['999999', '999999999999999'];
    const strange = await Promise.all(cursors.flatMap((cursor) => [follow(a, live, cursor), follow(b, live, cursor)]));
    for (const stream of strange) expect(stream.status).toBe(200);
    await Promise.all([...honest, ...strange].map((stream) => stream.closed));
    for (const stream of honest) {
      expect(textOf(stream)).toBe(text);
      expect(dataOf(stream, 'resync_required')).toEqual([]);
    }
    for (const stream of strange) {
      expect(stream.frames[0]?.event).toBe('resync_required');
      const rest = textOf(stream);
      expect(rest.length).toBeGreaterThan(0);
      expect(text.endsWith(rest)).toBe(true);
      expect(dataOf(stream, 'run_end')).toMatchObject([{ status: 'succeeded' }]);
    }
  });
});

describe('a cursor of the future while Redis is slow', () => {
  test('concerns its reader alone: one who is served before Redis has answered misses and repeats nothing', async () => {
    const redisUrl = inject('redisUrl');
    const proxy = await startTcpProxy({ port: Number(new URL(redisUrl).port) });
    const slow = await startCluster({ redisUrl: proxy.through(redisUrl) });
    const [server] = slow.servers as [TestServer];
    const text = words(450);
    slow.model.setScript(say(text, { delayMs: 20 }));
    const run = await send(server, 'stay');
    const honest = await follow(server, run);
    await honest.waitFor(({ event }) => event === 'message_chunk');
    // Longer than the server waits for Redis before it serves its own readers without it.
    proxy.set({ kind: 'latency', ms: 300 });
    const strange = await follow(server, run, '999999');
    await strange.waitFor(({ event }) => event === 'resync_required', { timeoutMs: 20_000 });
    proxy.set({ kind: 'pass' });
    await Promise.all([honest.closed, strange.closed]);
    expect(textOf(honest)).toBe(text);
    expect(dataOf(honest, 'resync_required')).toEqual([]);
    expect(strange.frames[0]?.event).toBe('resync_required');
    expect(text.endsWith(textOf(strange))).toBe(true);
    for (const stream of [honest, strange]) expect(dataOf(stream, 'run_end')).toMatchObject([{ status: 'succeeded' }]);
    await slow.stop();
    await proxy.close();
  });
});

/** Sends the header bytes as they are; returns the whole answer. */
async function rawGet(server: TestServer, path: string, headers: string[]): Promise<string> {
  const socket = connect({ host: '127.0.0.1', port: Number(new URL(server.url).port) });
  socket
    .setEncoding('utf8')
    .write([`GET ${path} HTTP/1.1`, 'Host: test', 'Connection: close', ...headers, '', ''].join('\r\n'));
  let text = '';
  socket.on('data', (more: string) => {
    text += more;
  });
  await once(socket, 'close');
  return text;
}

describe('a page of another origin', () => {
  /** What a browser looks at, without what differs from answer to answer. */
  function corsOf(headers: Headers): Record<string, string> {
    const names = [
      'access-control-allow-origin',
      'access-control-allow-credentials',
      'access-control-expose-headers',
      'vary',
    ];
    return Object.fromEntries(names.map((name) => [name, headers.get(name) ?? '']));
  }

  test.each([PAGE, 'https://other.example'])('%s gets the same CORS headers on streams as on JSON', async (origin) => {
    cluster.model.setScript(callTools([{ id: 'c', name: 'send_email', args: { to: 'a', subject: 'b', body: 'c' } }]));
    const headers = { origin };
    const json = await call(a, 'GET', '/api/v1/threads', undefined, headers);
    const truth = corsOf(json.headers);
    expect(truth['access-control-allow-origin']).toBe(origin === PAGE ? PAGE : '');

    const posted = await openSse(`${a.url}/api/v1/threads/messages`, { body: { content: 'ask me' }, headers });
    await posted.closed;
    const { thread_id, run_id } = idsOf(posted);
    const followed = await openSse(`${b.url}/api/v1/threads/${thread_id}/messages/stream`, { headers });
    await followed.closed;
    const interrupts = Object.fromEntries(
      (dataOf<{ interrupts: { id: string }[] }>(posted, 'interrupt')[0]?.interrupts ?? []).map(({ id }) => [id, true]),
    );
    cluster.model.setScript(say('sent'));
    const answered = await openSse(`${b.url}/api/v1/threads/${thread_id}/answer`, { body: { interrupts }, headers });
    await answered.closed;
    const accepted = await call<Sent>(a, 'POST', `/api/v1/threads/${thread_id}/messages`, { content: 'more' }, headers);
    const refusals = await Promise.all([
      call(a, 'POST', '/api/v1/threads/messages', { content: '' }, headers),
      call(a, 'GET', `/api/v1/threads/${thread_id}/messages/stream?last_event_id=abc`, undefined, headers),
      call(a, 'GET', '/api/v1/nothing', undefined, headers),
    ]);
    for (const answer of [posted, followed, answered, accepted, ...refusals])
      expect(corsOf(answer.headers)).toEqual(truth);

    // The run's id is in a header the page may read, before any frame.
    for (const [answer, run] of [
      [posted, run_id],
      [followed, run_id],
      [answered, idsOf(answered).run_id],
      [accepted, accepted.body.run_id],
    ] as const) {
      expect(answer.headers.get('content-location')).toBe(`/api/v1/threads/${thread_id}/messages/stream?run_id=${run}`);
      expect(answer.headers.get('x-request-id')).toMatch(/./);
    }
    if (origin !== PAGE) return;
    const exposed = truth['access-control-expose-headers']?.toLowerCase().split(/,\s*/);
    expect(exposed).toEqual(expect.arrayContaining(['content-location', 'location', 'x-request-id', 'retry-after']));
    expect(truth['access-control-allow-credentials']).toBe('true');
  });

  test('may ask beforehand for the headers that streams need', async () => {
    for (const path of ['threads/messages', 'threads/x/messages', 'threads/x/messages/stream', 'threads/x/answer']) {
      const response = await fetch(`${a.url}/api/v1/${path}`, {
        method: 'OPTIONS',
        headers: {
          origin: PAGE,
          'access-control-request-method': path.endsWith('stream') ? 'GET' : 'POST',
          'access-control-request-headers': 'authorization,content-type,idempotency-key,last-event-id',
        },
      });
      expect(response.ok).toBe(true);
      expect(response.headers.get('access-control-allow-origin')).toBe(PAGE);
      const allowed = response.headers.get('access-control-allow-headers')?.toLowerCase().split(/,\s*/);
      expect(allowed).toEqual(
        expect.arrayContaining(['authorization', 'content-type', 'idempotency-key', 'last-event-id']),
      );
    }
  });
});

describe('a quiet stream', () => {
  test('says something every interval, on the process that executes and on the other, and none of it is an event', async () => {
    const silenceMs = 5 * KEEPALIVE_MS;
    cluster.model.setScript({
      steps: [
        { do: 'text', text: 'before ' },
        { do: 'delay', ms: silenceMs },
        { do: 'text', text: 'after' },
        { do: 'finish', reason: 'stop' },
      ],
    });
    const origin = await sendStreaming(a, 'think');
    const chunk = await origin.waitFor(({ event }) => event === 'message_chunk');
    const streams = [origin, await follow(b, idsOf(origin)), await follow(a, idsOf(origin), chunk.id)];
    await Promise.all(streams.map((stream) => stream.closed));
    for (const stream of streams) {
      expect(stream.comments.length).toBeGreaterThanOrEqual(4);
      expect(stream.frames.map(({ event }) => event)).not.toContain('message');
      for (const frame of stream.frames) expect(JSON.parse(frame.data)).toBeTypeOf('object');
      expect(textOf(stream).endsWith('after')).toBe(true);
    }
  });
});
