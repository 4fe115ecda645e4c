/** A graph that does nothing: what a run costs by itself, ten at a time and one at a time. */
import { format, inTurn, median, medianRatio, percentile } from './figures.ts';
import { atATime, type Load, SHORT_QUESTION } from './loads.ts';
import { cpuWhile, profiled, scaled, type Workload } from './workload.ts';

const AT_A_TIME = 10;

interface Measured {
  runsPerSecond: number;
  cpuMsPerRun: number;
  p50Ms: number;
}

export const trivial: Workload = async (bench, options) => {
  const runs = scaled(200, options, 40);
  const alone = scaled(60, options, 20);

  const message = { graph: 'trivial', content: SHORT_QUESTION };
  const send = async (): Promise<number> => (await bench.client.send(message)).totalMs;
  const sendAtATime = (count: number, concurrency: number) => atATime(count, concurrency, send);
  const loop = (count: number, concurrency: number) =>
    bench.bare<Load<number>>('trivial', { runs: count, concurrency });

  async function measure(
    ask: typeof bench.server,
    work: (count: number, concurrency: number) => Promise<Load<number>>,
  ): Promise<Measured> {
    const { cpuMs, result } = await cpuWhile(ask, () => work(runs, AT_A_TIME));
    const single = await work(alone, 1);
    return {
      runsPerSecond: (runs * 1000) / result.wallMs,
      cpuMsPerRun: cpuMs / runs,
      p50Ms: percentile(single.results, 0.5),
    };
  }
  const ours = () => measure(bench.server, sendAtATime);
  const bare = () => measure(bench.bare, loop);

  await Promise.all([ours(), bare()]);
  const both = await profiled(bench, options, 'trivial', () => inTurn(options.repetitions, ours, bare));
  const pick = (key: keyof Measured) => ({
    ours: both.ours.map((one) => one[key]),
    bare: both.bare.map((one) => one[key]),
  });
  const rate = pick('runsPerSecond');
  const cpu = pick('cpuMsPerRun');
  const single = pick('p50Ms');
  return {
    rows: [
      {
        what: `trivial runs/s, ${AT_A_TIME} at a time`,
        ours: format(median(rate.ours)),
        bare: format(median(rate.bare)),
        ratio: format(medianRatio(rate.ours, rate.bare)),
        goal: '≥ 0.8',
      },
      {
        what: 'CPU of the process per trivial run',
        ours: format(median(cpu.ours), 'ms'),
        bare: format(median(cpu.bare), 'ms'),
        ratio: format(medianRatio(cpu.ours, cpu.bare)),
        goal: '',
      },
      {
        what: 'trivial run alone, POST to final answer, p50',
        ours: format(median(single.ours), 'ms'),
        bare: format(median(single.bare), 'ms'),
        ratio: format(medianRatio(single.ours, single.bare)),
        goal: '≤ 15 ms',
      },
    ],
    values: {
      trivial_runs_per_s: median(rate.ours),
      trivial_runs_per_s_bare: median(rate.bare),
      trivial_ratio: medianRatio(rate.ours, rate.bare),
      trivial_cpu_ms: median(cpu.ours),
      trivial_cpu_ms_bare: median(cpu.bare),
      trivial_p50_ms: median(single.ours),
      trivial_p50_ms_bare: median(single.bare),
    },
  };
};
