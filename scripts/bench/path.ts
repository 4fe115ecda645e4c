/** CPU of a token's way from LangGraph's part to the acknowledged append; the loop's own cost is subtracted. */
import type { EventPathLoad } from './event-path.ts';
import { format, median } from './figures.ts';
import { scaled, type Workload } from './workload.ts';

const RUNS = 10;

export const path: Workload = async (bench, options) => {
  const workBytes = await bench.eventPath<number>('calibrate');
  const measure = async (withPath: boolean): Promise<number> => {
    const load: EventPathLoad = { runs: RUNS, tokensPerRun: scaled(1_000, options), workBytes, withPath };
    return (await bench.eventPath<{ cpuUsPerToken: number }>('eventPath', load)).cpuUsPerToken;
  };
  await measure(true);
  const differences: number[] = [];
  // The difference is small beside what it is taken from, so it is taken often.
  for (let round = 0; round < 2 * options.repetitions; round += 1) {
    const loop = await measure(false);
    differences.push((await measure(true)) - loop);
  }
  const perToken = median(differences);
  return {
    rows: [
      {
        what: `event path, CPU per token, ${RUNS} runs, flat out`,
        ours: format(perToken, 'µs'),
        bare: '',
        ratio: '',
        goal: '≤ 15 µs',
      },
    ],
    values: { event_path_us: perToken },
  };
};
