/**
 * `npm run chaos -- [--minutes 60] [--seeds K] [--seed N] [--row R] [--jobs 1]`: plays the scenarios of tests/chaos for long. With
 * `--minutes` scenario and seed are drawn at random from `--seed`; with `--seeds` each scenario gets the seeds from 1 to K; with
 * `--seed` alone, that one. A failure is printed with what runs it again, and the rest goes on. A table is printed at the end.
 */
import { spawn } from 'node:child_process';
import { randomInt } from 'node:crypto';
import { once } from 'node:events';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { createRng } from '#tests/chaos/rng.ts';
import type { Played } from '#tests/chaos/runner.ts';

const ROOT = fileURLToPath(new URL('..', import.meta.url));
const SCENARIOS = fileURLToPath(new URL('../tests/chaos/scenarios/', import.meta.url));
const VITEST = fileURLToPath(new URL('../node_modules/vitest/vitest.mjs', import.meta.url));
/** Drawn seeds per start of a scenario: services and survivors are started once for them. */
const SEEDS_AT_A_TIME = 3;
const MAX_SEED = 1_000_000;

interface Batch {
  file: string;
  seeds: number[];
}

const { values: args } = parseArgs({
  options: {
    minutes: { type: 'string' },
    seeds: { type: 'string' },
    seed: { type: 'string' },
    row: { type: 'string' },
    jobs: { type: 'string', default: '1' },
  },
});
const files = readdirSync(SCENARIOS)
  .filter((name) => name.endsWith('.ts'))
  .filter((name) => args.row === undefined || name.startsWith(`row-${args.row.padStart(2, '0')}-`))
  .sort();
if (files.length === 0) throw new Error(`there is no scenario of row ${args.row}`);

const played: Played[] = [];
const startMs = performance.now();
const next = batches();
await Promise.all(Array.from({ length: Number(args.jobs) }, work));
console.log(`\n${table()}`);
const failed = played.filter((one) => !one.ok);
for (const one of failed)
  console.log(`run again: npm run chaos -- --row ${one.row} --seed ${one.seed}   (${one.file})`);
process.exitCode = failed.length > 0 || played.length === 0 ? 1 : 0;

async function work(): Promise<void> {
  for (let batch = next(); batch !== null; batch = next()) played.push(...(await play(batch)));
}

/** What to play next; null when it is enough. */
function batches(): () => Batch | null {
  if (args.minutes !== undefined) {
    const first = Number(args.seed ?? randomInt(MAX_SEED));
    console.log(`drawing from seed ${first}`);
    const rng = createRng(first);
    const endMs = startMs + Number(args.minutes) * 60_000;
    return () => {
      if (performance.now() > endMs) return null;
      const file = rng.pick(files);
      return { file, seeds: Array.from({ length: SEEDS_AT_A_TIME }, () => rng.int(1, MAX_SEED)) };
    };
  }
  const count = Number(args.seeds ?? 1);
  const seeds = Array.from({ length: count }, (_, index) => index + Number(args.seed ?? 1));
  const left = files.map((file) => ({ file, seeds }));
  return () => left.shift() ?? null;
}

/** One vitest for the batch; prints each seed as it ends. */
async function play(batch: Batch): Promise<Played[]> {
  const directory = await mkdtemp(join(tmpdir(), 'runledger-chaos-report-'));
  const report = join(directory, 'report.jsonl');
  const child = spawn(process.execPath, [VITEST, 'run', '--project', 'chaos', 'tests/chaos/chaos-1.test.ts'], {
    cwd: ROOT,
    env: { ...process.env, CHAOS_PLAN: JSON.stringify([batch]), CHAOS_REPORT: report },
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  let output = '';
  for (const stream of [child.stdout, child.stderr]) {
    stream.setEncoding('utf8').on('data', (text: string) => {
      output += text;
    });
  }
  let told = 0;
  const read = (): Played[] => {
    const lines = existsSync(report) ? readFileSync(report, 'utf8').split('\n').filter(Boolean) : [];
    const all = lines.map((line) => JSON.parse(line) as Played);
    for (const one of all.slice(told)) tell(one);
    told = all.length;
    return all;
  };
  const timer = setInterval(read, 1_000);
  await once(child, 'exit');
  clearInterval(timer);
  const all = read();
  if (all.length < batch.seeds.length) {
    console.log(`${batch.file}: ${all.length} of ${batch.seeds.length} seeds were played\n${output.slice(-4_000)}`);
  }
  await rm(directory, { recursive: true });
  return all;
}

function tell({ row, name, seed, ok, error, ms }: Played): void {
  const seconds = (ms / 1_000).toFixed(1);
  const minutes = ((performance.now() - startMs) / 60_000).toFixed(1);
  console.log(`${minutes} min  ${ok ? 'green' : 'RED  '}  row ${row}  seed ${seed}  ${seconds} s  ${name}`);
  if (!ok) console.log(`${error}`);
}

/** One line per scenario: what is asserted, seeds played, how many were green, and the times that were measured. */
function table(): string {
  const lines = [
    '| row | scenario | asserted | seeds | green | measured (p50 / p95 / max) |',
    '|---|---|---|---|---|---|',
  ];
  for (const file of files) {
    const of = played.filter((one) => one.file === file);
    const [first] = of;
    if (first === undefined) continue;
    const green = of.filter((one) => one.ok).length;
    lines.push(`| ${first.row} | ${first.name} | ${first.asserts} | ${of.length} | ${green} | ${measured(of)} |`);
  }
  return lines.join('\n');
}

function measured(of: Played[]): string {
  const names = new Set(of.flatMap((one) => Object.keys(one.measures)));
  return [...names]
    .map((name) => {
      const sorted = of.flatMap((one) => one.measures[name] ?? []).sort((a, b) => a - b);
      const at = (share: number): string =>
        `${((sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))] ?? 0) / 1_000).toFixed(2)} s`;
      return `${name}: ${at(0.5)} / ${at(0.95)} / ${at(1)} (n = ${sorted.length})`;
    })
    .join('; ');
}
