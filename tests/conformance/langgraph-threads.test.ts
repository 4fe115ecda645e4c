/** Crons, the stream of a whole thread and the time a thread lives, by LangGraph's own client in two versions, on two processes. */
import { randomUUID } from 'node:crypto';
import { fileURLToPath } from 'node:url';
import type { Client } from '@langchain/langgraph-sdk';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { type Cluster, call, startCluster } from '#tests/support/cluster.ts';
import { human, type Part, partsUntil } from '#tests/support/langgraph-client.ts';
import { SDKS, type Sdk } from '#tests/support/sdks.ts';
import { until } from '#tests/support/until.ts';

const GRAPH = fileURLToPath(new URL('../support/graphs/remote.ts', import.meta.url));

let cluster: Cluster;
let client: Client;
/** Speaks to the other process. */
let other: Client;

beforeAll(async () => {
  cluster = await startCluster({ size: 2, server: { config: { graphs: { remote: `${GRAPH}:graph` } } } });
});
afterAll(() => cluster.stop());
beforeEach(() => speakWith(SDKS[0]));

/** From here on the tests speak with this version. */
function speakWith(sdk: Sdk): void {
  const [first, second] = cluster.servers.map(
    ({ url }) => new sdk.Client({ apiUrl: url, callerOptions: { maxRetries: 0 } }),
  );
  if (first === undefined || second === undefined) throw new Error('two servers were asked for');
  [client, other] = [first, second];
}

const newThread = async (): Promise<string> => (await client.threads.create()).thread_id;
const NEVER = '0 0 1 1 *';
const EVERY_SECOND = '* * * * * *';

describe('crons', () => {
  test.each(SDKS)('are created, found, changed and deleted ($name)', async (sdk) => {
    speakWith(sdk);
    const tag = randomUUID();
    const made = await client.crons.create('remote', {
      schedule: NEVER,
      timezone: 'Europe/Berlin',
      endTime: '2100-01-01T00:00:00Z',
      input: human('hi'),
      metadata: { tag },
      config: { configurable: { level: 1 } },
      streamMode: ['values', 'updates'],
      multitaskStrategy: 'enqueue',
    });
    expect(made).toMatchObject({
      thread_id: null,
      schedule: NEVER,
      timezone: 'Europe/Berlin',
      end_time: '2100-01-01T00:00:00.000Z',
      enabled: true,
      on_run_completed: 'delete',
      metadata: { tag },
      payload: { input: human('hi'), config: { configurable: { level: 1 } }, multitask_strategy: 'enqueue' },
    });
    expect(made.next_run_date).toMatch(/-12-31T23:00:00.000Z$/);
    const threadId = await newThread();
    const onThread = await other.crons.createForThread(threadId, 'remote', { schedule: '@yearly', metadata: { tag } });
    expect(onThread.thread_id).toBe(threadId);

    const found = await other.crons.search({ metadata: { tag }, sortBy: 'created_at', sortOrder: 'asc' });
    expect(found.map(({ cron_id }) => cron_id)).toEqual([made.cron_id, onThread.cron_id]);
    expect(await client.crons.search({ threadId, select: ['cron_id', 'schedule'] })).toEqual([
      { cron_id: onThread.cron_id, schedule: '@yearly' },
    ]);
    expect(await client.crons.count({ metadata: { tag }, assistantId: made.assistant_id })).toBe(2);
    expect(await client.crons.count({ assistantId: 'remote', metadata: { tag }, threadId })).toBe(1);

    const changed = await client.crons.update(made.cron_id, { schedule: '0 1 1 1 *', endTime: null, enabled: false });
    expect(changed).toMatchObject({ schedule: '0 1 1 1 *', end_time: null, enabled: false, next_run_date: null });
    expect(changed.payload).toEqual(made.payload);
    expect(await client.crons.search({ metadata: { tag }, enabled: true })).toHaveLength(1);
    for (const { cron_id } of found) await client.crons.delete(cron_id);
    expect(await other.crons.count({ metadata: { tag } })).toBe(0);
    await expect(client.crons.delete(made.cron_id)).rejects.toThrow('HTTP 404: Cron not found');
  });

  test('are refused with the name of what is wrong', async () => {
    const ask = async (body: object, path = '/runs/crons') => {
      const [server] = cluster.servers;
      if (server === undefined) throw new Error('no server');
      const { status, body: answer } = await call<{ error: { name: string; issues: { path: string[] }[] } }>(
        server,
        'POST',
        path,
        { assistant_id: 'remote', schedule: NEVER, ...body },
      );
      return [status, answer.error.name, answer.error.issues[0]?.path];
    };
    expect(await ask({ schedule: 'not a cron' })).toEqual([400, 'ZodError', ['schedule']]);
    expect(await ask({ schedule: '0 0 31 2 *' })).toEqual([400, 'ZodError', ['schedule']]);
    expect(await ask({ timezone: 'Mars/Olympus' })).toEqual([400, 'ZodError', ['timezone']]);
    expect(await ask({ end_time: 'soon' })).toEqual([400, 'ZodError', ['end_time']]);
    expect(await ask({ webhook: 'http://127.0.0.1/' })).toEqual([400, 'ZodError', ['webhook']]);
    await expect(client.crons.create('nobody', { schedule: NEVER })).rejects.toThrow('No assistant found for "nobody"');
    await expect(client.crons.createForThread(randomUUID(), 'remote', { schedule: NEVER })).rejects.toThrow('HTTP 404');
  });

  test('fire, each slot once on two processes, with the assistant as it is then', async () => {
    const { assistant_id } = await client.assistants.create({ graphId: 'remote', metadata: { of: 'assistant' } });
    const cron = await client.crons.create(assistant_id, {
      schedule: EVERY_SECOND,
      input: human('hi'),
      metadata: { k: 'v' },
      onRunCompleted: 'keep',
    });
    const threads = await until(
      async () => {
        const found = await other.threads.search({ metadata: { cron_id: cron.cron_id }, status: 'idle', limit: 100 });
        return found.length >= 3 && found;
      },
      { message: 'three slots to fire', timeoutMs: 30_000 },
    );
    await client.crons.delete(cron.cron_id);
    const runs = await Promise.all(threads.map(async ({ thread_id }) => client.runs.list(thread_id)));
    for (const [run, second] of runs) {
      expect(second).toBeUndefined();
      expect(run).toMatchObject({
        status: 'success',
        assistant_id,
        metadata: { k: 'v', of: 'assistant', cron_id: cron.cron_id },
      });
    }
    const slots = runs.map(([run]) => (run?.metadata as { cron_slot?: string } | undefined)?.cron_slot);
    expect(new Set(slots).size).toBe(slots.length);
  });
});

