/** Many viewers of one run: tokens delivered to all of them, and what each costs while nothing happens. */
import { tokensIn } from './client.ts';
import { format, median } from './figures.ts';
import { SHORT_QUESTION } from './loads.ts';
import type { ProcessUsage } from './probe.ts';
import type { ServerProcess } from './processes.ts';
import { scaled, type Workload } from './workload.ts';

const TOKENS = 300;
const GAP_MS = 2;
/** A second of silence between the tokens: every viewer is there, and waits. */
const SILENT = 'fake-3-1000';

/**
 * On a server of its own, warmed by a few. Memory is what JavaScript holds after a collection: a process that has just
 * started has so much room to spare that hundreds of viewers do not show in its resident size.
 */
export const viewers: Workload = async (bench, options) => {
  const count = scaled(500, options, 200);
  const server = await bench.freshServer();
  try {
    await watch(server, 20, SILENT);
    const silent = await watch(server, count, SILENT);
    const busy: Watched[] = [];
    for (let round = 0; round < Math.min(3, options.repetitions); round += 1) {
      busy.push(await watch(server, count, `fake-${TOKENS}-${GAP_MS}`));
    }
    const tokensPerSecond = median(busy.map((one) => one.tokensPerSecond));
    const cpuUsPerToken = median(busy.map((one) => one.cpuUsPerToken));
    const row = (what: string, ours: string, goal: string) => ({ what, ours, bare: '', ratio: '', goal });
    return {
      rows: [
        row(`${count} viewers of one run: tokens/s delivered in all`, format(tokensPerSecond), ''),
        row(`${count} viewers of one run: CPU of the process per token delivered`, format(cpuUsPerToken, 'µs'), ''),
        row(`${count} viewers of one run: memory each`, format(silent.bytesPerViewer / 1024, 'KB'), '≤ 30 KB'),
      ],
      values: {
        viewers: count,
        viewers_tokens_per_s: tokensPerSecond,
        viewers_cpu_us_per_token: cpuUsPerToken,
        viewers_bytes_each: silent.bytesPerViewer,
      },
    };
  } finally {
    await server.stop();
  }
};

interface Watched {
  tokensPerSecond: number;
  cpuUsPerToken: number;
  bytesPerViewer: number;
}

async function watch({ client, ask }: ServerProcess, count: number, model: string): Promise<Watched> {
  const before = await ask<ProcessUsage>('usage', { collect: true });
  const { streamPath } = await client.start({ graph: 'chat', content: SHORT_QUESTION, configurable: { model } });
  let open = 0;
  const allOpen = Promise.withResolvers<void>();
  const onHead = (): void => {
    open += 1;
    if (open === count) allOpen.resolve();
  };
  const startMs = performance.now();
  // The first is read in full; the others must have received as many bytes.
  const reading = Array.from({ length: count }, (_, index) => client.follow(streamPath, { keep: index === 0, onHead }));
  await allOpen.promise;
  const during = await ask<ProcessUsage>('usage', { collect: true });
  const [first, ...others] = await Promise.all(reading);
  const wallMs = performance.now() - startMs;
  const after = await ask<ProcessUsage>('usage');
  if (first === undefined || others.some((one) => one.bytes !== first.bytes))
    throw new Error('viewers saw different bytes');
  const tokens = tokensIn(first.body) * count;
  return {
    tokensPerSecond: (tokens * 1000) / wallMs,
    cpuUsPerToken: ((after.cpuMs - during.cpuMs) * 1000) / tokens,
    bytesPerViewer: (during.inUseBytes - before.inUseBytes) / count,
  };
}
