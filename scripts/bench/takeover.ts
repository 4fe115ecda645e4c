/** kill -9 of the owner of 20 runs in mid answer: how long each run is silent before its next event comes from another worker. */
import type { Client } from './client.ts';
import { format, percentile } from './figures.ts';
import { SHORT_QUESTION } from './loads.ts';
import type { ServerProcess } from './processes.ts';
import { scaled, type Workload } from './workload.ts';

const RUNS = 20;
/** So slow that all are in mid answer when their owner dies. */
const MODEL = 'fake-120-50';
/** A worker judges the death of others when it has been up for 10 s itself. */
const SETTLE_MS = 11_000;
const CLAIM_PATIENCE_MS = 60_000;

/** Without Redis there is one worker only, and nothing to measure. */
export const takeover: Workload = async (bench, options) => {
  if (bench.services.log !== 'Redis') return { rows: [], values: {} };
  const survivor = await bench.freshServer();
  try {
    await pause(SETTLE_MS);
    const silencesMs: number[] = [];
    for (let round = 0; round < scaled(options.repetitions, options); round += 1) {
      const victim = await bench.freshServer(survivor);
      silencesMs.push(...(await killed(survivor, victim)));
      await victim.stop();
    }
    const at = (fraction: number): number => percentile(silencesMs, fraction);
    const row = (what: string, value: number, goal: string) => ({
      what: `kill -9 of the owner of ${RUNS} runs: to a run's next event, ${what}`,
      ours: format(value, 'ms'),
      bare: '',
      ratio: '',
      goal,
    });
    return {
      rows: [row('p50', at(0.5), ''), row('p95', at(0.95), '≤ 2 s'), row('longest', Math.max(...silencesMs), '')],
      values: {
        takeover_runs: silencesMs.length,
        takeover_p50_ms: at(0.5),
        takeover_p95_ms: at(0.95),
        takeover_max_ms: Math.max(...silencesMs),
      },
    };
  } finally {
    await survivor.stop();
  }
};

/** From the kill to the first event of each run, as a viewer on the survivor receives it; the runs then go on to their end. */
async function killed(survivor: ServerProcess, victim: ServerProcess): Promise<number[]> {
  // Held still for a moment, so that the victim claims all it is asked.
  survivor.signal('SIGSTOP');
  const message = { graph: 'chat', content: SHORT_QUESTION, configurable: { model: MODEL } };
  const runs = await Promise.all(Array.from({ length: RUNS }, () => victim.client.start(message)));
  await Promise.all(runs.map((run) => running(victim.client, run.runId)));
  survivor.signal('SIGCONT');
  let killedAtMs = Number.POSITIVE_INFINITY;
  const viewers = runs.map(({ streamPath }) => view(survivor.client, streamPath, () => killedAtMs));
  await Promise.all(viewers.map((viewer) => viewer.speaks));
  victim.signal('SIGKILL');
  killedAtMs = performance.now();
  const silences = await Promise.all(viewers.map((viewer) => viewer.silenceMs));
  await Promise.all(viewers.map((viewer) => viewer.ended));
  return silences;
}

async function running(client: Client, runId: string): Promise<void> {
  const endMs = performance.now() + CLAIM_PATIENCE_MS;
  while (performance.now() < endMs) {
    const { status } = await client.json<{ status: string }>('GET', `/api/v1/runs/${runId}`);
    if (status === 'running') return;
    if (status !== 'queued') throw new Error(`the run ${status} before its owner was killed`);
    await pause(20);
  }
  throw new Error('a run was not claimed');
}

interface View {
  /** Resolves with its first text. */
  speaks: Promise<void>;
  silenceMs: Promise<number>;
  ended: Promise<unknown>;
}

function view(client: Client, path: string, killedAtMs: () => number): View {
  const speaks = Promise.withResolvers<void>();
  const silence = Promise.withResolvers<number>();
  const onPiece = (piece: Buffer): void => {
    const nowMs = performance.now();
    if (piece.includes('message_chunk')) speaks.resolve();
    // Told anew, or going on: what the dead owner had sent before may still arrive with the first pieces after the kill.
    if (nowMs > killedAtMs() && piece.includes('"takeover":1')) silence.resolve(nowMs - killedAtMs());
  };
  const ended = client.follow(path, { keep: true, onPiece }).then((streamed) => {
    const error = new Error(`a viewer saw no takeover: ${streamed.body.slice(-300)}`);
    silence.reject(error);
    speaks.reject(error);
    if (!streamed.body.includes('"status":"succeeded"')) throw error;
  });
  for (const promise of [speaks.promise, silence.promise, ended]) promise.catch(() => undefined);
  return { speaks: speaks.promise, silenceMs: silence.promise, ended };
}

function pause(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}
