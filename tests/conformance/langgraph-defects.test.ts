/**
 * What LangGraph's own development server gets wrong or does not have, by LangGraph's own client on two processes: lists and
 * pages, what is not there, stops, joiners, connections that break, options that get lost, and a restart. docs/field-cases.md
 * has the table, with those that other files show.
 */
import { randomUUID } from 'node:crypto';
import { fileURLToPath } from 'node:url';
import { Client } from '@langchain/langgraph-sdk';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type Cluster, call, startCluster } from '#tests/support/cluster.ts';
import { clientOf, human, type Part, partsOf, partsUntil, textsOf } from '#tests/support/langgraph-client.ts';
import type { TestServer } from '#tests/support/server.ts';
import { openSse } from '#tests/support/sse.ts';
import { startTcpProxy } from '#tests/support/tcp-proxy.ts';
import { until } from '#tests/support/until.ts';

let cluster: Cluster;
let server: TestServer;
let client: Client;
/** Speaks to the other process. */
let other: Client;

beforeAll(async () => {
  const file = (name: string) => fileURLToPath(new URL(`../support/graphs/${name}.ts`, import.meta.url));
  cluster = await startCluster({
    size: 2,
    server: {
      config: {
        graphs: {
          remote: `${file('remote')}:graph`,
          echo: `${file('plain')}:uncompiled`,
          pages: `${file('pages')}:pages`,
        },
        server: { sse_keepalive_interval: '200ms' },
      },
    },
  });
  let second: TestServer;
  [server, second] = cluster.servers as [TestServer, TestServer];
  [client, other] = [clientOf(server), clientOf(second)];
});
afterAll(() => cluster?.stop());

const newThread = async (): Promise<string> => (await client.threads.create()).thread_id;
const statusIs = (threadId: string, runId: string, status: string) =>
  until(async () => (await client.runs.get(threadId, runId)).status === status, { message: `the run to be ${status}` });
const slow = (words: number) => ({ input: human(`slow ${words}`) });
function controller(): { signal: AbortSignal; abort: () => void } {
  const abort = new AbortController();
  return { signal: abort.signal, abort: () => abort.abort() };
}
/** One of many steps that do not say anything for a model. */
const steps = (count: number, stepMs: number) => ({
  input: human('go'),
  config: { configurable: { count, stepMs }, recursion_limit: count + 10 },
});

describe('lists', () => {
  test('runs: newest first, from an offset, so many, of a status, with the fields that are named', async () => {
    const threadId = await newThread();
    const ids: string[] = [];
    for (const text of ['one', 'fail', 'two', 'fail', 'three']) {
      const run = await client.runs.create(threadId, 'remote', { input: human(text) });
      await client.runs.join(threadId, run.run_id);
      ids.unshift(run.run_id);
    }
    const listed = async (options: Parameters<Client['runs']['list']>[1]) =>
      (await other.runs.list(threadId, options)).map(({ run_id }) => run_id);
    expect(await listed({})).toEqual(ids);
    expect(await listed({ limit: 2, offset: 1 })).toEqual(ids.slice(1, 3));
    expect(await listed({ limit: 2, offset: 4 })).toEqual(ids.slice(4));
    expect(await listed({ status: 'success' })).toEqual([ids[0], ids[2], ids[4]]);
    expect(await listed({ status: 'error', limit: 1, offset: 1 })).toEqual([ids[3]]);
    expect(await listed({ status: 'timeout' })).toEqual([]);
    expect(await other.runs.list(threadId, { limit: 1, select: ['run_id', 'status'] })).toEqual([
      { run_id: ids[0], status: 'success' },
    ]);
  });

  test('assistants and threads: in the order asked for, with how many there are and where the next page begins', async () => {
    const tag = randomUUID();
    const metadata = { tag };
    for (const name of ['b', 'c', 'a']) {
      await client.assistants.create({ graphId: 'echo', name, metadata });
      await client.threads.create({ metadata: { ...metadata, name } });
    }
    const names = async (sortOrder: 'asc' | 'desc') =>
      (await other.assistants.search({ metadata, sortBy: 'name', sortOrder })).map(({ name }) => name);
    expect(await names('asc')).toEqual(['a', 'b', 'c']);
    expect(await names('desc')).toEqual(['c', 'b', 'a']);

    // The one that was active last is not the one that was made last.
    const [made] = await other.threads.search({ metadata: { tag, name: 'b' } });
    await client.runs.wait(String(made?.thread_id), 'echo', { input: human('hi') });
    const active = await other.threads.search({ metadata, sortBy: 'state_updated_at', sortOrder: 'desc' });
    expect(active.map((thread) => thread.metadata?.name)[0]).toBe('b');

    for (const path of ['/assistants/search', '/threads/search']) {
      const page = async (offset: number) => {
        const { headers } = await call(server, 'POST', path, { metadata, limit: 2, offset });
        return [headers.get('x-pagination-total'), headers.get('x-pagination-next')];
      };
      expect(await page(0), path).toEqual(['3', '2']);
      expect(await page(2), path).toEqual(['3', null]);
    }
    const first = await client.assistants.search({ metadata, limit: 2, includePagination: true });
    expect(first).toMatchObject({ next: '2' });
  });

  test('states: before one, as the client writes it, and the fields that are named', async () => {
    const threadId = await newThread();
    await client.runs.wait(threadId, 'echo', { input: human('hi') });
    const all = await client.threads.getHistory(threadId);
    expect(all).toHaveLength(3);
    const before = { configurable: { checkpoint_id: all[0]?.checkpoint.checkpoint_id } };
    expect(await other.threads.getHistory(threadId, { before })).toEqual(all.slice(1));
    expect(await other.threads.getHistory(threadId, { limit: 1, select: ['next', 'created_at'] })).toEqual([
      { next: [], created_at: all[0]?.created_at },
    ]);
    expect(await other.threads.getState(threadId, undefined, { select: ['next'] })).toEqual({ next: [] });
  });
});

