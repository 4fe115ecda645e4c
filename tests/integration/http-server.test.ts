/** What every route has for free: ids, limits, refusals without a leak, CORS, closing. Over real sockets. */
import { once } from 'node:events';
import { Agent, request as httpRequest } from 'node:http';
import { describe, expect, test } from 'vitest';
import { z } from 'zod';
import { type Client, ClientLeft, watchClient } from '#src/http/client.ts';
import type { HttpOptions } from '#src/http/server.ts';
import { encodeFrames } from '#src/http/sse-frame.ts';
import { until } from '#tests/support/until.ts';
import { getRequest, later, rawSocket, startRig } from './http-rig.ts';

const LIMIT = 256 * 1024;
const UUID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;

function start(options: Partial<HttpOptions> = {}) {
  return startRig({ bodyLimitBytes: LIMIT, ...options }, ({ app, sse }) => {
    app.post('/echo', async (request) => ({ body: request.body ?? null }));
    app.post(
      '/strict',
      { schema: { body: z.strictObject({ name: z.string(), list: z.array(z.int()).optional() }) } },
      async () => ({}),
    );
    app.get('/search', { schema: { querystring: z.object({ q: z.string().optional() }) } }, async () => ({}));
    app.get('/items/:id', async (request) => request.params);
    app.get('/fail', async () => {
      throw new Error('connect postgres://u:secret@db/x failed', { cause: new Error('inner secret') });
    });
    app.get('/bad-output', { schema: { response: { 200: z.object({ n: z.number() }) } } }, async () => ({
      n: 'secret' as never,
    }));
    app.get('/stream', async (_request, reply) =>
      sse.stream(reply, {
        client: watchClient(reply),
        async *items() {
          yield 1;
        },
        encode: (n: number) => encodeFrames([{ data: n }]),
      }),
    );
  });
}

async function post(url: string, body: string | Buffer, headers: Record<string, string> = {}) {
  const response = await fetch(url, {
    method: 'POST',
    body: typeof body === 'string' ? body : new Uint8Array(body),
    headers: { 'content-type': 'application/json', ...headers },
  });
  return {
    status: response.status,
    headers: response.headers,
    body: (await response.json()) as Record<string, unknown>,
  };
}

async function get(url: string, headers: Record<string, string> = {}) {
  const response = await fetch(url, { headers });
  return {
    status: response.status,
    headers: response.headers,
    body: (await response.json()) as Record<string, unknown>,
  };
}

describe('request ids', () => {
  test('a client’s own id is kept, anything odd is replaced, and every answer has one', async () => {
    const { url } = await start();
    expect((await get(`${url}/items/1`, { 'x-request-id': 'trace-7:a/b' })).headers.get('x-request-id')).toBe(
      'trace-7:a/b',
    );
    for (const odd of ['x'.repeat(129), 'a b', 'a"b', 'ä']) {
      expect((await get(`${url}/items/1`, { 'x-request-id': odd })).headers.get('x-request-id')).toMatch(UUID);
    }
    const refused = await get(`${url}/none`, { 'x-request-id': 'mine' });
    expect(refused.body).toEqual({ code: 'NOT_FOUND', message: 'There is no such route.', request_id: 'mine' });
    expect(refused.headers.get('x-request-id')).toBe('mine');
  });

  test('no header names the software', async () => {
    const { url } = await start();
    const { headers } = await get(`${url}/none`);
    expect(headers.get('server')).toBeNull();
    expect(headers.get('x-powered-by')).toBeNull();
  });
});

describe('paths', () => {
  test.each([
    ['a broken escape', '/items/%ZZ'],
    ['half an escape', '/items/%'],
    ['escapes that are no UTF-8', '/items/%C3%28'],
    ['an incomplete character', '/%E0%A4%A'],
    ['nothing that exists', `/items/${'x'.repeat(9000)}/more`],
  ])('%s is no route and is answered like every other', async (_name, path) => {
    const { url } = await start({ cors: { origins: ['https://app.example'], credentials: false } });
    const answer = await get(`${url}${path}`, { origin: 'https://app.example' });
    expect(answer.status).toBe(404);
    expect(answer.body).toMatchObject({ code: 'NOT_FOUND' });
    expect(answer.headers.get('access-control-allow-origin')).toBe('https://app.example');
  });

  test('a long id reaches its route', async () => {
    const { url } = await start();
    expect((await get(`${url}/items/${'x'.repeat(9000)}`)).status).toBe(200);
  });

  test('a NUL in path or query is refused with the name of the field', async () => {
    const { url } = await start();
    expect(await get(`${url}/items/a%00b`)).toMatchObject({
      status: 422,
      body: { code: 'INVALID_CHARACTER', path: 'id' },
    });
    expect(await get(`${url}/search?q=a%00`)).toMatchObject({
      status: 422,
      body: { code: 'INVALID_CHARACTER', path: 'q' },
    });
    expect(await get(`${url}/search?q=%ED%A0%80`)).toMatchObject({ status: 200 });
  });
});

