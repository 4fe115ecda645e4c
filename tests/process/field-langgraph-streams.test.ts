/**
 * What clients of the LangGraph dialect are told when they come again (field cases A14, A16), whatever they ask to see (A17)
 * and whatever they send again (A18), and how those who wait are told of an end (A44).
 */
import { fileURLToPath } from 'node:url';
import type { Client, StreamMode } from '@langchain/langgraph-sdk';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type Cluster, ended, follow, send, startCluster } from '#tests/support/cluster.ts';
import { say } from '#tests/support/fake-model-script.ts';
import {
  clientOf,
  human,
  messagesOf,
  type Part,
  partsOf,
  partsUntil,
  type SaidMessage,
  textsOf,
} from '#tests/support/langgraph-client.ts';
import type { TestServer } from '#tests/support/server.ts';
import { until } from '#tests/support/until.ts';

const words = (count: number): string => Array.from({ length: count }, (_, index) => `w${index}`).join(' ');

let cluster: Cluster;
let a: TestServer;
let client: Client;
/** Speaks to the other process. */
let other: Client;
/** Begun at once, so that its time is over when its test looks. */
let overdue: { thread_id: string; run_id: string };

const RUN_TIMEOUT = '20s';

beforeAll(async () => {
  const file = (name: string) => fileURLToPath(new URL(`../support/graphs/${name}.ts`, import.meta.url));
  const endings = ['throwing', 'endless', 'waiting'].map((name) => [name, `${file('endings')}:${name}`]);
  cluster = await startCluster({
    size: 2,
    model: { script: () => say(words(20), { delayMs: 20 }) },
    server: {
      config: {
        graphs: {
          models: `${file('nested')}:models`,
          idless: `${file('plain')}:idless`,
          echo: `${file('plain')}:uncompiled`,
          remote: `${file('remote')}:graph`,
          pages: `${file('pages')}:pages`,
          ...Object.fromEntries(endings),
        },
        runs: { timeout: RUN_TIMEOUT },
      },
    },
  });
  let b: TestServer;
  [a, b] = cluster.servers as [TestServer, TestServer];
  [client, other] = [clientOf(a), clientOf(b)];
  const thread_id = await newThread();
  overdue = { thread_id, run_id: (await client.runs.create(thread_id, 'waiting', { input: {} })).run_id };
});
afterAll(() => cluster?.stop());

const newThread = async (): Promise<string> => (await client.threads.create()).thread_id;
const state = async (threadId: string): Promise<unknown> => (await other.threads.getState(threadId)).values;
const isRunning = (threadId: string, runId: string) =>
  until(async () => (await client.runs.get(threadId, runId)).status === 'running', { message: 'the run to run' });
/** Names of events without the ids of tasks, which are another run's. */
const kinds = (parts: Part[]): string[] =>
  [...new Set(parts.map(({ event }) => event.replace(/:[0-9a-f-]{36}/g, '')))].sort();

describe('a run with nested graphs (A14)', () => {
  const modes: StreamMode[] = ['messages-tuple', 'updates', 'values'];
  const ask = {
    input: human('go'),
    streamMode: modes,
    streamSubgraphs: true,
    config: { configurable: { ask: true } },
  };

  test('whoever joins again, with or without modes, is told the rest of every level, and what the inner graph asks', async () => {
    const undisturbed = await partsOf(client.runs.stream(await newThread(), 'models', ask));
    expect(kinds(undisturbed)).toEqual(
      ['metadata', 'messages|inner', 'messages', 'updates|inner', 'updates', 'values', 'values|inner'].sort(),
    );

    const threadId = await newThread();
    let runId = '';
    const seen = await partsUntil(
      (signal) =>
        client.runs.stream(threadId, 'models', {
          ...ask,
          signal,
          onRunCreated: ({ run_id }) => {
            runId = run_id;
          },
        }),
      (parts) => parts.filter(({ event }) => event.startsWith('messages|inner')).length === 3,
    );
    const lastEventId = String(seen.at(-1)?.id);
    const join = (streamMode?: StreamMode[]) =>
      partsOf(other.runs.joinStream(threadId, runId, { lastEventId, ...(streamMode && { streamMode }) }));
    const [named, unnamed, some] = await Promise.all([join(modes), join(), join(['updates'])]);
    const whole = await partsOf(client.runs.joinStream(threadId, runId, { lastEventId: '-1' }));
    expect([...seen, ...unnamed]).toEqual(whole);
    expect(named).toEqual(unnamed);
    expect(kinds(whole)).toEqual(kinds(undisturbed));
    expect(whole.map(({ event }) => event.replace(/:[0-9a-f-]{36}/g, ''))).toEqual(
      undisturbed.map(({ event }) => event.replace(/:[0-9a-f-]{36}/g, '')),
    );
    // A mode is what stands before the place: named alone it comes from every level, and what it leaves out keeps its ids.
    expect(some).toEqual(unnamed.filter(({ event }) => /^(updates|metadata|error)\b/.test(event)));
    for (const told of [named, some]) {
      expect(
        told.filter(({ data }) => JSON.stringify(data).includes('inner?')).map(({ event }) => event),
      ).toContainEqual(expect.stringMatching(/^updates\|inner:/));
    }
    // Afterwards too, and the question is answered where it was asked.
    expect(await join(modes)).toEqual(unnamed);
    const values = await other.runs.wait(threadId, 'models', { command: { resume: 'yes' }, config: ask.config });
    expect(textsOf(values).at(-1)).toBe('yes');
  });
});

