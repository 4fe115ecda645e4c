/**
 * Workers that die, leave, stand still or have a wrong clock (field cases A03, A04, A05, A29, A30): every run ends once, what
 * was finished is not done again, and nobody who is well loses a run.
 */
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import pg from 'pg';
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import { fold } from '#tests/chaos/fold.ts';
import {
  type Cluster,
  call,
  ended,
  follow,
  type Sent,
  send,
  sendStreaming,
  startCluster,
  textOf,
} from '#tests/support/cluster.ts';
import { lastText, say } from '#tests/support/fake-model-script.ts';
import { dataOf, idsOf } from '#tests/support/frames.ts';
import type { TestServer } from '#tests/support/server.ts';
import { type SlowService, startSlowService } from '#tests/support/slow-service.ts';
import type { SseStream } from '#tests/support/sse.ts';
import { until } from '#tests/support/until.ts';

const words = (count: number): string => Array.from({ length: count }, (_, index) => `w${index}`).join(' ');

let cluster: Cluster;
let service: SlowService;
let ledger: pg.Pool;
let folder: string;

beforeAll(async () => {
  const steps = fileURLToPath(new URL('../support/graphs/steps.ts', import.meta.url));
  const chat = fileURLToPath(new URL('../../src/graphs/chat.ts', import.meta.url));
  const graphs = { chat: `${chat}:graph`, counted: `${steps}:counted`, blocking: `${steps}:blocking` };
  folder = await mkdtemp(join(tmpdir(), 'runledger-crash-'));
  service = await startSlowService();
  // What is said decides how long the answer is.
  const script = (request: Parameters<typeof lastText>[0]) =>
    lastText(request) === 'long' ? say(words(200), { delayMs: 40 }) : say('fine');
  cluster = await startCluster({
    size: 1,
    model: { strict: true, script },
    server: { config: { graphs, runs: { drain_timeout: '1s' } } },
  });
  ledger = new pg.Pool({ connectionString: cluster.database.url, max: 2 });
});
afterAll(async () => {
  await ledger?.end();
  await Promise.all([cluster?.stop(), service?.close(), rm(folder, { recursive: true, force: true })]);
});
/** Every test leaves one server, which is well. */
afterEach(async () => {
  for (const server of cluster.servers.splice(1)) {
    server.kill('SIGCONT');
    server.kill('SIGKILL');
    await server.exit;
  }
});

const first = (): TestServer => cluster.servers[0] as TestServer;
const ordered = (streams: SseStream[]): void => {
  const ids = streams.flatMap(({ frames }) => frames.flatMap(({ id }) => (id === undefined ? [] : [Number(id)])));
  expect(ids).toEqual([...new Set(ids)].sort((x, y) => x - y));
};

/** The one text that a client has put together of what it got on several connections. */
function answerOf(...streams: (SseStream | undefined)[]): string {
  const frames = streams.flatMap((stream) => stream?.frames ?? []);
  const texts = [...fold(frames).texts.values()];
  expect(texts).toHaveLength(1);
  return String(texts[0]);
}

let keys = 0;
const COUNT = 25;

/** A run of many steps on `home`; which steps were done how often is asked of the service. */
function counting(stepMs: number): { body: Record<string, unknown>; times: () => number[] } {
  keys += 1;
  const key = `steps-${keys}`;
  return {
    body: { graph: 'counted', config: { configurable: { url: service.url, key, count: COUNT, stepMs } } },
    times: () => Array.from({ length: COUNT }, (_, n) => service.times(`/${key}/${n}`)),
  };
}

/** At most the step that was in hand when its owner went is done twice. */
function expectNoFinishedStepAgain(times: number[]): void {
  expect(Math.min(...times)).toBe(1);
  expect(times.filter((count) => count > 1).length).toBeLessThanOrEqual(1);
  expect(Math.max(...times)).toBeLessThanOrEqual(2);
}

/** A server that claims what it admits, because the first is held still until `release`. */
async function soleOwner(): Promise<{ owner: TestServer; release: () => void }> {
  const owner = await cluster.add();
  first().kill('SIGSTOP');
  return { owner, release: () => first().kill('SIGCONT') };
}

