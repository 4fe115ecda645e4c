/**
 * The REST dialect's routes over real sockets. The core is given as a dependency and answers from a script: what is tested
 * here is what goes over the wire and what is asked of the core, not the core.
 */
import { describe, expect, test } from 'vitest';
import type { RunService } from '#src/runs/service.ts';
import { until } from '#tests/support/until.ts';
import { admitted, follow, NOW, RUN, refuse, run, STREAM, start, THREAD, thread } from './http-rest-rig.ts';
import { getRequest, rawSocket } from './http-rig.ts';

describe('starting a run', () => {
  test.each([
    ['a new thread', '/api/v1/threads/messages', null],
    ['a thread', `/api/v1/threads/${THREAD.toUpperCase()}/messages`, THREAD],
  ])('in %s: 202 with where to find it', async (_name, path, threadId) => {
    const { ask, calls } = await start({ runs: { send: async () => admitted } });
    const config = { configurable: { tone: 'dry' }, recursion_limit: 7 };
    const answer = await ask('POST', path, {
      content: 'hi',
      graph: 'chat',
      request_key: 'k',
      config,
      on_disconnect: 'cancel',
    });
    expect(answer.status).toBe(202);
    expect(answer.body).toEqual({
      thread_id: THREAD,
      turn_id: 'turn',
      run_id: RUN,
      message_id: 'message',
      stream_url: STREAM,
    });
    expect(answer.headers.get('content-location')).toBe(STREAM);
    expect(answer.headers.get('location')).toBe(`/api/v1/runs/${RUN}`);
    expect(calls.send).toEqual([
      [
        {
          owner: 'ada',
          thread_id: threadId,
          graph_id: 'chat',
          content: 'hi',
          request_key: 'k',
          config,
          on_disconnect: 'cancel',
        },
      ],
    ]);
  });

  test('with Accept: text/event-stream the answer is the stream, the same as by GET', async () => {
    const { open, calls } = await start({ runs: { send: async () => admitted, find: async () => run(), follow } });
    const posted = await open(`/api/v1/threads/${THREAD}/messages`, {
      body: { content: 'hi' },
      headers: { origin: 'https://app.example' },
    });
    await posted.closed;
    const got = await open(STREAM);
    await got.closed;
    expect(posted.raw()).toBe(got.raw());
    expect(posted.frames.map(({ event, id, data }) => [event, id, JSON.parse(data)])).toEqual([
      ['metadata', '0', { run_id: RUN, thread_id: THREAD, turn_id: 'turn', takeover: 0 }],
      ['message_chunk', '1', { message_id: 'ai', type: 'text', delta: 'Hi' }],
      ['message_chunk', '2', { message_id: 'ai', type: 'text', delta: ' there' }],
      ['run_end', '3', { status: 'succeeded', usage: null }],
    ]);
    for (const stream of [posted, got]) expect(stream.headers.get('content-location')).toBe(STREAM);
    expect(posted.headers.get('access-control-allow-origin')).toBe('https://app.example');
    expect(posted.headers.get('access-control-expose-headers')).toContain('Content-Location');
    expect(calls.follow?.map(([, after]) => after)).toEqual([-1, -1]);
  });

  test('a repeated request key gets the same 202, or the stream of the same run', async () => {
    const runs = { send: async () => ({ ...admitted, replayed: true }), follow };
    const { ask, open } = await start({ runs });
    const headers = { 'idempotency-key': 'k' };
    expect(await ask('POST', `/api/v1/threads/${THREAD}/messages`, { content: 'hi' }, headers)).toMatchObject({
      status: 202,
      body: { run_id: RUN, message_id: 'message' },
    });
    const stream = await open(`/api/v1/threads/${THREAD}/messages`, { body: { content: 'hi' }, headers });
    await stream.closed;
    expect(stream.frames.at(-1)?.event).toBe('run_end');
  });

  test('an answer joins its turn', async () => {
    const { ask, calls } = await start({ runs: { answer: async () => ({ ...admitted, message_id: null }) } });
    const answer = await ask(
      'POST',
      `/api/v1/threads/${THREAD}/answer`,
      { interrupts: { i1: { ok: true } } },
      { 'idempotency-key': 'k' },
    );
    expect(answer).toMatchObject({ status: 202, body: { run_id: RUN, message_id: null, stream_url: STREAM } });
    expect(calls.answer?.[0]?.[0]).toMatchObject({
      owner: 'ada',
      thread_id: THREAD,
      interrupts: { i1: { ok: true } },
      request_key: 'k',
    });
  });

  test('a run in the way: 409 with its id and the place of its stream, before any stream', async () => {
    const runs = { send: refuse('RUN_IN_PROGRESS', { run_id: RUN, thread_id: THREAD }) };
    const { ask } = await start({ runs });
    const answer = await ask(
      'POST',
      `/api/v1/threads/${THREAD}/messages`,
      { content: 'hi' },
      { accept: 'text/event-stream' },
    );
    expect(answer).toMatchObject({ status: 409, body: { code: 'RUN_IN_PROGRESS', run_id: RUN } });
    expect(answer.headers.get('location')).toBe(STREAM);
  });

  test.each<[string, unknown, number, object]>([
    ['empty content', { content: '' }, 422, { code: 'INVALID_REQUEST', path: 'content' }],
    ['a NUL', { content: 'a\u0000' }, 422, { code: 'INVALID_CHARACTER', path: 'content' }],
    [
      'half a character in metadata',
      { content: 'a', config: { metadata: { k: ['\udfff'] } } },
      422,
      { code: 'INVALID_CHARACTER', path: 'config.metadata.k.0' },
    ],
    [
      'an id of ours in configurable',
      { content: 'a', config: { configurable: { thread_id: 'x' } } },
      422,
      { code: 'INVALID_REQUEST', path: 'config.configurable.thread_id' },
    ],
    ['too long', { content: 'x'.repeat(1024 * 1024) }, 413, { code: 'PAYLOAD_TOO_LARGE' }],
  ])('%s is refused before the core is asked', async (_name, body, status, refusal) => {
    const { ask, calls } = await start();
    const answer = await ask('POST', `/api/v1/threads/${THREAD}/messages`, body, { accept: 'text/event-stream' });
    expect(answer).toMatchObject({ status, body: refusal });
    expect(calls).toEqual({});
  });
});