describe('a page that is loaded again in the middle of a turn (A16)', () => {
  /** As a page does it: what the state holds, and over it what the stream says, by message id. */
  function shown(before: SaidMessage[], parts: Part[]): SaidMessage[][] {
    const views: SaidMessage[][] = [];
    let held = before;
    const spoken = new Map<string, SaidMessage>();
    for (const { event, data } of parts) {
      if (event === 'values') held = messagesOf(data);
      if (event === 'messages') {
        const [{ id, type, content }] = data as [SaidMessage];
        spoken.set(id, { id, type, content: `${String(spoken.get(id)?.content ?? '')}${String(content)}` });
      }
      const ids = new Set(held.map(({ id }) => id));
      views.push([...held, ...[...spoken.values()].filter(({ id }) => !ids.has(id))]);
    }
    return views;
  }

  test('has the first answer once, unchanged, and the second under one id that stays', async () => {
    const threadId = await newThread();
    await client.runs.wait(threadId, 'remote', { input: human('first') });
    const [asked, answered] = messagesOf(await state(threadId)) as [SaidMessage, SaidMessage];
    const { run_id: runId } = await client.runs.create(threadId, 'remote', {
      input: human('slow 40'),
      streamMode: ['values', 'messages-tuple'],
    });
    const reloads: Promise<{ before: SaidMessage[]; parts: Part[] }>[] = [];
    const reload = async () => {
      const before = messagesOf(await state(threadId));
      return { before, parts: await partsOf(other.runs.joinStream(threadId, runId, { lastEventId: '-1' })) };
    };
    let spoken = 0;
    await partsOf(client.runs.joinStream(threadId, runId), ({ event }) => {
      if (event === 'messages') spoken += 1;
      if (event === 'messages' && (spoken === 12 || spoken === 28)) reloads.push(reload());
    });
    reloads.push(reload());
    const final = messagesOf(await state(threadId));
    expect(final.map(({ type }) => type)).toEqual(['human', 'ai', 'human', 'ai']);
    expect(final.slice(0, 2)).toEqual([asked, answered]);
    expect(await Promise.all(reloads)).toHaveLength(3);
    for (const { before, parts } of await Promise.all(reloads)) {
      expect(before.slice(0, 3)).toEqual(final.slice(0, 3));
      const views = shown(before, parts);
      for (const view of views) {
        expect(view.slice(0, 3)).toEqual(final.slice(0, 3));
        expect(view.slice(3).map(({ id }) => id)).toEqual(view.length === 3 ? [] : [final[3]?.id]);
      }
      expect(views.at(-1)).toEqual(final);
    }
  });
});

