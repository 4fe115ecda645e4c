/** LangGraph's own client, in two versions, against two server processes over one database: what one began the other continues to tell. */
import { randomUUID } from 'node:crypto';
import { fileURLToPath } from 'node:url';
import { Client } from '@langchain/langgraph-sdk';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type Cluster, call, startCluster } from '#tests/support/cluster.ts';
import { human, type Part, partsOf, textsOf } from '#tests/support/langgraph-client.ts';
import { SDKS, type Sdk } from '#tests/support/sdks.ts';
import { until } from '#tests/support/until.ts';

const fixture = (name: string) => fileURLToPath(new URL(`../support/graphs/${name}`, import.meta.url));
const GRAPH = fixture('remote.ts');

let cluster: Cluster;
let client: Client;
/** Speaks to the other process. */
let other: Client;

beforeAll(async () => {
  const graphs = { remote: `${GRAPH}:graph`, 'told-use': `${fixture('told-use.ts')}:graph` };
  cluster = await startCluster({ size: 2, server: { config: { graphs } } });
});
afterAll(() => cluster.stop());

/** From here on the tests speak with this version. */
function speakWith(sdk: Sdk): void {
  const [first, second] = cluster.servers.map(
    ({ url }) => new sdk.Client({ apiUrl: url, callerOptions: { maxRetries: 0 } }),
  );
  if (first === undefined || second === undefined) throw new Error('two servers were asked for');
  [client, other] = [first, second];
}

const newThread = async (): Promise<string> => (await client.threads.create()).thread_id;

const names = (parts: Part[]): Set<string> => new Set(parts.map(({ event }) => event));
const isRunning = (threadId: string, runId: string) => async () =>
  (await client.runs.get(threadId, runId)).status === 'running';

test('a run whose events are no longer kept is told from the ledger', async () => {
  const graphs = { remote: `${GRAPH}:graph` };
  const forgetful = await startCluster({ server: { config: { graphs, events: { stream_ttl: '1s' } } } });
  try {
    const local = new Client({ apiUrl: forgetful.servers[0]?.url ?? '', callerOptions: { maxRetries: 0 } });
    const { thread_id } = await local.threads.create();
    const run = await local.runs.create(thread_id, 'remote', { input: human('hi'), streamMode: ['values', 'updates'] });
    await local.runs.join(thread_id, run.run_id);
    const told = await until(
      async () => {
        const parts = await partsOf(local.runs.joinStream(thread_id, run.run_id));
        // A log that goes away under its reader is told as a hole; the next reader finds it gone.
        return parts.some(({ event }) => event === 'updates' || event === 'resync_required') ? null : parts;
      },
      { message: 'the log to expire', timeoutMs: 30_000 },
    );
    expect(told.map(({ event }) => event)).toEqual(['metadata', 'values']);
    expect(textsOf(told[1]?.data)).toEqual(['hi', 'w0 w1 w2 w3 w4 ']);
  } finally {
    await forgetful.stop();
  }
});

test('the state of a thread whose run is being stopped is told when it has stopped', async () => {
  const [owner, reader] = cluster.servers;
  if (owner === undefined || reader === undefined) throw new Error('two servers were asked for');
  speakWith(SDKS[0]);
  const threadId = await newThread();
  // Held still, so that the other executes the run.
  reader.kill('SIGSTOP');
  const run = await client.runs.create(threadId, 'remote', { input: human('slow 200'), streamMode: 'messages-tuple' });
  for await (const part of client.runs.joinStream(threadId, run.run_id)) if (part.event === 'messages') break;
  reader.kill('SIGCONT');
  owner.kill('SIGSTOP');
  await other.runs.cancel(threadId, run.run_id);
  const told = Promise.all([other.threads.getState(threadId), other.threads.getHistory(threadId)]);
  // Time enough for an answer: these come after it, one by one, and are answered.
  for (let n = 0; n < 20; n += 1) expect((await other.runs.get(threadId, run.run_id)).status).toBe('running');
  owner.kill('SIGCONT');
  const [state, [latest]] = await told;
  expect(state.next).toEqual([]);
  expect(textsOf(state.values)).toEqual(['slow 200', expect.stringMatching(/^w0 /)]);
  expect(latest).toEqual(state);
});