describe('every worker is killed with runs in hand', () => {
  test('one that is started afterwards serves new runs at once and takes over the others', async () => {
    const second = await cluster.add();
    const many = [counting(150), counting(150)];
    const streams = await Promise.all([
      ...many.map(({ body }, n) => sendStreaming(n === 0 ? first() : second, 'count', body)),
      sendStreaming(first(), 'long'),
      sendStreaming(second, 'long'),
    ]);
    await until(() => many.every(({ times }) => (times()[4] ?? 0) > 0), { message: 'four steps of both' });
    await until(() => streams.slice(2).every((stream) => textOf(stream).includes('w5')), { message: 'some text' });
    // Both at once, and nobody is left.
    for (const server of cluster.servers) server.kill('SIGKILL');
    await Promise.all(cluster.servers.splice(0).map(({ exit }) => exit));
    await Promise.all(streams.map(({ closed }) => closed));
    const fresh = await cluster.add();
    const another = await send(fresh, 'short');
    expect(await ended(fresh, another.run_id)).toMatchObject({ status: 'succeeded' });
    const rests = await Promise.all(
      streams.map((stream) => follow(fresh, idsOf(stream), stream.frames.findLast(({ id }) => id !== undefined)?.id)),
    );
    await Promise.all(rests.map(({ closed }) => closed));
    for (const [n, rest] of rests.entries()) {
      expect(dataOf(rest, 'run_end')).toMatchObject([{ status: 'succeeded' }]);
      expect(dataOf(rest, 'metadata')).toMatchObject([{ takeover: 1 }]);
      ordered([streams[n] as SseStream, rest]);
    }
    for (const { times } of many) expectNoFinishedStepAgain(times());
    // The first owner may have logged more than its reader got before the kill: what counts is what a client puts together.
    for (const [n, stream] of streams.entries()) {
      if (n >= many.length) expect(answerOf(stream, rests[n])).toBe(words(200));
    }
    const { rows } = await ledger.query("select 1 from runs where status in ('queued', 'running')");
    expect(rows).toEqual([]);
    const metrics = await (await fetch(`${fresh.url}/metrics`)).text();
    expect(metrics).toMatch(/^runledger_runs_running 0$/m);
    expect(metrics).toMatch(/^runledger_runs_queued 0$/m);
  }, 120_000);
});

describe('a cancel of a run whose owner is dead', () => {
  test('ends it, tells its readers, and frees the thread', async () => {
    const { owner, release } = await soleOwner();
    const { body, times } = counting(300);
    const sent = await send(owner, 'count', body);
    await until(() => (times()[2] ?? 0) > 0, { message: 'two steps' });
    release();
    owner.kill('SIGKILL');
    await owner.exit;
    const reader = await follow(first(), sent);
    const path = `/api/v1/threads/${sent.thread_id}`;
    const twice = await Promise.all([1, 2].map(() => call(first(), 'POST', `${path}/cancel`)));
    for (const answer of twice) expect(answer).toMatchObject({ status: 200, body: { run_id: sent.run_id } });
    expect(await ended(first(), sent.run_id, 40_000)).toMatchObject({ status: 'cancelled' });
    await reader.closed;
    expect(dataOf(reader, 'run_end')).toMatchObject([{ status: 'cancelled' }]);
    expect((await call(first(), 'GET', path)).body).toMatchObject({ status: 'cancelled' });
    const done = times();
    const next = await send(first(), 'short', { graph: 'chat' }, sent.thread_id);
    expect(await ended(first(), next.run_id)).toMatchObject({ status: 'succeeded' });
    expect(times()).toEqual(done);
  });
});

describe('SIGTERM in a run of many steps', () => {
  async function leave(kill: boolean): Promise<void> {
    const { owner, release } = await soleOwner();
    const { body, times } = counting(200);
    const stream = await sendStreaming(owner, 'count', body);
    await until(() => (times()[4] ?? 0) > 0, { message: 'four steps' });
    release();
    owner.kill('SIGTERM');
    const goneMs = performance.now();
    if (kill) {
      await new Promise((resolve) => setTimeout(resolve, 500));
      owner.kill('SIGKILL');
    }
    expect(await owner.exit).toBe(kill ? 137 : 0);
    expect(performance.now() - goneMs).toBeLessThan(20_000);
    await stream.closed;
    const ids = idsOf(stream);
    const rest = await follow(first(), ids, stream.frames.findLast(({ id }) => id !== undefined)?.id);
    await rest.closed;
    expect(await ended(first(), ids.run_id)).toMatchObject({ status: 'succeeded' });
    expectNoFinishedStepAgain(times());
    ordered([stream, rest]);
    const events = [...stream.frames, ...rest.frames].map(({ event }) => event);
    expect(events).not.toContain('error');
    expect(events).not.toContain('resync_required');
    expect(events.filter((event) => event === 'run_end')).toHaveLength(1);
    const { body: turns } = await call<{ turns: unknown[] }>(first(), 'GET', `/api/v1/threads/${ids.thread_id}/turns`);
    const answer = Array.from({ length: COUNT }, (_, n) => n).join(',');
    expect(turns).toMatchObject({ turns: [{ status: 'succeeded', answer: { content: answer } }] });
  }

  test('it goes on elsewhere, no finished step is done again', () => leave(false));
  test('also when the process is killed in the middle of leaving', () => leave(true));
});