describe('two messages without an id in one answer (A17)', () => {
  const TEXTS = ['go', 'one', 'two', 'three'];
  const modes = ['messages-tuple', 'messages', 'updates', 'values', 'events', 'debug', 'tasks', 'checkpoints'] as const;

  async function expectAll(threadId: string, told?: Part[]): Promise<void> {
    const stored = messagesOf(await state(threadId));
    expect(stored.map(({ content }) => content)).toEqual(TEXTS);
    const ids = stored.map(({ id }) => id);
    expect(new Set(ids).size).toBe(4);
    if (told === undefined) return;
    // Every id that was told of one of them is the one that is stored.
    const of = new Map(stored.map(({ content, id }) => [content, id]));
    JSON.stringify(told, (_key, value) => {
      const said = value as Partial<SaidMessage> | null;
      if (typeof said?.content === 'string' && typeof said.id === 'string' && of.has(said.content)) {
        expect(said.id).toBe(of.get(said.content));
      }
      return value;
    });
  }

  test.each([...modes.map((mode) => [mode]), [...modes]])('are both kept: %s %s', async (...streamMode) => {
    const threadId = await newThread();
    const told = await partsOf(client.runs.stream(threadId, 'idless', { input: human('go'), streamMode }));
    await expectAll(threadId, told);
    for (const text of TEXTS.slice(1)) expect(JSON.stringify(told), text).toContain(`"${text}"`);
  });

  test('without a stream, and in the REST dialect', async () => {
    const threadId = await newThread();
    await client.runs.wait(threadId, 'idless', { input: human('go') });
    await expectAll(threadId);
    const sent = await send(a, 'go', { graph: 'idless' });
    const stream = await follow(a, sent);
    await stream.closed;
    await expectAll(sent.thread_id);
  });
});

describe('a client that sends what it has (A18)', () => {
  /** A thread of one turn, and its messages. */
  async function begun(): Promise<{ threadId: string; before: SaidMessage[] }> {
    const threadId = await newThread();
    await client.runs.wait(threadId, 'echo', { input: human('first') });
    return { threadId, before: messagesOf(await state(threadId)) };
  }
  const next = { role: 'human', content: 'next' };
  const NEXT = ['next', 'uncompiled: next'];

  test('all messages under the ids they have, and a new one: no message twice, nothing said again', async () => {
    const { threadId, before } = await begun();
    const values = await other.runs.wait(threadId, 'echo', { input: { messages: [...before, next] } });
    expect(textsOf(values)).toEqual(['first', 'uncompiled: first', ...NEXT]);
    expect(messagesOf(values).slice(0, 2)).toEqual(before);
    expect(await client.runs.list(threadId)).toHaveLength(2);
  });

  test('the new one alone', async () => {
    const { threadId, before } = await begun();
    const values = await other.runs.wait(threadId, 'echo', { input: { messages: [next] } });
    expect(messagesOf(values).slice(0, 2)).toEqual(before);
    expect(textsOf(values).slice(2)).toEqual(NEXT);
  });

  test('old ones under ids that the thread does not know: they are new messages, and the answer is to the last', async () => {
    const { threadId, before } = await begun();
    const fresh = before.map((message, index) => ({ ...message, id: `fresh-${index}` }));
    const values = await other.runs.wait(threadId, 'echo', { input: { messages: [...fresh, next] } });
    expect(messagesOf(values).slice(0, 2)).toEqual(before);
    expect(textsOf(values).slice(2)).toEqual(['first', 'uncompiled: first', ...NEXT]);
    expect(await client.runs.list(threadId)).toHaveLength(2);
  });

  test.each([[{ messages: [] }], [{}], [null]])(
    '%j on a thread with a state: no error, and the history stays',
    async (input) => {
      const { threadId, before } = await begun();
      await other.runs.wait(threadId, 'echo', { input });
      expect(messagesOf(await state(threadId)).slice(0, 2)).toEqual(before);
      expect(textsOf(await other.runs.wait(threadId, 'echo', { input: { messages: [next] } })).slice(-2)).toEqual(NEXT);
    },
  );
});

