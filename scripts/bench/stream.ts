/** Tokens as fast as they come: ten runs at a time, read by one client each, against the bare loop that only yields them. */
import type { ChatRun } from './bare.ts';
import { tokensIn } from './client.ts';
import { format, inTurn, median, medianRatio } from './figures.ts';
import { atATime, type Load, SHORT_QUESTION } from './loads.ts';
import { cpuWhile, profiled, scaled, type Workload } from './workload.ts';

const AT_A_TIME = 10;
const TOKENS = 400;

interface Measured {
  tokensPerSecond: number;
  cpuUsPerToken: number;
}

export const stream: Workload = async (bench, options) => {
  const runs = scaled(30, options, AT_A_TIME);
  const model = `fake-${TOKENS}-0`;
  const load = { runs, concurrency: AT_A_TIME, model };

  async function ours(): Promise<Measured> {
    const message = { graph: 'chat', content: SHORT_QUESTION, configurable: { model } };
    const { cpuMs, result } = await cpuWhile(bench.server, () =>
      atATime(runs, AT_A_TIME, () => bench.client.send(message)),
    );
    return measured(
      result.wallMs,
      cpuMs,
      result.results.map((streamed) => tokensIn(streamed.body)),
    );
  }
  async function bare(): Promise<Measured> {
    const { cpuMs, result } = await cpuWhile(bench.bare, () => bench.bare<Load<ChatRun>>('chat', load));
    return measured(
      result.wallMs,
      cpuMs,
      result.results.map((run) => run.tokens),
    );
  }
  function measured(wallMs: number, cpuMs: number, tokens: number[]): Measured {
    if (tokens.some((count) => count !== TOKENS)) throw new Error(`a run did not deliver ${TOKENS} tokens`);
    const total = TOKENS * runs;
    return { tokensPerSecond: (total * 1000) / wallMs, cpuUsPerToken: (cpuMs * 1000) / total };
  }

  await Promise.all([ours(), bare()]);
  const both = await profiled(bench, options, 'stream', () => inTurn(options.repetitions, ours, bare));
  const rate = { ours: both.ours.map((one) => one.tokensPerSecond), bare: both.bare.map((one) => one.tokensPerSecond) };
  const cpu = { ours: both.ours.map((one) => one.cpuUsPerToken), bare: both.bare.map((one) => one.cpuUsPerToken) };
  return {
    rows: [
      {
        what: `delivered tokens/s, ${AT_A_TIME} runs at a time`,
        ours: format(median(rate.ours)),
        bare: format(median(rate.bare)),
        ratio: format(medianRatio(rate.ours, rate.bare)),
        goal: '≥ 0.9',
      },
      {
        what: 'CPU of the process per delivered token',
        ours: format(median(cpu.ours), 'µs'),
        bare: format(median(cpu.bare), 'µs'),
        ratio: format(medianRatio(cpu.ours, cpu.bare)),
        goal: '',
      },
    ],
    values: {
      stream_tokens_per_s: median(rate.ours),
      stream_tokens_per_s_bare: median(rate.bare),
      stream_ratio: medianRatio(rate.ours, rate.bare),
      stream_cpu_us_per_token: median(cpu.ours),
      stream_cpu_us_per_token_bare: median(cpu.bare),
    },
  };
};
