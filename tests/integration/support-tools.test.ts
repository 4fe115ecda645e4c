/** The tests' own tools: a tool that lies would make every test that uses it worthless. */
import { once } from 'node:events';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import { type AddressInfo, connect, createServer as createTcpServer } from 'node:net';
import { Redis } from 'ioredis';
import { afterEach, describe, expect, test } from 'vitest';
import { leash } from '#tests/support/leash.ts';
import { query, startPostgres } from '#tests/support/postgres.ts';
import { startRedis } from '#tests/support/redis.ts';
import { openSse } from '#tests/support/sse.ts';
import { startTcpProxy } from '#tests/support/tcp-proxy.ts';
import { until } from '#tests/support/until.ts';

const cleanUp: (() => unknown)[] = [];
afterEach(async () => {
  for (const step of cleanUp.splice(0).reverse()) await step();
});

async function httpServer(answer: (request: IncomingMessage, response: ServerResponse) => void) {
  const server = createServer(answer).listen(0, '127.0.0.1');
  await once(server, 'listening');
  cleanUp.push(() => {
    server.closeAllConnections();
    server.close();
  });
  return {
    port: (server.address() as AddressInfo).port,
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/`,
  };
}

describe('until', () => {
  test('answers with the first truthy result', async () => {
    let calls = 0;
    const thirdTime = () => {
      calls += 1;
      return calls > 2 && 'three';
    };
    expect(await until(thirdTime, { message: 'three calls' })).toBe('three');
    expect(calls).toBe(3);
  });

  test('says what it waited for and what it saw last', async () => {
    await expect(until(() => 0, { timeoutMs: 30, message: 'the moon' })).rejects.toThrow(
      /30 ms in vain: the moon \(last: 0\)/,
    );
    const failing = until(() => Promise.reject(new Error('no sky')), { timeoutMs: 30, message: 'the moon' });
    await expect(failing).rejects.toThrow(/no sky/);
  });
});

describe('openSse', () => {
  test('keeps frames, comments and bytes, and tells how the stream ended', async () => {
    const server = await httpServer((request, response) => {
      response.writeHead(200, { 'content-type': 'text/event-stream' });
      response.write(': ok\n\nevent: a\nid: 1\ndata: {"x":"ü"}\n\n');
      if (request.url === '/end') response.end('data: last\n\n');
      if (request.url === '/break') setTimeout(() => response.destroy(), 20);
    });
    const ended = await openSse(`${server.url}end`);
    expect(await ended.closed).toEqual({ how: 'ended' });
    expect(ended.status).toBe(200);
    expect(ended.comments).toEqual(['ok']);
    expect(ended.frames.map(({ event, id, data }) => ({ event, id, data }))).toEqual([
      { event: 'a', id: '1', data: '{"x":"ü"}' },
      { event: 'message', id: undefined, data: 'last' },
    ]);
    expect(ended.raw()).toContain('event: a\nid: 1\n');
    await expect(ended.waitFor((frame) => frame.event === 'b')).rejects.toThrow(/ended before/);
    const seen: string[] = [];
    for await (const frame of ended) seen.push(frame.event);
    expect(seen).toEqual(['a', 'message']);

    expect((await (await openSse(`${server.url}break`)).closed).how).toBe('broken');

    const left = await openSse(`${server.url}stay`);
    expect((await left.waitFor((frame) => frame.event === 'a')).id).toBe('1');
    await expect(left.waitFor((frame) => frame.event === 'b', { timeoutMs: 30 })).rejects.toThrow(/30 ms in vain/);
    left.close();
    expect(await left.closed).toEqual({ how: 'aborted' });
  });

  test('an answer that is no stream is read as text', async () => {
    const server = await httpServer((_request, response) => {
      response.writeHead(404, { 'content-type': 'application/json' }).end('{"code":"X"}');
    });
    const refused = await openSse(server.url, { body: { a: 1 } });
    await refused.closed;
    expect([refused.status, refused.raw(), refused.frames]).toEqual([404, '{"code":"X"}', []]);
  });
});

describe('startTcpProxy', () => {
  async function echo() {
    const server = createTcpServer((socket) => {
      socket.on('error', () => undefined);
      socket.pipe(socket);
    }).listen(0, '127.0.0.1');
    await once(server, 'listening');
    const proxy = await startTcpProxy({ port: (server.address() as AddressInfo).port });
    cleanUp.push(
      () => server.close(),
      () => proxy.close(),
    );
    const open = async () => {
      const socket = connect(proxy.port, '127.0.0.1');
      const got = { text: '', ended: '' };
      socket.setEncoding('utf8').on('data', (text) => {
        got.text += text;
      });
      socket.on('error', (error) => {
        got.ended = (error as NodeJS.ErrnoException).code ?? 'error';
      });
      socket.on('end', () => {
        got.ended = 'end';
      });
      // Rejects when the reset is faster than the connection; `got` tells.
      await once(socket, 'connect').catch(() => undefined);
      return { socket, got };
    };
    return { proxy, open };
  }

  test('passes, delays once whatever the number of chunks, and keeps the order', async () => {
    const { proxy, open } = await echo();
    const { socket, got } = await open();
    socket.write('a');
    await until(() => got.text === 'a', { message: 'the echo' });
    proxy.set({ kind: 'latency', ms: 60 });
    const beganMs = performance.now();
    for (const text of ['b', 'c', 'd']) {
      socket.write(text);
      await new Promise((resolve) => setTimeout(resolve, 5));
    }
    await until(() => got.text === 'abcd', { message: 'the delayed echo' });
    const tookMs = performance.now() - beganMs;
    expect(tookMs).toBeGreaterThanOrEqual(118);
    expect(tookMs).toBeLessThan(300);
    socket.end();
    await until(() => got.ended === 'end', { message: 'the end to go through' });
  });

  test('a black hole holds everything and gives it back', async () => {
    const { proxy, open } = await echo();
    const { socket, got } = await open();
    proxy.set({ kind: 'black-hole' });
    socket.write('held');
    const late = await open();
    late.socket.write('too');
    await new Promise((resolve) => setTimeout(resolve, 80));
    expect([got.text, late.got.text, got.ended]).toEqual(['', '', '']);
    proxy.set({ kind: 'pass' });
    await until(() => got.text === 'held' && late.got.text === 'too', { message: 'what was held' });
  });

  test('resets present and new connections', async () => {
    const { proxy, open } = await echo();
    const { got } = await open();
    proxy.set({ kind: 'reset' });
    await until(() => got.ended === 'ECONNRESET', { message: 'a reset' });
    const next = await open();
    await until(() => next.got.ended === 'ECONNRESET', { message: 'a reset of the new one' });
    expect(proxy.connections).toBe(0);
  });

  test('swallows replies only, and the connection that lost one does not survive', async () => {
    const { proxy, open } = await echo();
    const { socket, got } = await open();
    proxy.set({ kind: 'swallow-replies' });
    socket.write('gone');
    await until(() => proxy.delivered.toServer === 4, { message: 'the request to arrive' });
    await new Promise((resolve) => setTimeout(resolve, 50));
    expect(got.text).toBe('');
    proxy.set({ kind: 'pass' });
    await until(() => got.ended === 'ECONNRESET', { message: 'a reset' });
  });

  test('cuts after so many bytes', async () => {
    const { proxy, open } = await echo();
    const { socket, got } = await open();
    proxy.set({ kind: 'cut', bytes: 5, direction: 'to-client' });
    socket.write('1234567890');
    await until(() => got.ended === 'ECONNRESET', { message: 'the cut' });
    expect(proxy.delivered).toEqual({ toServer: 10, toClient: 5 });
    expect('12345'.startsWith(got.text)).toBe(true);
  });
});

describe('private services', () => {
  test('Postgres survives a crash with its data and port, stops and continues', async () => {
    const server = await startPostgres();
    cleanUp.push(() => server.stop());
    await query(server.url, 'create table t as select 7 as n');
    const before = server.pid;
    await server.restart('crash');
    expect(server.pid).not.toBe(before);
    expect((await query(server.url, 'select n from t')).rows).toEqual([{ n: 7 }]);

    await server.signal('SIGSTOP');
    const answer = query(server.url, 'select 1 as one');
    const first = await Promise.race([answer, new Promise((resolve) => setTimeout(resolve, 200, 'silent'))]);
    expect(first).toBe('silent');
    await server.signal('SIGCONT');
    expect((await answer).rows).toEqual([{ one: 1 }]);
  });

  test('Redis comes back on its port, empty', async () => {
    const server = await startRedis();
    const client = new Redis(server.url, { protocol: 2 });
    client.on('error', () => undefined);
    cleanUp.push(
      () => server.stop(),
      () => client.disconnect(),
    );
    await client.set('k', 'v');
    await server.restart();
    expect(await until(async () => (await client.ping()) === 'PONG', { message: 'Redis again' })).toBe(true);
    expect(await client.get('k')).toBeNull();
  });

  test('a leashed process tells its exit code and is stopped when asked', async () => {
    const short = await leash(['/bin/sh', '-c', 'echo hello; exit 3']);
    expect(await short.exited).toBe(3);
    expect(short.output()).toContain('hello');
    const long = await leash(['sleep', '100'], { stopSignal: 'TERM' });
    await long.stop();
    expect(await long.exited).toBe(143);
  });
});