test('what is not there is 404, at once and in words', async () => {
  const nobody = randomUUID();
  const threadId = await newThread();
  const noThread = `Thread with ID ${nobody} not found`;
  const run = { assistant_id: 'remote', input: human('hi') };
  const asked: [method: string, path: string, words: string, body?: object][] = [
    ...['reject', 'enqueue', 'interrupt', 'rollback'].flatMap((multitask_strategy) =>
      ['', '/stream', '/wait'].map((how): [string, string, string, object] => [
        'POST',
        `/threads/${nobody}/runs${how}`,
        noThread,
        { ...run, multitask_strategy },
      ]),
    ),
    ['GET', `/threads/${nobody}`, noThread],
    ['PATCH', `/threads/${nobody}`, noThread, { metadata: {} }],
    ['DELETE', `/threads/${nobody}`, noThread],
    ['GET', `/threads/${nobody}/state`, noThread],
    ['POST', `/threads/${nobody}/state`, noThread, { values: {} }],
    ['POST', `/threads/${nobody}/history`, noThread, {}],
    ['GET', `/threads/${nobody}/runs`, noThread],
    ['GET', `/threads/${nobody}/stream`, noThread],
    ['POST', `/threads/${nobody}/runs/crons`, noThread, { ...run, schedule: '@yearly' }],
    ['GET', '/threads/not-a-uuid/state', 'Thread with ID not-a-uuid not found'],
    ...['GET /', 'GET /join', 'GET /stream', 'POST /cancel', 'POST /cancel?wait=1', 'DELETE /'].map(
      (asks): [string, string, string] => {
        const [method = '', path = ''] = asks.split(' ');
        return [method, `/threads/${threadId}/runs/${nobody}${path === '/' ? '' : path}`, 'Run not found'];
      },
    ),
    ['GET', `/runs/${nobody}/stream`, 'Run not found'],
    ['GET', `/threads/${threadId}/state/${nobody}`, 'Checkpoint not found'],
    ['GET', `/assistants/${nobody}/schemas`, 'Assistant not found'],
    ['GET', `/assistants/${nobody}/graph`, 'Assistant not found'],
    ['PATCH', `/assistants/${nobody}`, 'Assistant not found', { metadata: {} }],
    ['DELETE', `/assistants/${nobody}`, 'Assistant not found'],
    ['POST', '/runs/wait', `No assistant found for "${nobody}"`, { ...run, assistant_id: nobody }],
    ['DELETE', `/runs/crons/${nobody}`, 'Cron not found'],
  ];
  for (const [method, path, words, body] of asked) {
    const response = await fetch(`${server.url}${path}`, {
      method,
      signal: AbortSignal.timeout(10_000),
      ...(body === undefined ? {} : { headers: { 'content-type': 'application/json' }, body: JSON.stringify(body) }),
    });
    expect([method, path, response.status]).toEqual([method, path, 404]);
    expect(await response.text()).toContain(words);
  }
  await expect(client.threads.get(nobody)).rejects.toThrow('HTTP 404');
});

