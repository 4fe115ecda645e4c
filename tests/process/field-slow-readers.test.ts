/** Readers that take little or nothing: the server holds nothing for them, and neither the run nor other readers wait. */
import { fileURLToPath, pathToFileURL } from 'node:url';
import { createParser } from 'eventsource-parser';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type Control, startControl } from '#tests/chaos/control.ts';
import { heldMb } from '#tests/chaos/held-memory.ts';
import { type Cluster, call, ended, follow, type Sent, send, startCluster } from '#tests/support/cluster.ts';
import { dataOf } from '#tests/support/frames.ts';
import type { TestServer } from '#tests/support/server.ts';
import { startSlowService } from '#tests/support/slow-service.ts';
import { until } from '#tests/support/until.ts';

const EVENTS = 900;
const EVENT_BYTES = 32 * 1024;
const READERS = 50;
/** What may be held for 50 readers of a 29 MB run together: 1 MB each, where holding it all would be 29 MB each. */
const MAX_GROWTH_MB = 50;

let cluster: Cluster;
let control: Control;
/** Patient with slow readers, and not. */
let patient: TestServer;
let strict: TestServer;

beforeAll(async () => {
  const flood = fileURLToPath(new URL('../support/graphs/flood.ts', import.meta.url));
  const config = { graphs: { flood: `${flood}:flood` }, server: { stream_write_timeout: '10m' } };
  control = await startControl();
  const preload = pathToFileURL(fileURLToPath(new URL('../chaos/preload.ts', import.meta.url))).href;
  const env = { NODE_OPTIONS: `--import=${preload}`, CHAOS_CONTROL_PORT: String(control.port) };
  cluster = await startCluster({ size: 1, server: { config, env } });
  await cluster.add({ config: { server: { stream_write_timeout: '1s' }, roles: ['http'] } });
  [patient, strict] = cluster.servers as [TestServer, TestServer];
});
afterAll(async () => {
  await cluster?.stop();
  await control?.close();
});

const configOf = (count: number, more: { url?: string } = {}) => ({
  configurable: { count, bytes: EVENT_BYTES, ...more },
});
const numbersOf = (stream: Parameters<typeof dataOf>[0]): number[] =>
  dataOf<{ data: { at: number } }>(stream, 'custom').map(({ data }) => data.at);
const upTo = (count: number): number[] => Array.from({ length: count }, (_, at) => at);

/** What it holds for the readers it has, and whatever else it holds. */
function heldBy({ url, pid }: TestServer): Promise<number> {
  return heldMb({ url, arm: (faults, group = 'main') => control.arm(pid, faults, group) });
}

/** Sends a request and takes the headers, and nothing more until it is told to. */
async function stalled(url: string, init: RequestInit = {}) {
  const abort = new AbortController();
  const response = await fetch(url, {
    ...init,
    headers: { accept: 'text/event-stream', ...init.headers },
    signal: abort.signal,
  });
  return {
    response,
    leave: () => abort.abort(),
    /** Reads the rest; `complete` is false when the connection broke. */
    async catchUp() {
      const frames: { event: string; id: string | undefined; data: string; atMs: number }[] = [];
      const parser = createParser({
        onEvent: ({ event = 'message', id, data }) => frames.push({ event, id, data, atMs: performance.now() }),
      });
      const decoder = new TextDecoder();
      try {
        for await (const bytes of response.body ?? []) parser.feed(decoder.decode(bytes, { stream: true }));
        return { frames, complete: true };
      } catch {
        return { frames, complete: false };
      }
    },
  };
}

/** One run with a reader that keeps up, and `slow` that take nothing. */
async function measured(slow: number, events = EVENTS) {
  const sent = await send(patient, 'flood', { config: configOf(events) });
  const readers = await Promise.all(Array.from({ length: slow }, () => stalled(`${patient.url}${sent.stream_url}`)));
  const fast = await follow(patient, sent);
  await fast.closed;
  const doneAt = Date.now();
  // The others take nothing yet: what is held for them is held now.
  const memoryMb = await heldBy(patient);
  const run = (await ended(patient, sent.run_id)) as unknown as { started_at: string; ended_at: string };
  return {
    fast,
    readers,
    memoryMb,
    runMs: Date.parse(run.ended_at) - Date.parse(run.started_at),
    behindMs: doneAt - Date.parse(run.ended_at),
  };
}

describe('readers that take nothing', () => {
  test('cost little memory, slow down neither the run nor a fast reader, and miss nothing when they read on', async () => {
    await measured(0, 200); // what is compiled and grown on first use
    const alone = await measured(0);
    const crowded = await measured(READERS);
    expect(numbersOf(crowded.fast)).toEqual(upTo(EVENTS));
    expect(crowded.runMs).toBeLessThan(alone.runMs * 2.5 + 1_000);
    expect(crowded.behindMs).toBeLessThan(Math.max(alone.behindMs, 0) + 1_500);
    expect(crowded.memoryMb - alone.memoryMb).toBeLessThan(MAX_GROWTH_MB);

    for (const reader of crowded.readers.slice(3)) reader.leave();
    const rest = await Promise.all(crowded.readers.slice(0, 3).map((reader) => reader.catchUp()));
    for (const caughtUp of rest) {
      expect(caughtUp.complete).toBe(true);
      expect(numbersOf(caughtUp)).toEqual(upTo(EVENTS));
      expect(caughtUp.frames.at(-1)?.event).toBe('run_end');
      expect(dataOf(caughtUp, 'resync_required')).toEqual([]);
    }
  });

  test('are cut off after a while; that is not their leaving, and they go on where they were', async () => {
    const count = 600;
    const service = await startSlowService();
    const config = configOf(count, { url: `${service.url}/flooded` });
    const posted = await stalled(`${strict.url}/api/v1/threads/messages`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ content: 'flood', config, on_disconnect: 'cancel' }),
    });
    const [, threadId, runId] =
      /threads\/(.+)\/messages\/stream\?run_id=(.+)$/.exec(posted.response.headers.get('content-location') ?? '') ?? [];
    const sent: Pick<Sent, 'thread_id' | 'run_id'> = { thread_id: threadId ?? '', run_id: runId ?? '' };
    const cutOffs = async () => {
      const metrics = await (await fetch(`${strict.url}/metrics`)).text();
      return Number(/^runledger_sse_streams_open (\d+)/m.exec(metrics)?.[1]) === 0;
    };
    await until(cutOffs, { timeoutMs: 15_000, message: 'the reader to be cut off' });
    // The run has not ended: a client that left now would stop it.
    expect((await call(patient, 'GET', `/api/v1/runs/${sent.run_id}`)).body).toMatchObject({ status: 'running' });
    service.release('/flooded');
    expect(await ended(patient, sent.run_id)).toMatchObject({ status: 'succeeded' });
    await service.close();
    const before = await posted.catchUp();
    expect(before.complete).toBe(false);
    const rest = await follow(strict, sent, before.frames.findLast(({ id }) => id !== undefined)?.id);
    await rest.closed;
    expect([...numbersOf(before), ...numbersOf(rest)]).toEqual(upTo(count));
    expect(dataOf(rest, 'run_end')).toMatchObject([{ status: 'succeeded' }]);
    expect(await call(patient, 'GET', `/api/v1/runs/${sent.run_id}`)).toMatchObject({
      body: { cancel_requested_at: null },
    });
  });
});
