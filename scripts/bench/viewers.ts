/** Many viewers of one run: frames delivered to all of them, and what each costs while nothing happens. */
import { framesIn } from './client.ts';
import { format } from './figures.ts';
import { SHORT_QUESTION } from './loads.ts';
import type { ProcessUsage } from './probe.ts';
import type { Bench } from './setup.ts';
import { scaled, type Workload } from './workload.ts';

const TOKENS = 300;
const GAP_MS = 2;

export const viewers: Workload = async (bench, options) => {
  const count = scaled(500, options, 200);
  await watch(bench, count, `fake-20-100`);
  const idle = await watch(bench, count, 'fake-4-1000');
  const busy = await watch(bench, count, `fake-${TOKENS}-${GAP_MS}`);
  return {
    rows: [
      {
        what: `${count} viewers of one run, frames/s delivered in all`,
        ours: format(busy.framesPerSecond),
        bare: '',
        ratio: '',
        goal: '',
      },
      {
        what: `${count} viewers of one run, memory of the server each`,
        ours: format(idle.rssBytesPerViewer / 1024, 'KB'),
        bare: '',
        ratio: '',
        goal: '≤ 30 KB',
      },
    ],
    values: {
      viewers: count,
      viewers_frames_per_s: busy.framesPerSecond,
      viewers_rss_bytes_each: idle.rssBytesPerViewer,
    },
  };
};

async function watch(bench: Bench, count: number, model: string) {
  const before = await bench.server<ProcessUsage>('usage', { collect: true });
  const { streamPath } = await bench.client.start({ graph: 'chat', content: SHORT_QUESTION, configurable: { model } });
  let open = 0;
  const allOpen = Promise.withResolvers<void>();
  const onHead = (): void => {
    open += 1;
    if (open === count) allOpen.resolve();
  };
  const startMs = performance.now();
  // The first is read in full; the others must have received as many bytes.
  const reading = Array.from({ length: count }, (_, index) =>
    bench.client.follow(streamPath, { keep: index === 0, onHead }),
  );
  await allOpen.promise;
  const during = await bench.server<ProcessUsage>('usage', { collect: true });
  const all = await Promise.all(reading);
  const wallMs = performance.now() - startMs;
  const [first] = all;
  if (first === undefined || all.some((one) => one.bytes !== first.bytes))
    throw new Error('viewers saw different bytes');
  return {
    framesPerSecond: (framesIn(first.body) * count * 1000) / wallMs,
    rssBytesPerViewer: (during.rssBytes - before.rssBytes) / count,
  };
}
