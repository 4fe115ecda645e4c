/**
 * `npm run bench [-- --quick] [--only stream,trivial] [--repetitions N] [--fsync] [--profile DIR]`: what this server costs beside a
 * bare LangGraph loop, both measured in turn in the same run. Prints a table and one JSON line. What each figure means
 * is said in docs/benchmarks.md.
 */
import { mkdir } from 'node:fs/promises';
import { cpus, loadavg } from 'node:os';
import { parseArgs } from 'node:util';
import { delay } from './delay.ts';
import { type Figures, table } from './figures.ts';
import { path } from './path.ts';
import { replay } from './replay.ts';
import { startBench } from './setup.ts';
import { stream } from './stream.ts';
import { takeover } from './takeover.ts';
import { trivial } from './trivial.ts';
import { viewers } from './viewers.ts';
import type { Workload } from './workload.ts';
import { writes } from './writes.ts';

const WORKLOADS: { [name: string]: Workload } = { stream, trivial, delay, path, writes, replay, viewers, takeover };

const { values: args } = parseArgs({
  options: {
    quick: { type: 'boolean', default: false },
    only: { type: 'string', default: Object.keys(WORKLOADS).join(',') },
    repetitions: { type: 'string' },
    fsync: { type: 'boolean', default: false },
    profile: { type: 'string' },
  },
});
const repetitions = Number(args.repetitions ?? (args.quick ? 2 : 5));
const chosen = args.only.split(',').map((name): [string, Workload] => {
  const workload = WORKLOADS[name];
  if (workload === undefined) throw new Error(`--only ${name}: there is ${Object.keys(WORKLOADS).join(', ')}`);
  return [name, workload];
});

if (args.profile !== undefined) await mkdir(args.profile, { recursive: true });
const options = { repetitions, scale: args.quick ? 0.25 : 1, profileDir: args.profile ?? null };
const startMs = performance.now();
const bench = await startBench({ fsync: args.fsync });
const figures: Figures = { rows: [], values: {} };
for (const signal of ['SIGINT', 'SIGTERM'] as const) {
  process.once(signal, () => bench.stop().finally(() => process.exit(1)));
}
try {
  for (const [name, workload] of chosen) {
    process.stderr.write(`\n${name}\n`);
    const { rows, values } = await workload(bench, options);
    // At once too: a run that is cut short is not for nothing.
    process.stderr.write(`${table(rows)}\n`);
    figures.rows.push(...rows);
    Object.assign(figures.values, values);
  }
} finally {
  await bench.stop();
}
const machine = { cores: cpus().length, load: loadavg()[0] ?? 0, node: process.version };
const seconds = Math.round((performance.now() - startMs) / 1000);
console.log(
  `\n${bench.services.postgres}; ${bench.services.log}; ${machine.cores} cores, load ${machine.load.toFixed(1)}; ` +
    `${repetitions} repetitions; ${seconds} s\n`,
);
console.log(table(figures.rows));
console.log(`\n${JSON.stringify({ ...bench.services, ...machine, repetitions, seconds, ...rounded(figures.values) })}`);

function rounded(values: Figures['values']): Figures['values'] {
  return Object.fromEntries(Object.entries(values).map(([name, value]) => [name, Number(value.toPrecision(4))]));
}
