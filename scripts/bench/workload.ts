/** What every workload is given and gives. */
import type { Figures } from './figures.ts';
import type { Ask } from './ipc.ts';
import type { ProcessUsage } from './probe.ts';
import type { Bench } from './setup.ts';

export interface WorkloadOptions {
  repetitions: number;
  /** Shrinks amounts of work: 1, or less for a quick look. */
  scale: number;
  /** A folder for CPU profiles of the server, or null. */
  profileDir: string | null;
}

export type Workload = (bench: Bench, options: WorkloadOptions) => Promise<Figures>;

/** CPU time of the process behind `ask` while `work` runs, ms. */
export async function cpuWhile<T>(ask: Ask, work: () => Promise<T>): Promise<{ cpuMs: number; result: T }> {
  const before = await ask<ProcessUsage>('usage');
  const result = await work();
  const after = await ask<ProcessUsage>('usage');
  return { cpuMs: after.cpuMs - before.cpuMs, result };
}

/** Writes a CPU profile of the server while `work` runs, when that is asked for. */
export async function profiled<T>(
  bench: Bench,
  options: WorkloadOptions,
  name: string,
  work: () => Promise<T>,
): Promise<T> {
  if (options.profileDir === null) return work();
  await bench.server('startProfile');
  try {
    return await work();
  } finally {
    await bench.server('stopProfile', { file: `${options.profileDir}/${name}.cpuprofile` });
  }
}

export function scaled(amount: number, { scale }: WorkloadOptions, least = 1): number {
  return Math.max(least, Math.round(amount * scale));
}