describe('a stop', () => {
  const cancel = (threadId: string, runId: string, query: string) =>
    fetch(`${server.url}/threads/${threadId}/runs/${runId}/cancel?${query}`, { method: 'POST' });

  test('answers at once with wait=0, and with wait=1 when the run has ended; nothing is stopped twice', async () => {
    const threadId = await newThread();
    const { run_id: id } = await client.runs.create(threadId, 'remote', slow(200));
    await statusIs(threadId, id, 'running');
    for (const query of ['wait=0', 'wait=false', '']) expect((await cancel(threadId, id, query)).status).toBe(202);
    expect((await cancel(threadId, id, 'wait=1')).status).toBe(204);
    expect(await other.runs.get(threadId, id)).toMatchObject({ status: 'interrupted' });
    const state = await other.threads.getState(threadId);
    // What was said until then is kept.
    expect(textsOf(state.values)[0]).toBe('slow 200');
    expect((await cancel(threadId, id, 'wait=1&action=rollback')).status).toBe(204);
    expect(await other.threads.getState(threadId)).toEqual(state);
    expect(await other.runs.get(threadId, id)).toMatchObject({ status: 'interrupted' });
  });

  test('with rollback takes back a run that waits, too, and the thread is what it was', async () => {
    const threadId = await newThread();
    await client.runs.wait(threadId, 'echo', { input: human('hi') });
    const before = await client.threads.getState(threadId);
    const { run_id: late } = await client.runs.create(threadId, 'echo', { input: human('x'), afterSeconds: 1_000 });
    expect((await client.threads.get(threadId)).status).toBe('busy');
    await other.runs.cancel(threadId, late, true, 'rollback');
    await expect(client.runs.get(threadId, late)).rejects.toThrow('HTTP 404: Run not found');
    expect((await client.threads.get(threadId)).status).toBe('idle');
    expect(await client.threads.getState(threadId)).toEqual(before);
    expect(await client.runs.list(threadId)).toHaveLength(1);
    expect(textsOf(await other.runs.wait(threadId, 'echo', { input: human('and on') }))).toHaveLength(4);
  });

  test('of many: those that are named, those of a thread, those that wait', async () => {
    const [one, two] = [await newThread(), await newThread()];
    const running = await client.runs.create(one, 'remote', slow(200));
    const waits = await client.runs.create(one, 'remote', { ...slow(1), multitaskStrategy: 'enqueue' });
    const beside = await client.runs.create(two, 'remote', slow(200));
    await statusIs(one, running.run_id, 'running');
    await statusIs(two, beside.run_id, 'running');
    await other.runs.cancelMany({ threadId: one, status: 'pending' });
    await statusIs(one, waits.run_id, 'interrupted');
    expect((await client.runs.get(one, running.run_id)).status).toBe('running');
    await other.runs.cancelMany({ threadId: one, runIds: [running.run_id] });
    await statusIs(one, running.run_id, 'interrupted');
    expect((await client.runs.get(two, beside.run_id)).status).toBe('running');
    await other.runs.cancelMany({ status: 'all', action: 'rollback' });
    const isGone = () =>
      client.runs.get(two, beside.run_id).then(
        () => false,
        (error: Error) => error.message.startsWith('HTTP 404'),
      );
    await until(isGone, { message: 'the run to be gone' });
  });

  test('comes with the client that leaves, if the run says so: one that waits, one without a thread, one that joined', async () => {
    const threadId = await newThread();
    const waiting = new AbortController();
    const wait = client.runs.wait(threadId, 'remote', { ...slow(200), onDisconnect: 'cancel', signal: waiting.signal });
    const waited = await until(async () => (await client.runs.list(threadId))[0]?.run_id, { message: 'the run' });
    await statusIs(threadId, waited, 'running');
    waiting.abort();
    await expect(wait).rejects.toThrow();
    await statusIs(threadId, waited, 'interrupted');

    const joined = await newThread();
    const { run_id: id } = await client.runs.create(joined, 'remote', slow(200));
    await statusIs(joined, id, 'running');
    /** Leaves as soon as it has been let in. */
    const joinAndLeave = async (query: string) => {
      const { signal, abort } = controller();
      await fetch(`${cluster.servers[1]?.url}/threads/${joined}/runs/${id}/join${query}`, { signal });
      abort();
    };
    await joinAndLeave('');
    await joinAndLeave('?cancel_on_disconnect=0');
    expect((await client.runs.get(joined, id)).status).toBe('running');
    await joinAndLeave('?cancel_on_disconnect=1');
    await statusIs(joined, id, 'interrupted');

    const parts = await partsUntil(
      (signal) =>
        client.runs.stream(null, 'remote', {
          ...slow(200),
          streamMode: 'messages-tuple',
          onDisconnect: 'cancel',
          signal,
        }),
      (seen) => seen.at(-1)?.event === 'messages',
    );
    const { run_id } = (parts[0]?.data ?? {}) as { run_id: string };
    const [, about] = (parts.at(-1)?.data ?? []) as [unknown?, { thread_id: string }?];
    await statusIs(String(about?.thread_id), run_id, 'interrupted');
  });
});

