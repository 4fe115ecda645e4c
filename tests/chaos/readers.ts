/** A client that reads a run to its end, however often its connection breaks, as a good client does: with its last id, on any server. */
import { openSse, type SseStream } from '#tests/support/sse.ts';
import { until } from '#tests/support/until.ts';
import type { History, Reading } from './history.ts';
import type { Rng } from './rng.ts';
import type { ChaosServer } from './stage.ts';

export interface Reader {
  readonly reading: Reading;
  /** How many frames of text it has. */
  readonly chunks: number;
  /** Resolves when the run has ended for it, or it gave up. */
  readonly done: Promise<Reading>;
  /** Resolves when it has received that many frames of text, or has ended. */
  hasChunks(count: number, timeoutMs?: number): Promise<void>;
  /** Cuts its connection; it comes back with its last id. */
  cut(): void;
  /** It leaves for good. */
  stop(): void;
}

export interface ReaderOptions {
  name: string;
  runId: string;
  threadId: string;
  owner: string;
  /** Its first connection; later ones go anywhere. */
  on?: ChaosServer | undefined;
  /** Begins after this id. */
  from?: number | undefined;
  /** Stays on the first server while that is reachable. */
  faithful?: boolean | undefined;
  /** Without a frame for this long it gives up; 60 s by default. */
  patienceMs?: number | undefined;
  /** Without a byte for this long a connection counts as dead; 8 s by default (heartbeats come every 2 s). */
  silenceMs?: number | undefined;
}

/** Heartbeats come every 2 s: a connection that gives no byte for this long is a dead one. */
const SILENCE_MS = 8_000;
const AGAIN_MS = 100;

export function startReader(
  deps: { history: History; servers: () => ChaosServer[]; rng: Rng },
  options: ReaderOptions,
): Reader {
  const { runId, threadId, owner, patienceMs = 60_000, silenceMs = SILENCE_MS } = options;
  const reading: Reading = { name: options.name, runId, from: options.from ?? null, frames: [], ended: null };
  deps.history.readings.push(reading);
  let stream: SseStream | null = null;
  let stopped = false;
  let connection = 0;
  let chunks = 0;
  let lastNewsMs = performance.now();

  function serverNow(): ChaosServer | null {
    const { on } = options;
    if (on?.reachable === true && (connection === 0 || options.faithful === true)) return on;
    const there = deps.servers();
    return there.length === 0 ? null : deps.rng.pick(there);
  }

  async function open(): Promise<SseStream | null> {
    const server = serverNow();
    if (server === null) return null;
    const last = reading.frames.findLast((frame) => frame.id !== null)?.id ?? reading.from;
    const cursor = last === null ? '' : `&last_event_id=${last}`;
    const url = `${server.url}/api/v1/threads/${threadId}/messages/stream?run_id=${runId}${cursor}`;
    const opening = openSse(url, { headers: { 'x-dev-user': owner } });
    const late = new Promise<null>((resolve) => setTimeout(resolve, silenceMs, null).unref());
    const opened = await Promise.race([opening, late]);
    if (opened === null) opening.then((one) => one.close()).catch(() => undefined);
    return opened;
  }

  /** Everything one connection gives. */
  async function pump(open: SseStream): Promise<void> {
    let taken = 0;
    let bytes = 0;
    let lastByteMs = performance.now();
    let over = false;
    void open.closed.then(() => {
      over = true;
    });
    for (;;) {
      const done = over;
      for (; taken < open.frames.length; taken += 1) {
        const frame = open.frames[taken];
        if (frame === undefined) break;
        const id = frame.id === undefined ? null : Number(frame.id);
        reading.frames.push({ event: frame.event, id, data: frame.data, atMs: frame.atMs, connection });
        if (frame.event === 'message_chunk') chunks += 1;
        if (frame.event === 'run_end') reading.ended = 'end';
        lastNewsMs = performance.now();
      }
      if (done || reading.ended !== null) return;
      if (open.raw().length > bytes) {
        bytes = open.raw().length;
        lastByteMs = performance.now();
      }
      if (stopped || performance.now() - lastByteMs > silenceMs) return open.close();
      await new Promise((resolve) => setTimeout(resolve, 5));
    }
  }

  /** Only the last frame of an event has an id; what came of an event that was cut off comes again. */
  function forgetUnfinished(): void {
    while (reading.ended === null && reading.frames.at(-1)?.id === null) {
      if (reading.frames.pop()?.event === 'message_chunk') chunks -= 1;
    }
  }

  async function run(): Promise<Reading> {
    while (reading.ended === null) {
      if (stopped) reading.ended = 'stopped';
      else if (performance.now() - lastNewsMs > patienceMs) reading.ended = 'lost';
      if (reading.ended !== null) break;
      stream = await open().catch(() => null);
      if (stream?.status === 410) reading.ended = 'expired';
      else if (stream?.status === 200) await pump(stream);
      forgetUnfinished();
      if (reading.ended === null) await new Promise((resolve) => setTimeout(resolve, AGAIN_MS));
      connection += 1;
    }
    stream?.close();
    return reading;
  }
  const done = run();

  return {
    reading,
    get chunks() {
      return chunks;
    },
    done,
    async hasChunks(count, timeoutMs = 30_000) {
      await until(() => chunks >= count || reading.ended !== null, { timeoutMs, message: `${count} pieces of text` });
    },
    cut: () => stream?.close(),
    stop() {
      stopped = true;
    },
  };
}
