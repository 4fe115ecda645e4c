/** Requests that a process makes to its own server: as over a socket, without one. */
import { Socket } from 'node:net';
import { Readable } from 'node:stream';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { describe, expect, test } from 'vitest';
import { watchClient } from '#src/http/client.ts';
import { createInProcessFetch } from '#src/http/in-process.ts';
import { until } from '#tests/support/until.ts';
import { createFeed, type Rig, startRig } from './http-rig.ts';

setFlagsFromString('--expose-gc');
const collectGarbage = runInNewContext('gc') as () => void;

interface Inside extends Rig {
  inside: typeof fetch;
  /** `path` of the server, in process. */
  ask(path: string, init?: RequestInit): Promise<Response>;
  /** Has /held answer. */
  release(): void;
  feed: ReturnType<typeof createFeed<string>>;
  /** What became of the clients of /stream, in order. */
  ends: string[];
  /** Bytes of /flood that its route has given away. */
  given(): number;
}

async function startInside(options: Parameters<typeof startRig>[0] = {}): Promise<Inside> {
  let url = '';
  let inside: typeof fetch = fetch;
  let given = 0;
  const held = Promise.withResolvers<string>();
  const feed = createFeed<string>();
  const ends: string[] = [];
  const rig = await startRig(options, ({ app, sse }) => {
    inside = createInProcessFetch(app, () => url);
    app.all('/echo', async (request, reply) => {
      reply.header('set-cookie', ['a=1', 'b=2']).code(203);
      const { method, headers, query, body } = request;
      return { method, headers, query, body: body ?? null, socket: request.raw.socket instanceof Socket };
    });
    app.get('/held', () => held.promise);
    app.get('/nothing', (_request, reply) => reply.code(204).send());
    app.get('/broken', (_request, reply) => {
      reply.raw.write('half');
      setImmediate(() => reply.raw.destroy());
      reply.hijack();
    });
    app.get('/stream', async (_request, reply) => {
      const client = watchClient(reply);
      return sse.stream(reply, {
        client,
        items: (signal) => feed.items(signal),
        encode: (item) => Buffer.from(`data: ${item}\n\n`),
        onEnd: (end) => ends.push(end),
      });
    });
    app.get('/flood', (_request, reply) => {
      const source = new Readable({
        read() {
          given += 16_384;
          this.push(given > 64 * 1024 ** 2 ? null : Buffer.alloc(16_384));
        },
      });
      reply.raw.once('close', () => source.destroy());
      return reply.send(source);
    });
    // Waits until its caller leaves.
    app.get('/waits', (_request, reply) => {
      const { signal } = watchClient(reply);
      return new Promise((resolve) => signal.addEventListener('abort', () => resolve(ends.push('waiter left'))));
    });
  });
  url = rig.url;
  return {
    ...rig,
    feed,
    ends,
    given: () => given,
    release: () => held.resolve('held'),
    inside,
    ask: (path, init) => inside(`${rig.url}${path}`, init),
  };
}

const text = async (reader: ReadableStreamDefaultReader<Uint8Array>): Promise<string> =>
  new TextDecoder().decode((await reader.read()).value);

test('method, path, headers and body arrive, status, headers and body come back; there is no socket', async () => {
  const { ask } = await startInside();
  const answer = await ask('/echo?a=1&b=%C3%B6', {
    method: 'POST',
    headers: { 'content-type': 'application/json', 'x-own': 'yes' },
    body: JSON.stringify({ text: 'wörter' }),
  });
  expect(answer.status).toBe(203);
  expect(answer.headers.getSetCookie()).toEqual(['a=1', 'b=2']);
  expect(answer.headers.get('x-request-id')).toMatch(/^[0-9a-f-]{36}$/);
  expect(await answer.json()).toMatchObject({
    method: 'POST',
    query: { a: '1', b: 'ö' },
    headers: { 'x-own': 'yes', 'user-agent': 'node' },
    body: { text: 'wörter' },
    socket: false,
  });
  const nothing = await ask('/nothing');
  expect([nothing.status, nothing.body]).toEqual([204, null]);
  expect((await ask('/echo', { method: 'HEAD' })).body).toBeNull();
  expect((await ask('/nowhere')).status).toBe(404);
});

test('what is not this server’s goes out', async () => {
  const [one, other] = [await startInside(), await startInside()];
  const answer = await one.inside(new Request(`${other.url}/echo`));
  expect(await answer.json()).toMatchObject({ socket: true });
  const own = await one.inside(new Request(`${one.url}/echo`, { method: 'POST' }));
  expect(await own.json()).toMatchObject({ socket: false, method: 'POST' });
});