describe.each(SDKS)('$name', (sdk) => {
  beforeAll(() => speakWith(sdk));

  describe('a stream', () => {
    test('is the same for every joiner, on every process, whole or from an id', async () => {
      const threadId = await newThread();
      let runId = '';
      const source: Part[] = [];
      const joined = Promise.withResolvers<Part[]>();
      const modes = ['values', 'messages-tuple', 'updates'] as const;
      const stream = client.runs.stream(threadId, 'remote', {
        input: human('slow 8'),
        streamMode: [...modes],
        onRunCreated: (run) => {
          runId = run.run_id;
          partsOf(other.runs.joinStream(threadId, runId, { lastEventId: '-1' })).then(joined.resolve, joined.reject);
        },
      });
      for await (const part of stream) source.push(part as Part);
      expect(source.map(({ id }) => id)).toEqual(source.map((_part, index) => String(index)));
      expect(names(source)).toEqual(new Set(['metadata', 'values', 'messages', 'updates']));
      expect(source.filter(({ event }) => event === 'messages')).toHaveLength(8);
      expect(await joined.promise).toEqual(source);
      expect(await partsOf(other.runs.joinStream(threadId, runId, { lastEventId: '3' }))).toEqual(source.slice(4));
      expect(await partsOf(other.runs.joinStream(threadId, runId))).toEqual(source);
      // What was told is so: the thread is idle when its stream has ended.
      expect((await other.threads.get(threadId)).status).toBe('idle');
    });

    test('of a failed run ends with an error that tells nothing of the graph', async () => {
      const parts = await partsOf(
        client.runs.stream(await newThread(), 'remote', { input: human('fail'), streamMode: 'values' }),
      );
      expect(parts.at(-1)).toMatchObject({ event: 'error', data: { error: 'GRAPH_ERROR' } });
      expect(JSON.stringify(parts)).not.toContain('I will not');
    });

    test.each(['messages', 'events', 'debug', 'tasks', 'checkpoints'] as const)('mode %s', async (streamMode) => {
      const parts = await partsOf(client.runs.stream(await newThread(), 'remote', { input: human('hi'), streamMode }));
      expect([...names(parts)].every((name) => name === 'metadata' || name.startsWith(streamMode))).toBe(true);
      expect(parts.length).toBeGreaterThan(2);
    });

    test('names where it is and where it can be joined again', async () => {
      const threadId = await newThread();
      const [server] = cluster.servers;
      const response = await fetch(`${server?.url}/threads/${threadId}/runs/stream`, {
        method: 'POST',
        headers: { 'content-type': 'application/json' },
        body: JSON.stringify({ assistant_id: 'remote', input: human('hi') }),
      });
      await response.text();
      const place = response.headers.get('content-location');
      expect(place).toMatch(new RegExp(`^/threads/${threadId}/runs/[0-9a-f-]{36}$`));
      expect(response.headers.get('location')).toBe(`${place}/stream`);
    });

    test('of a client that leaves is stopped where the run says so', async () => {
      const threadId = await newThread();
      const leaving = new AbortController();
      let runId = '';
      const stream = client.runs.stream(threadId, 'remote', {
        input: human('slow 200'),
        streamMode: 'messages-tuple',
        onDisconnect: 'cancel',
        signal: leaving.signal,
        onRunCreated: (run) => {
          runId = run.run_id;
        },
      });
      for await (const part of stream) if (part.event === 'messages') leaving.abort();
      await until(async () => (await other.runs.get(threadId, runId)).status === 'interrupted', {
        message: 'the run to stop',
      });
    });
  });

  describe('a question to a person', () => {
    test('is told by the stream, the thread and its state; the answer goes on from there', async () => {
      const threadId = await newThread();
      const asked = await partsOf(
        client.runs.stream(threadId, 'remote', { input: human('ask'), streamMode: ['values', 'updates'] }),
      );
      expect(asked.at(-1)?.data).toMatchObject({ __interrupt__: [{ value: { question: 'go on?' } }] });
      const thread = await other.threads.get(threadId);
      expect(thread.status).toBe('interrupted');
      expect(Object.values(thread.interrupts)).toMatchObject([[{ value: { question: 'go on?' } }]]);
      const state = await other.threads.getState(threadId);
      expect(state).toMatchObject({ next: ['gate'], tasks: [{ interrupts: [{ value: { question: 'go on?' } }] }] });
      const values = await other.runs.wait(threadId, 'remote', { command: { resume: 'yes' } });
      expect(textsOf(values)).toEqual(['ask', 'answer: yes']);
      expect((await client.threads.get(threadId)).status).toBe('idle');
    });

    test('may be passed over by a new message', async () => {
      const threadId = await newThread();
      await client.runs.wait(threadId, 'remote', { input: human('ask') });
      expect(textsOf(await client.runs.wait(threadId, 'remote', { input: human('hi') })).at(-1)).toBe(
        'w0 w1 w2 w3 w4 ',
      );
      expect((await client.threads.get(threadId)).interrupts).toEqual({});
    });
  });

  describe('runs of one thread', () => {
    test('reject, enqueue', async () => {
      const threadId = await newThread();
      const first = await client.runs.create(threadId, 'remote', { input: human('slow 10') });
      await expect(other.runs.create(threadId, 'remote', { input: human('hi') })).rejects.toThrow(
        /422.*already running/,
      );
      const second = await other.runs.create(threadId, 'remote', { input: human('hi'), multitaskStrategy: 'enqueue' });
      await client.runs.join(threadId, second.run_id);
      const listed = await client.runs.list(threadId);
      expect(listed.map(({ run_id, status }) => [run_id, status])).toEqual([
        [second.run_id, 'success'],
        [first.run_id, 'success'],
      ]);
      expect((await client.runs.list(threadId, { limit: 1, offset: 1 })).map(({ run_id }) => run_id)).toEqual([
        first.run_id,
      ]);
    });

    test.each(['interrupt', 'rollback'] as const)('%s', async (multitaskStrategy) => {
      const threadId = await newThread();
      const first = await client.runs.create(threadId, 'remote', { input: human('slow 200') });
      await until(isRunning(threadId, first.run_id), { message: 'the first run to run' });
      const second = await other.runs.create(threadId, 'remote', { input: human('hi'), multitaskStrategy });
      await client.runs.join(threadId, second.run_id);
      const said = textsOf((await client.threads.getState(threadId)).values);
      if (multitaskStrategy === 'rollback') {
        await expect(client.runs.get(threadId, first.run_id)).rejects.toThrow(/404/);
        expect(said).toEqual(['hi', 'w0 w1 w2 w3 w4 ']);
        expect(await client.runs.list(threadId)).toHaveLength(1);
      } else {
        expect((await client.runs.get(threadId, first.run_id)).status).toBe('interrupted');
        expect(said.slice(-2)).toEqual(['hi', 'w0 w1 w2 w3 w4 ']);
      }
    });

    test('one that is being stopped: its state is read at its end, with nothing left to do, and the next run comes after it', async () => {
      const threadId = await newThread();
      const run = await client.runs.create(threadId, 'remote', {
        input: human('slow 200'),
        streamMode: 'messages-tuple',
      });
      for await (const part of client.runs.joinStream(threadId, run.run_id)) if (part.event === 'messages') break;
      await client.runs.cancel(threadId, run.run_id);
      const next = await other.runs.create(threadId, 'remote', { input: human('hi'), afterSeconds: 60 });
      const state = await other.threads.getState(threadId);
      expect(state).toMatchObject({ next: [], tasks: [] });
      expect(textsOf(state.values)).toEqual(['slow 200', expect.stringMatching(/^w0 /)]);
      const [latest] = await client.threads.getHistory(threadId);
      expect(latest).toEqual(state);
      expect((await client.runs.get(threadId, run.run_id)).status).toBe('interrupted');
      await client.runs.cancel(threadId, next.run_id);
    });

    test('cancel answers 202 at once, 204 when it waits; rollback of a running run puts the thread back', async () => {
      const threadId = await newThread();
      await client.runs.wait(threadId, 'remote', { input: human('hi') });
      const before = await client.threads.getState(threadId);
      const run = await client.runs.create(threadId, 'remote', { input: human('slow 200') });
      await until(isRunning(threadId, run.run_id), { message: 'the run to run' });
      const [, server] = cluster.servers;
      if (server === undefined) throw new Error('two servers were asked for');
      const path = `/threads/${threadId}/runs/${run.run_id}/cancel`;
      expect((await call(server, 'POST', `${path}?wait=0&action=rollback`)).status).toBe(202);
      expect((await call(server, 'POST', `${path}?wait=1&action=rollback`).catch(() => ({ status: 404 }))).status).toBe(
        204,
      );
      expect(await client.threads.getState(threadId)).toEqual(before);
      expect((await client.threads.get(threadId)).status).toBe('idle');
    });
  });

  describe('state', () => {
    test('is edited beside the runs, and not under them', async () => {
      const threadId = await newThread();
      await client.runs.wait(threadId, 'remote', { input: human('hi') });
      await other.threads.updateState(threadId, { values: { said: 'edited' } });
      expect((await client.threads.getState(threadId)).values).toMatchObject({ said: 'edited' });
      const run = await client.runs.create(threadId, 'remote', { input: human('slow 100') });
      await expect(other.threads.updateState(threadId, { values: { said: 'x' } })).rejects.toThrow(/409.*busy/);
      await client.runs.cancel(threadId, run.run_id, true);
    });

    test('a run can start from a former checkpoint', async () => {
      const threadId = await newThread();
      await client.runs.wait(threadId, 'remote', { input: human('first') });
      const { checkpoint } = await client.threads.getState(threadId);
      await client.runs.wait(threadId, 'remote', { input: human('second') });
      const values = await other.runs.wait(threadId, 'remote', { input: human('other'), checkpoint });
      expect(textsOf(values).filter((text) => !String(text).startsWith('w'))).toEqual(['first', 'other']);
      const history = await client.threads.getHistory(threadId, { limit: 100 });
      expect(history[0]?.checkpoint.checkpoint_id).not.toBe(checkpoint.checkpoint_id);
    });

    test('can be marked, and pruned to the latest', async () => {
      const threadId = await newThread();
      for (const text of ['one', 'two', 'three']) await client.runs.wait(threadId, 'remote', { input: human(text) });
      await other.threads.patchState(threadId, { marked: true });
      const before = await client.threads.getHistory(threadId, { limit: 100 });
      expect(before[0]?.metadata).toMatchObject({ marked: true });
      expect(await other.threads.prune([threadId, randomUUID()], { strategy: 'keep_latest' })).toEqual({
        pruned_count: 1,
      });
      const after = await client.threads.getHistory(threadId, { limit: 100 });
      expect(after.length).toBeLessThan(before.length / 2);
      expect(after[0]).toEqual(before[0]);
      expect(textsOf(await client.runs.wait(threadId, 'remote', { input: human('four') }))).toContain('one');
      expect(await client.threads.prune([threadId])).toEqual({ pruned_count: 1 });
      await expect(client.threads.get(threadId)).rejects.toThrow(/404/);
    });

    test('is copied whole', async () => {
      const threadId = await newThread();
      await client.runs.wait(threadId, 'remote', { input: human('hi') });
      const copy = await other.threads.copy(threadId);
      expect((await client.threads.getState(copy.thread_id)).values).toEqual(
        (await client.threads.getState(threadId)).values,
      );
      expect(await client.threads.getHistory(copy.thread_id)).toHaveLength(
        (await client.threads.getHistory(threadId)).length,
      );
    });
  });

  test('graphs and clients share the store', async () => {
    await client.store.putItem(['remote'], 'greeting', { text: 'hello' });
    const values = await other.runs.wait(await newThread(), 'remote', { input: human('recall') });
    expect(textsOf(values).at(-1)).toBe('hello');
    expect((await other.store.searchItems(['remote'])).items).toMatchObject([
      { key: 'greeting', value: { text: 'hello' } },
    ]);
    expect((await client.store.listNamespaces()).namespaces).toEqual([['remote']]);
    await client.store.deleteItem(['remote'], 'greeting');
    expect(await other.store.getItem(['remote'], 'greeting')).toBeNull();
  });

  test('a run without a thread leaves none behind in the lists', async () => {
    const before = await client.threads.count();
    expect(textsOf(await client.runs.wait(null, 'remote', { input: human('hi') }))).toHaveLength(2);
    expect(names(await partsOf(client.runs.stream(null, 'remote', { input: human('hi') })))).toEqual(
      new Set(['metadata', 'values']),
    );
    expect(await client.threads.count()).toBe(before);
  });

  test('a run made here is one of /api/v1 too, and the other way round', async () => {
    const threadId = await newThread();
    const run = await client.runs.create(threadId, 'remote', { input: human('hi') });
    await client.runs.join(threadId, run.run_id);
    const [server] = cluster.servers;
    if (server === undefined) throw new Error('a server was asked for');
    const turns = await call<{ turns: unknown[] }>(server, 'GET', `/api/v1/threads/${threadId}/turns`);
    expect(turns.body.turns).toMatchObject([{ question: { content: 'hi' }, answer: { content: 'w0 w1 w2 w3 w4 ' } }]);
    const sent = await call<{ run_id: string }>(server, 'POST', `/api/v1/threads/${threadId}/messages`, {
      content: 'more',
    });
    await client.runs.join(threadId, sent.body.run_id);
    expect(names(await partsOf(client.runs.joinStream(threadId, sent.body.run_id)))).toContain('messages');
    expect(textsOf((await client.threads.getState(threadId)).values)).toContain('more');
  });

  test('a graph of plain annotations has the schemas of its types, where TypeScript is installed', async () => {
    const { assistant_id } = await client.assistants.create({ graphId: 'remote' });
    const state = {
      type: 'object',
      properties: {
        said: { type: ['null', 'string'] },
        messages: { type: 'array', items: { $ref: expect.stringMatching(/^#\/definitions\/BaseMessage</) } },
      },
      $schema: 'http://json-schema.org/draft-07/schema#',
    };
    const none = { type: 'object', $schema: state.$schema };
    expect(await client.assistants.getSchemas(assistant_id)).toMatchObject({
      graph_id: 'remote',
      state_schema: state,
      input_schema: state,
      output_schema: state,
      config_schema: none,
      context_schema: none,
    });
  });

  test('a factory is told what its graph is for, and of a run its context', async () => {
    const context = { tenant: 'acme' };
    const { assistant_id } = await client.assistants.create({ graphId: 'told-use' });
    const { nodes } = await client.assistants.getGraph(assistant_id);
    expect(nodes.map(({ id }) => id)).toContain('assistants.read');
    const threadId = await newThread();
    const run = { input: { written: [] }, context };
    const ran = ['threads.create_run of acme', 'threads.create_run of acme'];
    expect(await client.runs.wait(threadId, assistant_id, run)).toEqual({ written: ran, read: 'threads.read' });
    await client.threads.updateState(threadId, { values: { written: [] } });
    expect((await client.threads.getState(threadId)).values).toEqual({
      written: [...ran, 'threads.update'],
      read: 'threads.read',
    });
  });

  test('unknown things are 404 in words, and what does not fit is told as zod tells it', async () => {
    const nobody = randomUUID();
    await expect(client.threads.get(nobody)).rejects.toThrow(`HTTP 404: Thread with ID ${nobody} not found`);
    await expect(client.assistants.get(nobody)).rejects.toThrow('HTTP 404: Assistant not found');
    await expect(client.runs.create(await newThread(), 'nothing', {})).rejects.toThrow(
      /404: No assistant found for "nothing"/,
    );
    const [server] = cluster.servers;
    if (server === undefined) throw new Error('a server was asked for');
    expect(await call(server, 'POST', '/threads/search', { limit: 'many' })).toMatchObject({
      status: 400,
      body: { success: false, error: { name: 'ZodError', issues: [{ path: ['limit'] }] } },
    });
  });

  test('pages say how many there are, and where the next begins', async () => {
    const tag = randomUUID();
    for (let n = 0; n < 3; n += 1) await client.threads.create({ metadata: { tag } });
    const [server] = cluster.servers;
    if (server === undefined) throw new Error('a server was asked for');
    const page = (offset: number) => call(server, 'POST', '/threads/search', { metadata: { tag }, limit: 2, offset });
    const [first, last] = [await page(0), await page(2)];
    expect([first.headers.get('x-pagination-total'), first.headers.get('x-pagination-next')]).toEqual(['3', '2']);
    expect([last.headers.get('x-pagination-total'), last.headers.get('x-pagination-next')]).toEqual(['3', null]);
  });
});
