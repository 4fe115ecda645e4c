/** Event streams over real sockets: first byte, silence, leaving, slow readers, shutdown. */
import { setImmediate } from 'node:timers/promises';
import { describe, expect, test } from 'vitest';
import { watchClient } from '#src/http/client.ts';
import type { HttpOptions } from '#src/http/server.ts';
import type { StreamEnd } from '#src/http/sse.ts';
import { encodeFrames } from '#src/http/sse-frame.ts';
import { openSse } from '#tests/support/sse.ts';
import { until } from '#tests/support/until.ts';
import { createFeed, getRequest, rawSocket, startRig } from './http-rig.ts';

interface Item {
  n: number;
  text?: string;
}

function encode({ n, text }: Item): Buffer {
  return encodeFrames([{ event: 'item', id: n, data: text ?? n }]);
}

/** A server with one stream at /stream, fed by hand. `hold` keeps the handler waiting before the stream begins. */
async function startStream(options: Partial<HttpOptions> = {}, hold?: Promise<void>, cutAtShutdown = false) {
  const feed = createFeed<Item>();
  const ends: StreamEnd[] = [];
  const entered = { count: 0 };
  const rig = await startRig(options, ({ app, sse }) => {
    app.get('/stream', { exposeHeadRoute: false }, async (_request, reply) => {
      const client = watchClient(reply);
      entered.count += 1;
      await hold;
      return sse.stream(reply, { client, items: feed.items, encode, cutAtShutdown, onEnd: (end) => ends.push(end) });
    });
  });
  return { ...rig, feed, ends, entered };
}

function bytesOf(source: { on(event: 'data', listener: (chunk: Buffer) => void): unknown }) {
  let text = '';
  source.on('data', (chunk) => {
    text += chunk.toString();
  });
  return () => text;
}

describe('the beginning', () => {
  test('headers and a comment come at once, before any event', async () => {
    const { url, feed } = await startStream();
    const stream = await openSse(`${url}/stream`, { headers: { 'accept-encoding': 'gzip, br' } });
    await until(() => stream.comments.includes('ok'), { message: 'the opening comment' });
    expect(stream.status).toBe(200);
    expect(stream.frames).toEqual([]);
    expect(Object.fromEntries(stream.headers)).toMatchObject({
      'content-type': 'text/event-stream; charset=utf-8',
      'cache-control': 'no-store, no-transform',
      'x-accel-buffering': 'no',
      'x-request-id': expect.stringMatching(/.+/),
    });
    expect(stream.headers.get('content-encoding')).toBeNull();
    feed.end();
    expect(await stream.closed).toEqual({ how: 'ended' });
  });

  test('a client that left while the handler was still busy is noticed', async () => {
    const gate = Promise.withResolvers<void>();
    const { port, feed, ends, entered, sse, logs } = await startStream({}, gate.promise);
    const socket = await rawSocket(port, getRequest('/stream'));
    await until(() => entered.count === 1, { message: 'the handler' });
    socket.resetAndDestroy();
    // Another request, answered, proves that the server has seen what happened on the first connection.
    await fetch(`http://127.0.0.1:${port}/none`);
    gate.resolve();
    await until(() => ends.length === 1, { message: 'the end' });
    expect(ends).toEqual(['client_left']);
    expect([feed.started, sse.open]).toEqual([0, 0]);
    expect(logs.filter((line) => line.level >= 40)).toEqual([]);
  });
});