describe('bodies', () => {
  test.each<[string, string | Buffer, { code: string; path?: string }]>([
    ['no JSON', '{"name": ', { code: 'INVALID_REQUEST', path: 'body' }],
    ['a forbidden key', '{"name": "x", "__proto__": {"admin": true}}', { code: 'INVALID_REQUEST', path: 'body' }],
    ['bytes that are no UTF-8', Buffer.from([0x22, 0xff, 0xfe, 0x22]), { code: 'INVALID_CHARACTER', path: 'body' }],
    [
      'half a character in UTF-8',
      Buffer.from('"\u00ed\u00a0\u0080"', 'latin1'),
      { code: 'INVALID_CHARACTER', path: 'body' },
    ],
    ['a NUL', '{"name": "a\\u0000"}', { code: 'INVALID_CHARACTER', path: 'name' }],
    [
      'a NUL where the schema does not look',
      '{"name": "a", "x": {"y": ["\\u0000"]}}',
      { code: 'INVALID_CHARACTER', path: 'x.y.0' },
    ],
    ['half a character', '{"name": "\\ud800"}', { code: 'INVALID_CHARACTER', path: 'name' }],
    ['nothing', '', { code: 'INVALID_REQUEST', path: 'body' }],
    ['no object', '[]', { code: 'INVALID_REQUEST', path: 'body' }],
    ['null', 'null', { code: 'INVALID_REQUEST', path: 'body' }],
    ['a field of the wrong type', '{"name": 7}', { code: 'INVALID_REQUEST', path: 'name' }],
    ['an element of the wrong type', '{"name": "x", "list": [1, 1.5]}', { code: 'INVALID_REQUEST', path: 'list.1' }],
    ['an unknown field', '{"name": "x", "nam": "y"}', { code: 'INVALID_REQUEST', path: 'nam' }],
    [
      'nesting without end',
      `{"name": ${'['.repeat(90_000)}${']'.repeat(90_000)}}`,
      { code: 'INVALID_REQUEST', path: 'name.0.0.0' },
    ],
  ])('%s: 422', async (_name, body, refusal) => {
    const { url } = await start();
    const answer = await post(`${url}/strict`, body);
    expect(answer).toMatchObject({ status: 422, body: refusal });
    expect(Object.keys(answer.body).sort()).toEqual(['code', 'message', 'path', 'request_id']);
  });

  test('another content type is refused, so a page cannot send JSON as a simple form', async () => {
    const { url } = await start();
    for (const type of [
      'text/plain',
      'application/x-www-form-urlencoded',
      'multipart/form-data; boundary=x',
      'nonsense',
    ]) {
      expect(await post(`${url}/strict`, '{"name":"x"}', { 'content-type': type })).toMatchObject({
        status: 422,
        body: { code: 'INVALID_REQUEST', path: 'content-type' },
      });
    }
  });

  test('what JSON can hold arrives unchanged', async () => {
    const { url } = await start();
    const value = { a: '\u2028😀\u0001', constructor: { prototype: 1 }, n: 1e21, deep: [[[{ '': null }]]] };
    expect((await post(`${url}/echo`, JSON.stringify(value))).body).toEqual({ body: value });
  });

  test('longer than the limit: 413, also for a client that is still writing', async () => {
    const { url, app } = await start({ cors: { origins: ['*'], credentials: false } });
    for (const size of [LIMIT + 1, 30 * 1024 * 1024]) {
      for (let round = 0; round < 3; round += 1) {
        const answer = await post(`${url}/echo`, JSON.stringify('x'.repeat(size)), { origin: 'https://app.example' });
        expect(answer).toMatchObject({ status: 413, body: { code: 'PAYLOAD_TOO_LARGE' } });
        expect(answer.headers.get('access-control-allow-origin')).toBe('*');
      }
    }
    expect((await post(`${url}/echo`, JSON.stringify('x'.repeat(LIMIT - 2)))).status).toBe(200);
    await app.close();
  });

  test('longer than the limit: a client that reads only when it has written everything gets its 413', async () => {
    const { port } = await start();
    const size = 30 * 1024 * 1024;
    const head = `POST /echo HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\nContent-Length: ${size}\r\n\r\n`;
    const socket = await rawSocket(port, head);
    socket.pause();
    await new Promise<void>((resolve, reject) => {
      socket.once('error', reject);
      socket.write(Buffer.alloc(size, 'x'), () => resolve());
    });
    const [answer] = await once(socket.resume(), 'data');
    expect(String(answer)).toMatch(/^HTTP\/1\.1 413 /);
  });

  test('longer than the limit without saying so first: 413 too', async () => {
    const { port } = await start();
    const request = httpRequest({
      port,
      host: '127.0.0.1',
      method: 'POST',
      path: '/echo',
      headers: { 'content-type': 'application/json' },
    });
    const answered = once(request, 'response');
    request.on('error', () => undefined);
    for (let sent = 0; sent < 40; sent += 1) request.write('x'.repeat(16 * 1024));
    request.end();
    const [response] = await answered;
    expect(response.statusCode).toBe(413);
    response.resume();
  });
});