const ends = (parts: readonly Part[]): unknown[] =>
  parts.flatMap(({ event, data }) => {
    const { status, run_id } = (data ?? {}) as { status?: string; run_id?: string };
    return event === 'metadata' && status === 'run_done' ? [run_id] : [];
  });
const withoutIds = (parts: readonly Part[]) => parts.map(({ event, data }) => ({ event, data }));
const modes = ['values', 'messages-tuple'] as const;

describe('the stream of a thread', () => {
  test.each(SDKS)(
    'tells its runs one after the other, the ones that come later too, and goes on after an id ($name)',
    async (sdk) => {
      speakWith(sdk);
      const threadId = await newThread();
      const watched = partsUntil(
        (signal) => other.threads.joinStream(threadId, { signal, lastEventId: '-1' }),
        (parts) => ends(parts).length === 2,
      );
      const own: Part[][] = [];
      for (const text of ['one', 'two']) {
        const parts: Part[] = [];
        const stream = client.runs.stream(threadId, 'remote', { input: human(text), streamMode: [...modes] });
        for await (const part of stream) parts.push(part as Part);
        own.push(parts);
      }
      const told = await watched;
      const [first, second] = ends(told);
      const done = (run_id: unknown) => ({
        event: 'metadata',
        data: { status: 'run_done', run_id, run_status: 'success' },
      });
      expect(withoutIds(told)).toEqual([
        ...withoutIds(own[0] ?? []),
        done(first),
        ...withoutIds(own[1] ?? []),
        done(second),
      ]);
      // Whoever comes again, on whatever process, is told the rest: from the middle of a run, and from its end.
      const ids = told.flatMap(({ id }, index) => (id === undefined ? [] : [{ id, index }]));
      expect(ids.length).toBeGreaterThan(10);
      for (const at of [2, Math.floor(ids.length / 2) - 1, ids.length - 3]) {
        const { id, index } = ids[at] ?? { id: '', index: 0 };
        const rest = await partsUntil(
          (signal) => client.threads.joinStream(threadId, { signal, lastEventId: id }),
          (parts) => ends(parts).at(-1) === second,
        );
        expect(rest).toEqual(told.slice(index + 1));
      }
    },
  );

  test('without an id tells what runs and what comes; runs come in the order they began', async () => {
    const threadId = await newThread();
    await client.runs.wait(threadId, 'remote', { input: human('long ago') });
    const late = await client.runs.create(threadId, 'remote', { input: human('late'), afterSeconds: 4 });
    const slow = await client.runs.create(threadId, 'remote', {
      input: human('slow 40'),
      streamMode: 'messages-tuple',
      multitaskStrategy: 'enqueue',
    });
    await until(async () => (await client.runs.get(threadId, slow.run_id)).status === 'running', {
      message: 'the run to begin',
    });
    const isEnough = (parts: readonly Part[]) => ends(parts).length === 2;
    const told = await partsUntil((signal) => other.threads.joinStream(threadId, { signal }), isEnough);
    expect(ends(told)).toEqual([slow.run_id, late.run_id]);
    expect(told.filter(({ event }) => event === 'messages')).toHaveLength(40);
    // The delayed run has the lower ordinal, and still comes after.
    const middle = told.findIndex(({ event }) => event === 'messages');
    const rest = await partsUntil(
      (signal) => client.threads.joinStream(threadId, { signal, lastEventId: told[middle]?.id ?? '' }),
      isEnough,
    );
    expect(rest).toEqual(told.slice(middle + 1));
  });

  test.each(SDKS)(
    'in the other modes tells that runs begin and end, and what is written to the state ($name)',
    async (sdk) => {
      speakWith(sdk);
      const threadId = await newThread();
      const { run_id } = await client.runs.create(threadId, 'remote', { input: human('fail') });
      await client.runs.join(threadId, run_id);
      await client.threads.updateState(threadId, { values: human('patched') });
      const told = await partsUntil(
        (signal) =>
          other.threads.joinStream(threadId, { signal, lastEventId: '-1', streamMode: ['lifecycle', 'state_update'] }),
        (parts) => parts.some(({ event }) => event === 'state_update'),
      );
      expect(withoutIds(told)).toMatchObject([
        { event: 'metadata', data: { run_id, attempt: 1 } },
        { event: 'metadata', data: { run_id, status: 'run_done', run_status: 'error' } },
        { event: 'state_update', data: { thread_id: threadId } },
      ]);
      const update = told[2]?.data as { state: { values: { messages: { content: string }[] } } } | undefined;
      expect(update?.state.values.messages.at(-1)?.content).toBe('patched');
    },
  );

  test.each(SDKS)(
    'ends with its thread; refuses an id it did not give, and a thread that is not there ($name)',
    async (sdk) => {
      speakWith(sdk);
      const threadId = await newThread();
      await client.runs.wait(threadId, 'remote', { input: human('hi') });
      let deleted: Promise<void> | null = null;
      const told = await partsUntil(
        (signal) => other.threads.joinStream(threadId, { signal, lastEventId: '-1' }),
        (parts) => {
          if (ends(parts).length === 1) deleted ??= client.threads.delete(threadId);
          return false;
        },
      );
      await deleted;
      expect(ends(told)).toHaveLength(1);
      const join = (lastEventId: string) =>
        partsUntil(
          (signal) => client.threads.joinStream(threadId, { signal, lastEventId }),
          () => true,
        );
      await expect(join('7')).rejects.toThrow('HTTP 400');
      await expect(join('-1')).rejects.toThrow('HTTP 404');
    },
  );
});

