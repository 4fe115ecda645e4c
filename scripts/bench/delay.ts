/** How much later than the model sent it a token reaches the client, at a reader's pace: ten runs, a token every 20 ms. */
import type { ChatRun } from './bare.ts';
import { format, inTurn, median, percentile } from './figures.ts';
import { atATime, type Load, SHORT_QUESTION } from './loads.ts';
import { scaled, type Workload } from './workload.ts';

const AT_A_TIME = 10;
const GAP_MS = 20;
/** People do not ask at the same moment; no multiple of the gap, so that the tokens do not come in step either. */
const STAGGER_MS = 57;

interface Measured {
  /** Of each run's first token: from the question, and from the model's sending it. */
  firstMs: number[];
  firstDelayMs: number[];
  delayMs: number[];
}

export const delay: Workload = async (bench, options) => {
  const tokens = scaled(100, options, 40);
  const model = `stamp-${tokens}-${GAP_MS}`;

  async function ours(): Promise<Measured> {
    const message = { graph: 'chat', content: SHORT_QUESTION, configurable: { model } };
    const { results } = await atATime(AT_A_TIME, AT_A_TIME, () => bench.client.send(message), STAGGER_MS);
    return measured(results.map((run) => ({ firstMs: run.firstTokenMs, delaysMs: run.delaysMs })));
  }
  async function bare(): Promise<Measured> {
    const load = { runs: AT_A_TIME, concurrency: AT_A_TIME, model, staggerMs: STAGGER_MS };
    const { results } = await bench.bare<Load<ChatRun>>('chat', load);
    return measured(results);
  }
  function measured(runs: { firstMs: number; delaysMs: number[] }[]): Measured {
    if (runs.some((run) => run.delaysMs.length !== tokens)) throw new Error(`a run did not deliver ${tokens} tokens`);
    return {
      firstMs: runs.map((run) => run.firstMs),
      firstDelayMs: runs.flatMap((run) => run.delaysMs.slice(0, 1)),
      delayMs: runs.flatMap((run) => run.delaysMs),
    };
  }

  // Long enough that neither still compiles what it runs while it is measured.
  const warm = { runs: 40, concurrency: AT_A_TIME, model: 'fake-400-0' };
  const flatOut = { graph: 'chat', content: SHORT_QUESTION, configurable: { model: warm.model } };
  await bench.bare('chat', warm);
  await atATime(warm.runs, AT_A_TIME, () => bench.client.send(flatOut));
  const both = await inTurn(options.repetitions, ours, bare);
  const at = (side: Measured[], key: keyof Measured, fraction: number) =>
    median(side.map((one) => percentile(one[key], fraction)));
  const row = (what: string, key: keyof Measured, fraction: number, goal: string) => ({
    what,
    ours: format(at(both.ours, key, fraction), 'ms'),
    bare: format(at(both.bare, key, fraction), 'ms'),
    ratio: '',
    goal,
  });
  return {
    rows: [
      row(`question to first token, p50 (the model takes ${GAP_MS} ms of it)`, 'firstMs', 0.5, ''),
      row("first token, from the model's sending it, p50", 'firstDelayMs', 0.5, '≤ 20 ms'),
      row(`every token, ${AT_A_TIME} runs, ${GAP_MS} ms apart: p50`, 'delayMs', 0.5, ''),
      row(`every token, ${AT_A_TIME} runs, ${GAP_MS} ms apart: p99`, 'delayMs', 0.99, '≤ 15 ms'),
    ],
    values: {
      first_token_ms: at(both.ours, 'firstMs', 0.5),
      first_token_ms_bare: at(both.bare, 'firstMs', 0.5),
      first_token_delay_ms: at(both.ours, 'firstDelayMs', 0.5),
      first_token_delay_ms_bare: at(both.bare, 'firstDelayMs', 0.5),
      delay_p50_ms: at(both.ours, 'delayMs', 0.5),
      delay_p50_ms_bare: at(both.bare, 'delayMs', 0.5),
      delay_p99_ms: at(both.ours, 'delayMs', 0.99),
      delay_p99_ms_bare: at(both.bare, 'delayMs', 0.99),
    },
  };
};