/** Everything stored of a run. */
async function stored({ run_id }: Pick<Sent, 'run_id'>): Promise<unknown> {
  const rows = async (text: string) => (await ledger.query(text, [run_id])).rows;
  return {
    run: await rows('select status, epoch, takeovers, log_end, ended_at from runs where id = $1'),
    messages: await rows('select role, content from messages where run_id = $1 order by seq'),
    checkpoints: await rows(
      'select checkpoint_id, checkpoint, metadata from checkpoints where run_id = $1 order by seq',
    ),
    writes: await rows(
      'select checkpoint_id, task_id, idx, blob from checkpoint_writes where run_id = $1 order by 1, 2, 3',
    ),
  };
}

describe('an owner whose event loop is blocked past its lease', () => {
  test('loses the run to a peer; what it does when it wakes up is refused', async () => {
    const { owner, release } = await soleOwner();
    const file = join(folder, 'go-on');
    const sent = await send(owner, 'block', { graph: 'blocking', config: { configurable: { pid: owner.pid, file } } });
    await until(
      async () => {
        const { rows } = await ledger.query('select 1 from checkpoints where run_id = $1', [sent.run_id]);
        return rows.length >= 2;
      },
      { message: 'the first node to be done' },
    );
    release();
    const reader = await follow(first(), sent);
    expect(await ended(first(), sent.run_id, 50_000)).toMatchObject({ status: 'succeeded' });
    await reader.closed;
    const before = await stored(sent);
    expect(before).toMatchObject({ run: [{ epoch: 3, takeovers: 1 }] });
    // It wakes up with the result of the node in hand.
    await writeFile(file, '');
    await until(() => owner.logs().includes('run lost to another owner; nothing written'), {
      timeoutMs: 30_000,
      message: 'the former owner to notice',
    });
    expect(await stored(sent)).toEqual(before);
    const again = await follow(owner, sent);
    await again.closed;
    expect(again.frames.map(({ id, data }) => [id, data])).toEqual(reader.frames.map(({ id, data }) => [id, data]));
    expect(dataOf(again, 'run_end')).toMatchObject([{ status: 'succeeded' }]);
    const { body } = await call<{ turns: unknown[] }>(owner, 'GET', `/api/v1/threads/${sent.thread_id}/turns`);
    // The first node ran once, on the owner; the second counts where it ended.
    expect(body.turns).toMatchObject([{ answer: { content: `of ${owner.pid},${first().pid}` } }]);
    // It is of use again.
    const next = await send(owner, 'short', { graph: 'chat' }, sent.thread_id);
    expect(await ended(owner, next.run_id)).toMatchObject({ status: 'succeeded' });
  }, 120_000);
});

describe('workers whose clocks are wrong by 90 s, one ahead and one behind', () => {
  const skewed = (ms: number): Promise<TestServer> => {
    const preload = pathToFileURL(fileURLToPath(new URL('../support/skewed-clock.ts', import.meta.url)));
    return cluster.add({ env: { NODE_OPTIONS: `--import=${preload.href}`, SKEW_MS: String(ms) } });
  };

  /** When its last line was written, by its own clock. */
  const clockOf = (server: TestServer): number => Number([...server.logs().matchAll(/"time":(\d+)/g)].at(-1)?.[1]);

  test('take no run from an owner that is well, and turns on all of them stay in order', async () => {
    const { owner, release } = await soleOwner();
    // Longer than a lease.
    const { body, times } = counting(500);
    const sent = await send(owner, 'count', body);
    await until(() => (times()[0] ?? 0) > 0, { message: 'the first step' });
    release();
    const [ahead, behind] = await Promise.all([skewed(90_000), skewed(-90_000)]);
    expect(clockOf(ahead) - Date.now()).toBeGreaterThan(60_000);
    expect(Date.now() - clockOf(behind)).toBeGreaterThan(60_000);
    expect(await ended(ahead, sent.run_id, 40_000)).toMatchObject({ status: 'succeeded' });
    expect(times()).toEqual(Array.from({ length: COUNT }, () => 1));
    const { rows } = await ledger.query('select epoch, takeovers from runs where id = $1', [sent.run_id]);
    expect(rows).toEqual([{ epoch: 1, takeovers: 0 }]);
    // Each in turn executes alone; which one executed is in the row.
    const everybody = [owner, first(), ahead, behind];
    let threadId: string | undefined;
    const said: string[] = [];
    for (const [n, server] of [ahead, owner, behind, ahead, owner].entries()) {
      for (const other of everybody) if (other !== server) other.kill('SIGSTOP');
      const next = await send(server, `turn ${n}`, {}, threadId);
      expect(await ended(server, next.run_id)).toMatchObject({ status: 'succeeded' });
      for (const other of everybody) other.kill('SIGCONT');
      threadId = next.thread_id;
      said.push(`turn ${n}`);
      const told = cluster.model.calls.at(-1)?.body.messages.filter(({ role }) => role === 'user');
      expect(told?.map(({ content }) => content)).toEqual(said);
    }
  }, 120_000);
});