describe('a stream', () => {
  test('is whole for every reader, however many, whenever they come and as often as they come', async () => {
    const threadId = await newThread();
    const { run_id: id } = await client.runs.create(threadId, 'remote', {
      ...slow(20),
      streamMode: ['values', 'messages-tuple', 'updates'],
      streamResumable: false,
    });
    const join = (on: Client) => partsOf(on.runs.joinStream(threadId, id));
    const early = Array.from({ length: 6 }, (_, n) => join(n % 2 === 0 ? client : other));
    const late: Promise<Part[]>[] = [];
    const source = await partsOf(client.runs.joinStream(threadId, id), ({ event }) => {
      if (event === 'messages' && late.length < 6) late.push(join(late.length % 2 === 0 ? other : client));
    });
    expect(source.filter(({ event }) => event === 'messages')).toHaveLength(20);
    const after = [await join(client), await join(client), await join(other)];
    for (const parts of [...(await Promise.all([...early, ...late])), ...after]) expect(parts).toEqual(source);
  });

  test('without a thread has ids as well, and can be joined again', async () => {
    let runId = '';
    const parts = await partsOf(
      client.runs.stream(null, 'remote', {
        input: human('hi'),
        streamMode: ['values', 'messages-tuple'],
        onRunCreated: ({ run_id }) => {
          runId = run_id;
        },
      }),
    );
    expect(parts.map(({ id }) => id)).toEqual(parts.map((_part, index) => String(index)));
    const again = await openSse(`${cluster.servers[1]?.url}/runs/${runId}/stream`, {
      headers: { 'last-event-id': '1' },
    });
    await again.closed;
    expect(again.frames.map(({ event, id, data }) => ({ event, id, data: JSON.parse(data) }))).toEqual(parts.slice(2));
    expect(again.headers.get('content-location')).toBe(`/runs/${runId}`);
  });

  test('whose connection breaks goes on by itself, without a frame lost or twice; a quiet one says that it lives', async () => {
    const proxy = await startTcpProxy({ port: Number(new URL(server.url).port) });
    try {
      const through = new Client({ apiUrl: `http://127.0.0.1:${proxy.port}`, apiKey: null });
      const threadId = await newThread();
      let runId = '';
      let words = 0;
      const parts = await partsOf(
        through.runs.stream(threadId, 'remote', {
          ...slow(30),
          streamMode: ['values', 'messages-tuple'],
          onRunCreated: ({ run_id }) => {
            runId = run_id;
          },
        }),
        ({ event }) => {
          if (event !== 'messages') return;
          words += 1;
          if (words === 5 || words === 15) proxy.resetAll();
        },
      );
      expect(parts).toEqual(await partsOf(client.runs.joinStream(threadId, runId)));
      expect(words).toBe(30);
    } finally {
      await proxy.close();
    }
    const quiet = await newThread();
    const stream = await openSse(`${server.url}/threads/${quiet}/runs/stream`, {
      body: { assistant_id: 'pages', ...steps(1, 1_500) },
    });
    await stream.closed;
    expect(stream.comments.length).toBeGreaterThan(3);
  });
});