describe('whoever waits for a run (A44)', () => {
  type Payload = NonNullable<Parameters<Client['runs']['wait']>[2]>;
  interface Waiting {
    threadId: string;
    runId: string;
    /** Of one's own run; this client raises when the body says `__error__`. */
    wait: Promise<unknown>;
    /** Of a run that is there, through the other process; this client gives the body as it is. */
    join: Promise<unknown>;
  }
  async function waiting(graph: string, payload: Payload = {}, threadId?: string): Promise<Waiting> {
    const thread = threadId ?? (await newThread());
    const latest = async () => (await client.runs.list(thread, { limit: 1 }))[0]?.run_id;
    const before = await latest();
    const wait = client.runs.wait(thread, graph, { input: human('go'), ...payload });
    wait.catch(() => undefined);
    // The id is in the headers, which this client shows at the end only.
    const runId = await until(
      async () => {
        const id = await latest();
        return id !== before && id;
      },
      { message: 'the run to be there' },
    );
    const join = other.runs.join(thread, runId);
    join.catch(() => undefined);
    return { threadId: thread, runId, wait, join };
  }
  async function expectFailure({ wait, join }: Waiting, name: string): Promise<void> {
    await expect(wait).rejects.toThrow(name);
    expect(await join).toEqual({ __error__: { error: 'Error', message: expect.stringContaining(name) } });
  }

  test.each([
    ['a node throws', 'throwing', 'GRAPH_ERROR', {}],
    ['the graph takes too many steps', 'endless', 'GraphRecursionError', { config: { recursion_limit: 5 } }],
  ])('is told when %s', async (_why, graph, name, payload) => {
    await expectFailure(await waiting(graph, payload), name);
  });

  test('is told when the run is rolled back, or deleted with its thread', async () => {
    const back = await waiting('waiting');
    await isRunning(back.threadId, back.runId);
    await other.runs.cancel(back.threadId, back.runId, true, 'rollback');
    await expectFailure(back, 'RunRolledBack');
    const gone = await waiting('waiting');
    await isRunning(gone.threadId, gone.runId);
    await other.threads.delete(gone.threadId);
    // Whoever looks between the stop and the deletion still sees the state that was left.
    const ends = await Promise.allSettled([gone.wait, gone.join]);
    for (const end of ends) {
      expect(JSON.stringify(end.status === 'fulfilled' ? end.value : String(end.reason))).toMatch(
        /RunRolledBack|"content":"go"/,
      );
    }
  });

  test('gets the state as it was left when the run is stopped', async () => {
    const stopped = await waiting('waiting');
    await isRunning(stopped.threadId, stopped.runId);
    await other.runs.cancel(stopped.threadId, stopped.runId, true);
    expect(textsOf(await stopped.wait)).toEqual(['go']);
    expect(await stopped.join).toEqual(await stopped.wait);
    expect(await client.runs.get(stopped.threadId, stopped.runId)).toMatchObject({ status: 'interrupted' });
  });

  test('gets what the run itself left, though others have followed on the thread', async () => {
    const first = await waiting('remote', { input: human('slow 5') });
    const second = await waiting('remote', { input: human('slow 10'), multitaskStrategy: 'enqueue' }, first.threadId);
    expect(textsOf(await first.wait)).toEqual(['slow 5', 'w0 w1 w2 w3 w4 ']);
    expect(textsOf(await second.wait)).toHaveLength(4);
    expect(await second.join).toEqual(await second.wait);
    // Also long after both have ended.
    expect(await first.join).toEqual(await first.wait);
    expect(await other.runs.join(first.threadId, first.runId)).toEqual(await first.wait);
  });

  test('is told nothing false when a process dies or leaves: the other tells the end of the run', async () => {
    const { threadId, runId, wait, join } = await waiting('pages', {
      config: { configurable: { count: 40, stepMs: 100 } },
    });
    await isRunning(threadId, runId);
    a.kill('SIGKILL');
    await expect(wait).rejects.toThrow();
    expect(await join).toMatchObject({ step: 40 });
    expect(await ended(cluster.servers[1] as TestServer, runId)).toMatchObject({ status: 'succeeded' });

    const c = await cluster.add();
    const leaving = other.runs.create(threadId, 'waiting', { input: {} });
    const late = other.runs.join(threadId, (await leaving).run_id);
    late.catch(() => undefined);
    await until(async () => (await other.runs.get(threadId, (await leaving).run_id)).status === 'running', {
      message: 'the run to run',
    });
    const left = cluster.servers[1]?.stop();
    await expect(late).rejects.toThrow();
    await clientOf(c).runs.cancel(threadId, (await leaving).run_id, true);
    await left;
  });

  test('is told that the time of the run was over', async () => {
    const { thread_id, run_id } = overdue;
    const last = clientOf(cluster.servers.at(-1) as TestServer);
    const end = await last.runs.join(thread_id, run_id);
    expect(end).toEqual({ __error__: { error: 'Error', message: expect.stringContaining('RUN_TIMEOUT') } });
    expect(await last.runs.get(thread_id, run_id)).toMatchObject({ status: 'timeout' });
    // It is found by that, whatever else has failed on the thread.
    await expect(last.runs.wait(thread_id, 'throwing', { input: {} })).rejects.toThrow('GRAPH_ERROR');
    const found = async (status: 'timeout' | 'error') =>
      (await last.runs.list(thread_id, { status, limit: 1 })).map((run) => run.run_id);
    expect(await found('timeout')).toEqual([run_id]);
    expect(await found('error')).not.toEqual([run_id]);
  });
});