describe('failures of the server', () => {
  test('are told without a word of the cause and logged once, with the request’s id', async () => {
    const { url, logs } = await start({ cors: { origins: ['https://app.example'], credentials: false } });
    const answer = await get(`${url}/fail`, { 'x-request-id': 'r-1', origin: 'https://app.example' });
    expect(answer.status).toBe(500);
    expect(answer.body).toEqual({
      code: 'INTERNAL',
      message: 'The server failed to handle this request.',
      request_id: 'r-1',
    });
    expect(answer.headers.get('access-control-allow-origin')).toBe('https://app.example');
    const told = logs.filter((line) => JSON.stringify(line).includes('secret'));
    expect(told).toHaveLength(1);
    expect(told[0]).toMatchObject({ level: 50, request_id: 'r-1', route: '/fail' });
    expect(JSON.stringify(told[0])).toContain('inner secret');
  });

  test('an answer that does not fit its own schema is such a failure', async () => {
    const { url } = await start();
    const answer = await get(`${url}/bad-output`);
    expect(answer).toMatchObject({ status: 500, body: { code: 'INTERNAL' } });
    expect(JSON.stringify(answer.body)).not.toContain('secret');
  });

  test('what is no HTTP is answered in the same form', async () => {
    const { port } = await start();
    const socket = await rawSocket(port, 'NONSENSE\r\n\r\n');
    let answer = '';
    socket.on('data', (chunk) => {
      answer += chunk.toString();
    });
    await once(socket, 'close');
    expect(answer).toMatch(/^HTTP\/1\.1 400 /);
    expect(JSON.parse(answer.split('\r\n\r\n')[1] ?? '')).toMatchObject({
      code: 'INVALID_REQUEST',
      request_id: expect.stringMatching(UUID),
    });
  });

  test('headers beyond the limit: 431 in the same form', async () => {
    const { port } = await start();
    const socket = await rawSocket(port, getRequest('/items/1', [`X-Long: ${'x'.repeat(40_000)}`]));
    let answer = '';
    socket.on('data', (chunk) => {
      answer += chunk.toString();
    });
    await once(socket, 'close');
    expect(answer).toMatch(/^HTTP\/1\.1 431 /);
  });
});

describe('the log of requests', () => {
  test('has one line each, at debug, with the route’s template and nothing of the URL or the headers', async () => {
    const { url, logs } = await start();
    await get(`${url}/items/private-id?token=private-token`, { authorization: 'Bearer private', cookie: 'private=1' });
    await until(() => logs.some((line) => line.msg === 'request'), { message: 'the line' });
    const lines = logs.filter((line) => line.msg === 'request');
    expect(lines).toHaveLength(1);
    expect(lines[0]).toMatchObject({ level: 20, method: 'GET', route: '/items/:id', status: 200 });
    expect(JSON.stringify(logs)).not.toContain('private');
  });
});