describe('items', () => {
  test('arrive in order, as they come, and the stream ends after the last', async () => {
    const { url, feed, ends } = await startStream();
    const stream = await openSse(`${url}/stream`);
    feed.push({ n: 1 });
    await stream.waitFor((frame) => frame.id === '1');
    feed.push({ n: 2 }, { n: 3 });
    feed.end();
    expect(await stream.closed).toEqual({ how: 'ended' });
    expect(stream.frames.map((frame) => frame.data)).toEqual(['1', '2', '3']);
    await until(() => ends.length === 1, { message: 'the end' });
    expect(ends).toEqual(['finished']);
    expect(feed.ended).toBe(1);
  });

  test('that are ready together go out in few writes', async () => {
    const { port, feed } = await startStream();
    feed.push(...Array.from({ length: 400 }, (_, n) => ({ n })));
    feed.end();
    const socket = await rawSocket(port, getRequest('/stream', ['Connection: close']));
    const body = bytesOf(socket);
    await new Promise((resolve) => socket.once('close', resolve));
    // Chunked encoding gives every write its own length line: the opening, one for 400 items, the end.
    expect(body().match(/^[0-9a-f]+\r$/gm)).toHaveLength(3);
    expect(body().match(/^id: /gm)).toHaveLength(400);
  });

  test('without bytes neither end the stream nor keep it from ending', async () => {
    const quiet = await startRig({}, ({ app, sse }) => {
      app.get('/stream', async (_request, reply) =>
        sse.stream(reply, {
          client: watchClient(reply),
          async *items() {
            for (let n = 0; n < 2000; n += 1) yield n;
          },
          encode: (n: number) => (n === 1999 ? encodeFrames([{ data: n }]) : Buffer.alloc(0)),
        }),
      );
    });
    const stream = await openSse(`${quiet.url}/stream`);
    expect(await stream.closed).toEqual({ how: 'ended' });
    expect(stream.frames.map((frame) => frame.data)).toEqual(['1999']);
  });

  test('a source that is always ready leaves the event loop to others', async () => {
    let sent = 0;
    const rig = await startRig({}, ({ app, sse }) => {
      app.get('/other', async () => ({ sent }));
      app.get('/stream', async (_request, reply) =>
        sse.stream(reply, {
          client: watchClient(reply),
          async *items() {
            for (sent = 0; sent < 300_000; sent += 1) yield sent;
          },
          encode: (n: number) => encodeFrames([{ data: n }]),
        }),
      );
    });
    const stream = await openSse(`${rig.url}/stream`);
    const other = (await (await fetch(`${rig.url}/other`)).json()) as { sent: number };
    expect(other.sent).toBeLessThan(300_000);
    expect(await stream.closed).toEqual({ how: 'ended' });
    expect(stream.frames).toHaveLength(300_000);
  });
});

describe('silence', () => {
  test('is broken by comments, which are no events', async () => {
    const { url, feed } = await startStream({ sseKeepaliveMs: 20 });
    const stream = await openSse(`${url}/stream`);
    await until(() => stream.comments.length >= 4, { message: 'heartbeats' });
    expect(stream.frames).toEqual([]);
    feed.push({ n: 1 });
    await stream.waitFor((frame) => frame.id === '1');
    const before = stream.comments.length;
    await until(() => stream.comments.length > before, { message: 'a heartbeat after an event' });
  });

  test('longer than the write timeout does not end a stream whose reader has taken everything', async () => {
    const { url, feed } = await startStream({ sseKeepaliveMs: 400, streamWriteTimeoutMs: 50 });
    const stream = await openSse(`${url}/stream`);
    await until(() => stream.comments.length >= 3, { message: 'heartbeats beyond the write timeout' });
    feed.end();
    expect(await stream.closed).toEqual({ how: 'ended' });
  });
});

describe('a client that leaves', () => {
  test.each<['FIN' | 'RST']>([['FIN'], ['RST']])(
    'by %s ends the source and is told from an end of ours',
    async (how) => {
      const { port, feed, ends, sse } = await startStream();
      const socket = await rawSocket(port, getRequest('/stream'));
      const body = bytesOf(socket);
      feed.push({ n: 1 });
      await until(() => body().includes('id: 1'), { message: 'the first item' });
      if (how === 'FIN') socket.destroy();
      else socket.resetAndDestroy();
      await until(() => feed.ended === 1 && ends.length === 1 && sse.open === 0, { message: 'the end of the source' });
      expect(ends).toEqual(['client_left']);
    },
  );

  test('while nothing can be written to it is noticed too', async () => {
    const { port, feed, ends } = await startStream();
    const socket = await rawSocket(port, getRequest('/stream'));
    socket.pause();
    feed.push(...Array.from({ length: 400 }, (_, n) => ({ n, text: 'x'.repeat(100_000) })));
    await until(() => feed.taken > 10, { message: 'some items taken' });
    socket.resetAndDestroy();
    await until(() => feed.ended === 1 && ends.length === 1, { message: 'the end of the source' });
    expect(ends).toEqual(['client_left']);
  });
});

