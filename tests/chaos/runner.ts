/** Plays scenarios: gives each its stage and its worlds, calls the checker, keeps what a failure needs to be understood. */
import { appendFileSync, mkdirSync, readdirSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, test } from 'vitest';
import { check } from './checker.ts';
import { collect, collectLeaks } from './collect.ts';
import type { Facts, Violation } from './facts.ts';
import type { Scenario } from './scenario.ts';
import { createStage, type Stage, stageKey } from './stage.ts';
import { createWorld, type World } from './world.ts';

const SCENARIOS = new URL('./scenarios/', import.meta.url);
/** In `npm test`. */
const FIXED_SEEDS = [1, 2, 3];
const SHARES = 3;
const DEFAULT_WEIGHT_S = 20;
const LIMIT_MS = (process.env.CHAOS_PLAN === undefined ? 10 : 120) * 60_000;
/** Seeds at a time of a scenario that plays them together. */
const TOGETHER = 3;

/** What `scripts/chaos.ts` wants played, in place of the fixed seeds: by the name of the scenario's file. */
type Plan = { file: string; seeds: number[] }[];

interface Chosen {
  file: string;
  scenario: Scenario;
  seeds: number[];
}

/** One seed of one scenario, for the report of `scripts/chaos.ts`. */
export interface Played {
  file: string;
  row: number;
  name: string;
  asserts: string;
  seed: number;
  ok: boolean;
  error: string | null;
  ms: number;
  measures: World['measures'];
}

/** Registers the tests of one share (from 0) of all scenarios. */
export async function playShare(share: number): Promise<void> {
  const stages = new Map<string, Promise<Stage>>();
  afterAll(async () => {
    for (const stage of stages.values()) await (await stage).close();
  }, 60_000);
  const stageOf = (scenario: Scenario): Promise<Stage> => {
    const key = stageKey(scenario.stage ?? {});
    const stage = stages.get(key) ?? createStage(scenario.stage);
    stages.set(key, stage);
    return stage;
  };
  for (const { file, scenario, seeds } of await chosen(share)) {
    test(`row ${scenario.row}: ${scenario.name} (${file}, seeds ${seeds.join(', ')})`, {
      timeout: LIMIT_MS,
    }, async () => {
      const stage = await stageOf(scenario);
      const played: Played[] = [];
      const atATime = scenario.together === true ? TOGETHER : 1;
      for (let from = 0; from < seeds.length; from += atATime) {
        const batch = await playTogether(file, scenario, stage, seeds.slice(from, from + atATime));
        report(batch);
        played.push(...batch);
      }
      const failed = played.filter((one) => !one.ok);
      if (failed.length > 0) throw new Error(failed.map((one) => `seed ${one.seed}: ${one.error}`).join('\n'));
    });
  }
}

async function chosen(share: number): Promise<Chosen[]> {
  const { CHAOS_PLAN } = process.env;
  if (CHAOS_PLAN !== undefined) {
    const plan = share === 0 ? (JSON.parse(CHAOS_PLAN) as Plan) : [];
    return Promise.all(plan.map(async ({ file, seeds }) => ({ file, scenario: await load(file), seeds })));
  }
  const files = readdirSync(SCENARIOS).filter((name) => name.endsWith('.ts'));
  const all = await Promise.all(files.map(async (file) => ({ file, scenario: await load(file), seeds: FIXED_SEEDS })));
  return sharesOf(all)[share] ?? [];
}

async function load(file: string): Promise<Scenario> {
  const { scenario } = (await import(new URL(file, SCENARIOS).href)) as { scenario: Scenario };
  return scenario;
}

/** Heaviest first, each to the share that has the least so far. */
function sharesOf<T extends { scenario: Scenario }>(all: T[]): T[][] {
  const weight = ({ scenario }: T): number => scenario.weightS ?? DEFAULT_WEIGHT_S;
  const shares = Array.from({ length: SHARES }, () => ({ all: [] as T[], weightS: 0 }));
  for (const one of [...all].sort((a, b) => weight(b) - weight(a))) {
    const least = shares.reduce((a, b) => (b.weightS < a.weightS ? b : a));
    least.all.push(one);
    least.weightS += weight(one);
  }
  return shares.map((share) => share.all);
}

/** Plays the seeds at the same time on one stage, then looks at what they left on it. */
async function playTogether(file: string, scenario: Scenario, stage: Stage, seeds: number[]): Promise<Played[]> {
  const worlds = seeds.map((seed) => createWorld(stage, seed));
  try {
    const played = await Promise.all(worlds.map((world) => playOne(file, scenario, world)));
    const leaks = await collectLeaks(stage);
    const [first] = played;
    const left = check({ ...NOTHING, ...leaks });
    if (first !== undefined && left.length > 0) {
      Object.assign(first, { ok: false, error: [first.error, ...left.map(sentence)].filter(Boolean).join('\n') });
    }
    for (const [index, one] of played.entries()) if (!one.ok) keep(one, stage, worlds[index]);
    return played;
  } finally {
    await Promise.all(worlds.map((world) => world.close()));
  }
}

async function playOne(file: string, scenario: Scenario, world: World): Promise<Played> {
  const { row, name, asserts } = scenario;
  const startMs = performance.now();
  let error: string | null = null;
  try {
    await scenario.run(world);
  } catch (thrown) {
    error = thrown instanceof Error ? (thrown.stack ?? thrown.message) : String(thrown);
  }
  try {
    const facts = await collect(world);
    const violations = check(facts);
    if (violations.length > 0) error = [error, ...violations.map(sentence)].filter(Boolean).join('\n');
    if (error !== null) keepFacts(file, world, facts);
  } catch (thrown) {
    error = [error, `facts not collected: ${String(thrown)}`].filter(Boolean).join('\n');
  }
  const ms = performance.now() - startMs;
  return { file, row, name, asserts, seed: world.seed, ok: error === null, error, ms, measures: world.measures };
}

function sentence({ invariant, runId, evidence }: Violation): string {
  return `${invariant}${runId === null ? '' : ` run ${runId}`}: ${evidence}`;
}

const NOTHING: Facts = {
  mayResync: false,
  submissions: [],
  readings: [],
  runs: [],
  statuses: [],
  writes: [],
  logs: [],
  replays: [],
  hookCalls: [],
  outbox: [],
  nodeRuns: [],
  modelCalls: [],
  servers: [],
  idleInTransaction: 0,
};

function folderOf(file: string, seed: number): string {
  const folder = join(tmpdir(), 'runledger-chaos', `${file.replace(/\.ts$/, '')}-seed-${seed}`);
  mkdirSync(folder, { recursive: true });
  return folder;
}

function keepFacts(file: string, world: World, facts: Facts): void {
  writeFileSync(join(folderOf(file, world.seed), 'facts.json'), JSON.stringify(facts, null, 1));
}

/** The servers' logs of a failed seed, beside its facts. */
function keep(played: Played, stage: Stage, world: World | undefined): void {
  const folder = folderOf(played.file, played.seed);
  const servers = new Set([...stage.servers, ...(world?.servers ?? [])]);
  for (const server of servers) writeFileSync(join(folder, `${server.name}-${server.pid}.log`), server.logs());
  played.error = `${played.error}\nfacts and logs: ${folder}`;
}

function report(played: Played[]): void {
  const { CHAOS_REPORT: path } = process.env;
  if (path === undefined) return;
  for (const one of played) appendFileSync(path, `${JSON.stringify(one)}\n`);
}