describe('CORS', () => {
  const cors = { origins: ['https://app.example', 'https://two.example'], credentials: true };
  const headersOf = (headers: Headers) =>
    Object.fromEntries([...headers].filter(([name]) => name.startsWith('access-control') || name === 'vary'));

  test('is the same on JSON, streams and every refusal', async () => {
    const { url } = await start({ cors });
    const expected = {
      'access-control-allow-origin': 'https://two.example',
      'access-control-allow-credentials': 'true',
      'access-control-expose-headers':
        'Content-Location, Location, X-Request-Id, Retry-After, X-Pagination-Total, X-Pagination-Next',
      vary: 'Origin',
    };
    const origin = { origin: 'https://two.example' };
    const answers = await Promise.all([
      fetch(`${url}/items/1`, { headers: origin }),
      fetch(`${url}/stream`, { headers: origin }),
      fetch(`${url}/none`, { headers: origin }),
      fetch(`${url}/fail`, { headers: origin }),
      fetch(`${url}/bad-output`, { headers: origin }),
      fetch(`${url}/search?q=%00`, { headers: origin }),
      fetch(`${url}/strict`, { method: 'POST', headers: { ...origin, 'content-type': 'application/json' }, body: '{' }),
    ]);
    expect(answers.map((answer) => answer.status)).toEqual([200, 200, 404, 500, 500, 422, 422]);
    for (const answer of answers) {
      expect(headersOf(answer.headers)).toEqual(expected);
      await answer.text();
    }
  });

  test('says nothing to an origin that is not listed', async () => {
    const { url } = await start({ cors });
    for (const path of ['/items/1', '/stream', '/fail']) {
      const answer = await fetch(`${url}${path}`, { headers: { origin: 'https://evil.example' } });
      expect(answer.headers.get('access-control-allow-origin')).toBeNull();
      await answer.text();
    }
  });

  test('lets pages send what the API needs, and is answered without a route of its own', async () => {
    const { url } = await start({ cors });
    const wanted = ['authorization', 'content-type', 'last-event-id', 'idempotency-key', 'x-dev-user'];
    for (const path of ['/stream', '/strict', '/none']) {
      const answer = await fetch(`${url}${path}`, {
        method: 'OPTIONS',
        headers: {
          origin: 'https://app.example',
          'access-control-request-method': 'PATCH',
          'access-control-request-headers': wanted.join(', '),
        },
      });
      expect(answer.status).toBe(204);
      expect(answer.headers.get('access-control-allow-origin')).toBe('https://app.example');
      const allowed = answer.headers.get('access-control-allow-headers')?.toLowerCase().split(', ');
      expect(allowed).toEqual(expect.arrayContaining(wanted));
      expect(answer.headers.get('access-control-allow-methods')).toContain('PATCH');
      expect(answer.headers.get('access-control-allow-methods')).toContain('PUT');
      expect(allowed).toContain('x-api-key');
    }
  });

  test('off by default; every origin with *; * with credentials stops the start', async () => {
    const { url } = await start();
    const silent = await fetch(`${url}/items/1`, { headers: { origin: 'https://app.example' } });
    expect(headersOf(silent.headers)).toEqual({});
    const open = await start({ cors: { origins: ['*'], credentials: false } });
    const answer = await fetch(`${open.url}/items/1`, { headers: { origin: 'https://app.example' } });
    expect(answer.headers.get('access-control-allow-origin')).toBe('*');
    await expect(start({ cors: { origins: ['*'], credentials: true } })).rejects.toThrow(/cannot be combined/);
  });
});