describe('a slow reader', () => {
  test('stops the source instead of filling the memory, gets no heartbeats, and catches up when it reads', async () => {
    const { port, feed } = await startStream({ sseKeepaliveMs: 30 });
    const total = 500;
    const text = 'x'.repeat(100_000);
    const socket = await rawSocket(port, getRequest('/stream'));
    socket.pause();
    feed.push(...Array.from({ length: total }, (_, n) => ({ n, text })));
    const before = process.memoryUsage();
    const stalledAt = await stalled(() => feed.taken);
    expect(stalledAt).toBeLessThan(total / 2);
    const after = process.memoryUsage();
    expect(after.external - before.external).toBeLessThan(8 * 1024 * 1024);
    feed.end();
    let body = '';
    socket.on('data', (chunk) => {
      body += chunk.toString();
    });
    socket.resume();
    await until(() => feed.ended === 1, { message: 'all items taken' });
    await until(() => body.endsWith('\r\n0\r\n\r\n'), { message: 'the end of the response' });
    const ids = Array.from(body.matchAll(/^id: (\d+)$/gm), (match) => Number(match[1]));
    expect(ids).toEqual(Array.from({ length: total }, (_, n) => n));
    // Comments of a stream that never was silent for its reader: the opening one only.
    expect(body.match(/^:/gm)).toHaveLength(1);
  });

  test('that takes nothing for the write timeout is cut off by us, and others are served', async () => {
    const { port, url, feed, ends, logs } = await startStream({ streamWriteTimeoutMs: 150 });
    const socket = await rawSocket(port, getRequest('/stream'));
    socket.pause();
    feed.push(...Array.from({ length: 2000 }, (_, n) => ({ n, text: 'x'.repeat(50_000) })));
    await until(() => ends.length === 1, { message: 'the cut' });
    expect(ends).toEqual(['server_closed']);
    expect(feed.ended).toBe(1);
    expect(logs.map((line) => line.msg)).toContain('slow reader cut off');
    expect((await fetch(`${url}/none`)).status).toBe(404);
  });

  test('that takes a little again and again is not cut off', async () => {
    const { port, feed, ends } = await startStream({ streamWriteTimeoutMs: 800 });
    const socket = await rawSocket(port, getRequest('/stream'));
    socket.pause();
    feed.push(...Array.from({ length: 400 }, (_, n) => ({ n, text: 'x'.repeat(100_000) })));
    const startedAt = performance.now();
    let taken = 0;
    while (performance.now() - startedAt < 3000) {
      taken += (socket.read() as Buffer | null)?.length ?? 0;
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
    expect(taken).toBeGreaterThan(0);
    expect(ends).toEqual([]);
  });
});

describe('shutdown', () => {
  test('ends open streams with a hint to come back, waits for them, and does not hang', async () => {
    const { url, app, feed, ends, sse } = await startStream();
    const streams = await Promise.all([1, 2, 3].map(() => openSse(`${url}/stream`)));
    await until(() => sse.open === 3 && feed.started === 3, { message: 'three streams' });
    const startedAt = performance.now();
    await app.close();
    expect(performance.now() - startedAt).toBeLessThan(900);
    expect([sse.open, feed.ended]).toEqual([0, 3]);
    expect(ends).toEqual(['server_closed', 'server_closed', 'server_closed']);
    for (const stream of streams) {
      expect(await stream.closed).toEqual({ how: 'ended' });
      expect(stream.raw()).toMatch(/\nretry: 1000\n\n$/);
    }
  });

  test('cuts the streams of clients that would take an end for the end of everything', async () => {
    const { url, app, feed, ends, sse } = await startStream({}, undefined, true);
    const stream = await openSse(`${url}/stream`);
    feed.push({ n: 1 });
    await stream.waitFor((frame) => frame.id === '1');
    await app.close();
    expect((await stream.closed).how).toBe('broken');
    expect([sse.open, feed.ended, ends]).toEqual([0, 1, ['server_closed']]);
  });

  test('cuts off a reader that takes nothing', async () => {
    const { port, app, feed, ends } = await startStream();
    const socket = await rawSocket(port, getRequest('/stream'));
    socket.pause();
    feed.push(...Array.from({ length: 400 }, (_, n) => ({ n, text: 'x'.repeat(100_000) })));
    await stalled(() => feed.taken);
    await app.close();
    expect(ends).toEqual(['server_closed']);
    expect(feed.ended).toBe(1);
  });

  test('is not held up for long by a source that does not end', { timeout: 15_000 }, async () => {
    const never = Promise.withResolvers<void>();
    const rig = await startRig({}, ({ app, sse }) => {
      app.get('/stream', async (_request, reply) =>
        sse.stream(reply, {
          client: watchClient(reply),
          async *items() {
            await never.promise;
            yield 1;
          },
          encode: () => Buffer.alloc(0),
        }),
      );
    });
    const stream = await openSse(`${rig.url}/stream`);
    await until(() => stream.comments.length > 0, { message: 'the stream' });
    await rig.app.close();
    expect((await stream.closed).how).not.toBe('aborted');
    expect(rig.logs.map((line) => line.msg)).toContain('stream source did not end at shutdown');
    never.resolve();
  });

  test.each([
    ['ends', false],
    ['cuts, once its headers are out,', true],
  ])('%s a stream that begins while the server closes', async (_how, cut) => {
    const gate = Promise.withResolvers<void>();
    const { url, app, ends, entered, closing } = await startStream({}, gate.promise, cut);
    const opening = openSse(`${url}/stream`);
    await until(() => entered.count === 1, { message: 'the handler' });
    const closed = app.close();
    await until(() => closing.aborted, { message: 'the close to begin' });
    gate.resolve();
    const stream = await opening;
    await closed;
    expect(stream.status).toBe(200);
    expect((await stream.closed).how).toBe(cut ? 'broken' : 'ended');
    if (!cut) expect(stream.raw()).toContain('retry: 1000');
    expect(ends).toEqual(['server_closed']);
  });
});

describe('a source that fails', () => {
  test('breaks the stream without a word of the cause, which is logged once', async () => {
    const ends: StreamEnd[] = [];
    const rig = await startRig({}, ({ app, sse }) => {
      app.get('/stream', async (_request, reply) =>
        sse.stream(reply, {
          client: watchClient(reply),
          // biome-ignore lint/correctness/useYield: it fails before it can
          async *items() {
            await setImmediate();
            throw new Error('password=hunter2');
          },
          encode: () => Buffer.alloc(0),
          onEnd: (end) => ends.push(end),
        }),
      );
    });
    const stream = await openSse(`${rig.url}/stream`);
    expect(await stream.closed).toMatchObject({ how: 'broken' });
    expect(stream.raw()).toBe(': ok\n\n');
    await until(() => ends.length === 1, { message: 'the end' });
    expect(ends).toEqual(['server_closed']);
    expect(rig.logs.filter((line) => JSON.stringify(line).includes('hunter2'))).toHaveLength(1);
  });
});

/** The value once it has not changed for 200 ms. */
async function stalled(read: () => number): Promise<number> {
  let last = -1;
  let sinceMs = 0;
  await until(
    () => {
      const now = performance.now();
      if (read() !== last) {
        last = read();
        sinceMs = now;
      }
      return last > 0 && now - sinceMs > 200;
    },
    { message: 'the source to stand still' },
  );
  return last;
}
