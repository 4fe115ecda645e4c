/** CPU of a token's way from LangGraph's part to the acknowledged append, at two rates; the loop's own cost subtracted. */
import type { EventPathLoad } from './event-path.ts';
import { format, median } from './figures.ts';
import { scaled, type Workload } from './workload.ts';

const RUNS = 10;
/** About what LangGraph itself can yield on one core. */
const REAL_RATE = 7_000;

export const path: Workload = async (bench, options) => {
  const measure = async (load: EventPathLoad): Promise<number> =>
    (await bench.eventPath<{ cpuUsPerToken: number }>('eventPath', load)).cpuUsPerToken;
  async function perToken(tokensPerRun: number, tokensPerSecond: number | null): Promise<number> {
    const load = { runs: RUNS, tokensPerRun, tokensPerSecond };
    await measure({ ...load, withPath: true });
    const differences: number[] = [];
    for (let round = 0; round < options.repetitions; round += 1) {
      const loop = await measure({ ...load, withPath: false });
      differences.push((await measure({ ...load, withPath: true })) - loop);
    }
    return median(differences);
  }
  const flatOut = await perToken(scaled(4_000, options), null);
  const real = await perToken(scaled(1_400, options), REAL_RATE);
  return {
    rows: [
      {
        what: `event path, CPU per token, ${RUNS} runs, flat out`,
        ours: format(flatOut, 'µs'),
        bare: '',
        ratio: '',
        goal: '≤ 15 µs',
      },
      {
        what: `event path, CPU per token, ${RUNS} runs, ${REAL_RATE} tokens/s in all`,
        ours: format(real, 'µs'),
        bare: '',
        ratio: '',
        goal: '',
      },
    ],
    values: { event_path_us_flat_out: flatOut, event_path_us_real_rate: real },
  };
};