describe('the time a thread lives', () => {
  test.each(SDKS)(
    'is said when it is made, changed and removed, and told to those who ask for it ($name)',
    async (sdk) => {
      speakWith(sdk);
      const ttlOf = async (id: string) => {
        const thread = (await other.threads.get(id, { include: ['ttl'] })) as { ttl?: unknown; updated_at: string };
        return thread.ttl;
      };
      const { thread_id: id } = await client.threads.create({ ttl: 60 });
      expect(await ttlOf(id)).toMatchObject({ strategy: 'delete', ttl_minutes: 60 });
      expect(await client.threads.get(id)).not.toHaveProperty('ttl');
      await client.threads.update(id, { ttl: { ttl: 0.5, strategy: 'delete' }, returnMinimal: true });
      const { expires_at } = (await ttlOf(id)) as { expires_at: string };
      expect(Math.abs(Date.parse(expires_at) - Date.now() - 30_000)).toBeLessThan(20_000);
      const copy = await client.threads.copy(id);
      expect(await ttlOf(copy.thread_id)).toMatchObject({ ttl_minutes: 0.5 });
      await client.threads.update(id, { metadata: { a: 1 } });
      expect(await ttlOf(id)).toMatchObject({ ttl_minutes: 0.5 });
      expect(await ttlOf(await newThread())).toBeNull();
      await expect(client.threads.create({ ttl: -1 })).rejects.toThrow('HTTP 400');
    },
  );
});

test.each(SDKS)('a search extracts values from the threads it finds ($name)', async (sdk) => {
  speakWith(sdk);
  const { thread_id: id } = await client.threads.create({ metadata: { extract: true } });
  await client.runs.wait(id, 'remote', { input: human('hi') });
  const [found] = await other.threads.search({
    metadata: { extract: true },
    select: ['thread_id'],
    extract: { last: 'values.messages[-1].content', none: 'values.nothing' },
  });
  expect(found).toEqual({ thread_id: id, extracted: { last: 'w0 w1 w2 w3 w4 ', none: null } });
});