describe('a stream', () => {
  test('comes piece by piece, and its reader’s leaving is noticed', async () => {
    for (const how of ['abort', 'cancel'] as const) {
      const { ask, feed, ends } = await startInside();
      const leaving = new AbortController();
      const answer = await ask('/stream', { signal: leaving.signal });
      const reader = (answer.body as ReadableStream<Uint8Array>).getReader();
      expect(await text(reader)).toBe(': ok\n\n');
      feed.push('one');
      expect(await text(reader)).toBe('data: one\n\n');
      if (how === 'cancel') await reader.cancel();
      else {
        const next = reader.read();
        leaving.abort(new Error('enough'));
        await expect(next).rejects.toThrow('enough');
      }
      await until(() => ends.length === 1 && feed.ended === 1, { message: 'the stream to end' });
      expect(ends).toEqual(['client_left']);
    }
  });

  test('that nobody reads is not written', async () => {
    const { ask, given } = await startInside();
    const answer = await ask('/flood');
    const reader = (answer.body as ReadableStream<Uint8Array>).getReader();
    const settled = async (): Promise<number> => {
      let before = -1;
      await until(
        async () => {
          const same = before === given();
          before = given();
          await turns();
          return same;
        },
        { message: 'the flood to stand still' },
      );
      return before;
    };
    const first = await settled();
    expect(first).toBeLessThan(1024 ** 2);
    let read = 0;
    while (read < 4 * 1024 ** 2) read += (await reader.read()).value?.length ?? 0;
    expect(await settled()).toBeLessThan(read + 1024 ** 2);
    await reader.cancel();
  });

  test('that its reader does not take is cut off after a while', async () => {
    const { ask, feed, ends } = await startInside({ streamWriteTimeoutMs: 200 });
    const answer = await ask('/stream');
    feed.push(...Array.from({ length: 20 }, () => 'x'.repeat(50_000)));
    await until(() => ends.length === 1, { message: 'the slow reader to be cut off' });
    expect(ends).toEqual(['server_closed']);
    await expect(answer.text()).rejects.toThrow('terminated');
  });
});

test('a caller that leaves before the answer is noticed, one that had left asks nothing', async () => {
  const { ask, ends } = await startInside();
  await expect(ask('/waits', { signal: AbortSignal.abort(new Error('enough')) })).rejects.toThrow('enough');
  const late = new AbortController();
  const waits = ask('/waits', { signal: late.signal });
  waits.catch(() => undefined);
  // The request is with its route once a later one is answered.
  await ask('/nothing');
  late.abort(new Error('too long'));
  await expect(waits).rejects.toThrow('too long');
  await until(() => ends.includes('waiter left'), { message: 'the route to notice' });
});

test('a caller that leaves in mid answer is noticed, whatever has been collected meanwhile', async () => {
  const { ask, feed, ends } = await startInside();
  const leaving = new AbortController();
  const reader = ((await ask('/stream', { signal: leaving.signal })).body as ReadableStream<Uint8Array>).getReader();
  for (let n = 0; n < 10; n += 1) {
    feed.push(String(n));
    await reader.read();
    // What was looked at in this turn of the event loop is not collected in it.
    await nextTurn();
    collectGarbage();
    await nextTurn();
  }
  leaving.abort(new Error('enough'));
  await until(() => ends.includes('client_left'), { message: 'the stream to end' });
});

test('an answer that breaks off is an error, as is a server that has closed', async () => {
  const { ask, app } = await startInside();
  const answer = await ask('/broken');
  await expect(answer.text()).rejects.toThrow('terminated');
  await app.close();
  await expect(ask('/echo')).rejects.toThrow('fetch failed');
});

/** Enough turns of the event loop for whoever still moves. */
async function turns(): Promise<void> {
  for (let turn = 0; turn < 30; turn += 1) await new Promise((resolve) => setImmediate(resolve));
}

test('the server’s end waits for what is answered in process, and ends its streams', async () => {
  const { ask, app, feed, ends, closing, release } = await startInside();
  const order: string[] = [];
  const held = ask('/held').then(async (answer) => order.push(await answer.text()));
  const answer = await ask('/stream');
  const reader = (answer.body as ReadableStream<Uint8Array>).getReader();
  expect(await text(reader)).toBe(': ok\n\n');
  feed.push('one');
  expect(await text(reader)).toBe('data: one\n\n');
  const closed = app.close().then(() => order.push('closed'));
  expect(await text(reader)).toBe(': the server is closing\nretry: 1000\n\n');
  expect((await reader.read()).done).toBe(true);
  expect(ends).toEqual(['server_closed']);
  await until(() => closing.aborted && !app.server.listening, { message: 'the server to listen no more' });
  await turns();
  release();
  await Promise.all([held, closed]);
  expect(order).toEqual(['held', 'closed']);
});