describe('threads and runs', () => {
  const view = { id: THREAD, title: null, graph: 'chat', metadata: { a: [1] }, status: 'running', latest_run_id: RUN };

  test('create, read, list, change, delete', async () => {
    const { ask, calls } = await start({
      threads: {
        create: async () => thread,
        get: async () => thread,
        list: async () => ({ threads: [thread], next_cursor: 'next' }),
        update: async () => thread,
      },
      runs: { deleteThread: async () => undefined },
    });
    const created = await ask('POST', '/api/v1/threads', { title: 'T', graph: 'chat', metadata: { a: 1 } });
    expect(created).toMatchObject({ status: 201, body: view });
    expect(created.body).not.toHaveProperty('owner');
    expect(created.headers.get('location')).toBe(`/api/v1/threads/${THREAD}`);
    expect((await ask('POST', '/api/v1/threads')).status).toBe(201);
    expect(calls.create).toEqual([
      ['ada', { title: 'T', graph_id: 'chat', metadata: { a: 1 } }],
      ['ada', { title: undefined, graph_id: undefined, metadata: undefined }],
    ]);
    expect(await ask('GET', `/api/v1/threads/${THREAD}`)).toMatchObject({ status: 200, body: view });
    expect(await ask('GET', '/api/v1/threads?limit=5&cursor=c&archived=true')).toMatchObject({
      status: 200,
      body: { threads: [view], next_cursor: 'next' },
    });
    expect(calls.list).toEqual([['ada', { limit: 5, cursor: 'c', archived: true }]]);
    const change = { title: null, pinned: true };
    expect(await ask('PATCH', `/api/v1/threads/${THREAD}`, change)).toMatchObject({ status: 200, body: view });
    expect(calls.update).toEqual([['ada', THREAD, change]]);
    expect(await ask('DELETE', `/api/v1/threads/${THREAD}?force=true`)).toMatchObject({ status: 204, body: null });
    expect(await ask('DELETE', `/api/v1/threads/${THREAD}`)).toMatchObject({ status: 204 });
    expect(calls.deleteThread?.map(([, , options]) => (options as { force: boolean }).force)).toEqual([true, false]);
  });

  test('a graph the server does not have: 404', async () => {
    const { ask } = await start();
    expect(await ask('POST', '/api/v1/threads', { graph: 'nope' })).toMatchObject({
      status: 404,
      body: { code: 'GRAPH_NOT_FOUND', path: 'graph' },
    });
  });

  test('turns, status and run, from the ledger', async () => {
    const turn = {
      id: 'turn',
      ordinal: 1,
      question: { id: 'q', content: [{ type: 'text', text: 'hi' }], created_at: NOW },
      answer: { id: 'a', content: 'Hi', partial: true, stream_id: 'ai', created_at: NOW },
      status: 'running' as const,
      active_run_id: RUN,
      latest_run_id: RUN,
      interrupts: [{ id: 'i', value: { deep: [null] } }],
      error: null,
      is_latest: true,
      can_rerun: false,
      created_at: NOW,
    };
    const { ask } = await start({
      threads: { get: async () => thread, turns: async () => [turn] },
      runs: { get: async () => run() },
    });
    expect(await ask('GET', `/api/v1/threads/${THREAD}/turns`)).toMatchObject({ status: 200, body: { turns: [turn] } });
    const runView = { id: RUN, thread_id: THREAD, graph: 'chat', status: 'running', stream_url: STREAM };
    expect(await ask('GET', `/api/v1/threads/${THREAD}/status`)).toMatchObject({
      status: 200,
      body: { thread_id: THREAD, status: 'running', active_run_id: RUN, run: runView },
    });
    const answer = await ask('GET', `/api/v1/runs/${RUN}`);
    expect(answer).toMatchObject({ status: 200, body: runView });
    for (const inner of ['owner', 'input', 'epoch', 'lineage_id', 'request_key', 'log_end']) {
      expect(answer.body).not.toHaveProperty(inner);
    }
  });

  test('a thread without a run is idle', async () => {
    const { ask } = await start({
      threads: { get: async () => ({ ...thread, latest_run_id: null, status: 'idle' as const }) },
    });
    expect(await ask('GET', `/api/v1/threads/${THREAD}/status`)).toMatchObject({
      status: 200,
      body: { thread_id: THREAD, status: 'idle', active_run_id: null, run: null },
    });
  });

  test('cancel is 200, whatever there is to stop', async () => {
    const results = [
      { run: run(), outcome: 'stopping' as const },
      { run: run({ status: 'cancelled', ended_at: NOW }), outcome: 'stopped' as const },
      { run: null, outcome: 'idle' as const },
    ];
    const { ask, calls } = await start({
      runs: { cancel: async () => results.shift() ?? { run: null, outcome: 'idle' } },
    });
    const path = `/api/v1/threads/${THREAD}/cancel`;
    expect(await ask('POST', path)).toMatchObject({
      status: 200,
      body: { outcome: 'stopping', run_id: RUN, status: 'running' },
    });
    expect(await ask('POST', `${path}?run_id=${RUN}&wait=true`, {})).toMatchObject({
      status: 200,
      body: { outcome: 'stopped', status: 'cancelled' },
    });
    expect(await ask('POST', path)).toMatchObject({
      status: 200,
      body: { outcome: 'idle', run_id: null, status: null },
    });
    expect(calls.cancel?.map(([owner, id, options]) => [owner, id, options])).toMatchObject([
      ['ada', THREAD, { runId: undefined, wait: false }],
      ['ada', THREAD, { runId: RUN, wait: true }],
      ['ada', THREAD, { wait: false }],
    ]);
  });

  test('a cancel that waits ends with the server, or silently with its client', async () => {
    let waiting = 0;
    const cancel: RunService['cancel'] = (_owner, _id, { signal }) =>
      new Promise((_resolve, reject) => {
        waiting += 1;
        signal?.addEventListener('abort', () => {
          waiting -= 1;
          reject(signal.reason);
        });
      });
    const { ask, app, port, logs } = await start({ runs: { cancel } });
    const path = `/api/v1/threads/${THREAD}/cancel?wait=true`;
    const socket = await rawSocket(port, getRequest(path, ['X-Dev-User: ada']).replace('GET', 'POST'));
    await until(() => waiting === 1, { message: 'the cancel to wait' });
    socket.resetAndDestroy();
    await until(() => waiting === 0, { message: 'the cancel to stop waiting' });
    const waited = ask('POST', path);
    await until(() => waiting === 1, { message: 'the second cancel to wait' });
    await app.close();
    expect(await waited).toMatchObject({ status: 503, body: { code: 'UNAVAILABLE' } });
    expect(logs.filter((line) => line.level >= 50)).toEqual([]);
  });

  test.each([
    ['GET', '/api/v1/threads/nope', 'THREAD_NOT_FOUND'],
    ['PATCH', '/api/v1/threads/nope', 'THREAD_NOT_FOUND'],
    ['DELETE', '/api/v1/threads/nope', 'THREAD_NOT_FOUND'],
    ['GET', '/api/v1/threads/nope/turns', 'THREAD_NOT_FOUND'],
    ['GET', '/api/v1/threads/nope/status', 'THREAD_NOT_FOUND'],
    ['GET', '/api/v1/threads/nope/messages/stream', 'THREAD_NOT_FOUND'],
    ['GET', `/api/v1/threads/${THREAD}/messages/stream?run_id=nope`, 'RUN_NOT_FOUND'],
    ['POST', '/api/v1/threads/nope/messages', 'THREAD_NOT_FOUND'],
    ['POST', '/api/v1/threads/nope/answer', 'THREAD_NOT_FOUND'],
    ['POST', '/api/v1/threads/nope/cancel', 'THREAD_NOT_FOUND'],
    ['POST', `/api/v1/threads/${THREAD}/cancel?run_id=nope`, 'RUN_NOT_FOUND'],
    ['GET', '/api/v1/runs/nope', 'RUN_NOT_FOUND'],
    ['GET', '/api/v1/nope', 'NOT_FOUND'],
  ])('%s %s: 404 %s', async (method, path, code) => {
    const { ask, calls } = await start();
    const body = path.endsWith('/messages')
      ? { content: 'x' }
      : path.endsWith('/answer')
        ? { interrupts: { i: 1 } }
        : undefined;
    expect(await ask(method, path, method === 'PATCH' ? {} : body)).toMatchObject({ status: 404, body: { code } });
    expect(calls).toEqual({});
  });

  test('nobody without a name', async () => {
    const { url, calls } = await start();
    const response = await fetch(`${url}/api/v1/threads`, { headers: { origin: 'https://app.example' } });
    expect(response.status).toBe(401);
    expect(response.headers.get('access-control-allow-origin')).toBe('https://app.example');
    expect(await response.json()).toMatchObject({ code: 'UNAUTHENTICATED' });
    expect(calls).toEqual({});
  });
});