describe('what a client asks for', () => {
  test('is accepted as its types have it', async () => {
    const threadId = await newThread();
    for (const onCompletion of ['complete', 'continue', 'delete', 'keep'] as const) {
      // The types of the SDK know two of them, the protocol the other two.
      const payload = { input: human('hi'), onCompletion: onCompletion as 'complete' };
      expect(textsOf(await client.runs.wait(null, 'echo', payload))).toEqual(['hi', 'uncompiled: hi']);
    }
    const parts = await partsOf(
      client.runs.stream(threadId, 'echo', {
        input: human('hi'),
        streamMode: ['values', 'lifecycle'],
        checkpointDuring: true,
        feedbackKeys: ['good'],
        strictResume: true,
      }),
    );
    expect(new Set(parts.map(({ event }) => event))).toEqual(new Set(['metadata', 'values']));
  });

  test('durability: what is stored at the end alone is one checkpoint', async () => {
    const stored = async (durability: 'sync' | 'exit') => {
      const threadId = await newThread();
      await client.runs.wait(threadId, 'pages', { ...steps(5, 0), durability });
      return (await client.threads.getHistory(threadId, { limit: 100 })).length;
    };
    expect(await stored('sync')).toBe(8);
    expect(await stored('exit')).toBe(1);
  });

  test('in a batch all of it counts, though the client writes the names otherwise there', async () => {
    const runs = await client.runs.createBatch([
      { assistantId: 'remote', input: human('hi'), onCompletion: 'keep' as 'complete', streamMode: ['updates'] },
      { assistantId: 'echo', input: human('hi'), afterSeconds: 1_000, interruptBefore: ['echo'], metadata: { a: 1 } },
    ]);
    expect(runs).toMatchObject([
      { kwargs: { stream_mode: ['updates'], temporary: false } },
      { kwargs: { interrupt_before: ['echo'], temporary: true }, metadata: { a: 1 } },
    ]);
    const [first, second] = runs;
    if (first === undefined || second === undefined) throw new Error('two runs were asked for');
    await client.runs.join(first.thread_id, first.run_id);
    expect((await client.runs.get(second.thread_id, second.run_id)).status).toBe('pending');
    expect((await client.threads.search({ ids: [first.thread_id, second.thread_id] })).length).toBe(1);
  });
});

// The last: it takes the servers away.
test('a restart of everything leaves no run running for ever, and no thread busy', async () => {
  const [threadId, waiting] = [await newThread(), await newThread()];
  const running = await client.runs.create(threadId, 'pages', steps(40, 50));
  const queued = await client.runs.create(threadId, 'pages', { ...steps(2, 0), multitaskStrategy: 'enqueue' });
  const late = await client.runs.create(waiting, 'echo', { input: human('later'), afterSeconds: 2 });
  await statusIs(threadId, running.run_id, 'running');
  await partsUntil(
    (signal) => other.runs.joinStream(threadId, running.run_id, { signal }),
    (parts) => parts.filter(({ event }) => event === 'values').length > 5,
  );
  for (const each of cluster.servers) each.kill('SIGKILL');
  await Promise.all(cluster.servers.map(({ exit }) => exit));

  const next = clientOf(await cluster.add());
  expect(await next.runs.join(threadId, running.run_id)).toMatchObject({ step: 40 });
  expect(await next.runs.join(threadId, queued.run_id)).toMatchObject({ step: 2 });
  expect(textsOf(await next.runs.join(waiting, late.run_id))).toEqual(['later', 'uncompiled: later']);
  for (const id of [threadId, waiting]) expect((await next.threads.get(id)).status).toBe('idle');
  expect((await next.runs.list(threadId)).map(({ status }) => status)).toEqual(['success', 'success']);
  // What was told before the restart can be read after it.
  const parts = await partsOf(next.runs.joinStream(threadId, running.run_id));
  expect(parts.at(0)?.event).toBe('metadata');
  expect(parts.at(-1)?.data).toMatchObject({ step: 40 });
});