describe('watchClient', () => {
  async function startWatched(hold?: Promise<void>) {
    const clients: Client[] = [];
    const entered = { count: 0 };
    const rig = await startRig({}, ({ app }) => {
      app.addHook('onRequest', async () => {
        entered.count += 1;
        await hold;
      });
      app.get('/watched', async (_request, reply) => {
        clients.push(watchClient(reply));
        return {};
      });
    });
    return { ...rig, clients, entered };
  }

  test('a client that got its answer has not left, even when its connection closes', async () => {
    const { port, clients } = await startWatched();
    const socket = await rawSocket(port, getRequest('/watched', ['Connection: close']));
    await once(socket.resume(), 'close');
    await until(() => clients.length === 1, { message: 'the handler' });
    await answerOf(port, '/none');
    expect([clients[0]?.left, clients[0]?.signal.aborted]).toEqual([false, false]);
  });

  test('a client that left before the handler began is noticed', async () => {
    const gate = Promise.withResolvers<void>();
    const { port, clients, entered } = await startWatched(gate.promise);
    const socket = await rawSocket(port, getRequest('/watched'));
    await until(() => entered.count === 1, { message: 'the request' });
    socket.resetAndDestroy();
    // Another connection, accepted later, proves that the server has seen what happened on the first.
    const other = answerOf(port, '/none');
    await until(() => entered.count === 2, { message: 'the other request' });
    gate.resolve();
    await other;
    await until(() => clients.length === 1, { message: 'the handler' });
    expect(clients[0]?.left).toBe(true);
    expect(clients[0]?.signal.reason).toBeInstanceOf(ClientLeft);
  });
});

describe('closing', () => {
  test('is not held up by connections that were opened ahead of need', async () => {
    const { app, port } = await start();
    const [silent, half] = [await rawSocket(port, ''), await rawSocket(port, 'GET /items/1 HTTP/1.1\r\nHost: ')];
    const gone = Promise.all([once(silent, 'close'), once(half, 'close')]);
    expect((await fetch(`http://127.0.0.1:${port}/items/1`)).status).toBe(200);
    const startedAt = performance.now();
    await app.close();
    expect(performance.now() - startedAt).toBeLessThan(2000);
    await gone;
  });

  test('waits for a body that is still coming, but not for ever', { timeout: 20_000 }, async () => {
    const { app, port, logs } = await start();
    const head = 'POST /echo HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\nContent-Length: 10\r\n\r\n';
    const [quick, stuck] = [await rawSocket(port, `${head}"abc`), await rawSocket(port, `${head}"abc`)];
    let answer = '';
    quick.on('data', (chunk) => {
      answer += chunk.toString();
    });
    const gone = once(stuck, 'close');
    expect((await fetch(`http://127.0.0.1:${port}/items/1`)).status).toBe(200);
    const startedAt = performance.now();
    const closed = app.close();
    quick.write('defgh"');
    await closed;
    expect(performance.now() - startedAt).toBeLessThan(15_000);
    await gone;
    expect(answer).toMatch(/^HTTP\/1\.1 200 OK\r\n/);
    expect(logs.filter((line) => line.level >= 50)).toEqual([]);
  });

  test('a request on an open connection is refused in our form, and a waiting one is told', async () => {
    const waiting = Promise.withResolvers<unknown>();
    const rig = await startRig({}, ({ app, sse, closing }) => {
      app.get('/wait', async () => {
        waiting.resolve(null);
        await new Promise((_resolve, reject) => closing.addEventListener('abort', () => reject(closing.reason)));
      });
      app.get('/quick', async () => ({}));
      app.get('/hold', async (_request, reply) =>
        sse.stream(reply, { client: watchClient(reply), items: holdUntil, encode: () => Buffer.alloc(0) }),
      );
    });
    const release = Promise.withResolvers<void>();
    async function* holdUntil() {
      await release.promise;
      yield 1;
    }
    const agent = new Agent({ keepAlive: true, maxSockets: 1 });
    later(() => agent.destroy());
    await answerOf(rig.port, '/quick', agent);
    const held = await fetch(`${rig.url}/hold`);
    const waited = answerOf(rig.port, '/wait');
    await waiting.promise;
    const closed = rig.app.close();
    const refused = { status: 503, body: expect.objectContaining({ code: 'UNAVAILABLE' }), retryAfter: '1' };
    expect(await waited).toEqual(refused);
    expect(await answerOf(rig.port, '/quick', agent)).toEqual(refused);
    release.resolve();
    await held.text();
    await closed;
  });
});

async function answerOf(port: number, path: string, agent?: Agent) {
  const request = httpRequest({ port, host: '127.0.0.1', path, ...(agent && { agent }) });
  request.end();
  const [response] = await once(request, 'response');
  let text = '';
  for await (const chunk of response) text += String(chunk);
  return { status: response.statusCode, body: JSON.parse(text), retryAfter: response.headers['retry-after'] };
}
