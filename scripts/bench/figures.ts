/** Numbers of several repetitions -> medians, ratios, and a table. */

export interface Row {
  what: string;
  ours: string;
  /** Of the bare loop in the same run; '' where there is nothing to compare with. */
  bare: string;
  ratio: string;
  goal: string;
}

export interface Figures {
  rows: Row[];
  /** For the JSON line. */
  values: { [name: string]: number };
}

export function percentile(values: readonly number[], fraction: number): number {
  const sorted = values.toSorted((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.floor(fraction * sorted.length))] ?? Number.NaN;
}

export function median(values: readonly number[]): number {
  const sorted = values.toSorted((a, b) => a - b);
  const middle = sorted.length >>> 1;
  const upper = sorted[middle] ?? Number.NaN;
  return sorted.length % 2 === 1 ? upper : ((sorted[middle - 1] ?? Number.NaN) + upper) / 2;
}

/** The median of the ratios of pairs measured right after one another: what slows both down cancels out. */
export function medianRatio(ours: readonly number[], bare: readonly number[]): number {
  return median(ours.map((value, index) => value / (bare[index] ?? Number.NaN)));
}

export function format(value: number, unit = ''): string {
  const digits = Math.abs(value) >= 100 ? 0 : Math.abs(value) >= 10 ? 1 : 2;
  const text = value.toLocaleString('en-US', { minimumFractionDigits: 0, maximumFractionDigits: digits });
  return unit === '' ? text : `${text} ${unit}`;
}

export function table(rows: readonly Row[]): string {
  const head: Row = { what: 'what', ours: 'Runledger', bare: 'bare loop', ratio: 'ratio', goal: 'goal' };
  const keys = ['what', 'ours', 'bare', 'ratio', 'goal'] as const;
  const widths = keys.map((key) => Math.max(...[head, ...rows].map((row) => row[key].length)));
  const line = (row: Row) => `| ${keys.map((key, index) => row[key].padEnd(widths[index] ?? 0)).join(' | ')} |`;
  return [line(head), `|${widths.map((width) => '-'.repeat(width + 2)).join('|')}|`, ...rows.map(line)].join('\n');
}

/** Runs both sides of a comparison in turn, the first one changing, so that neither always has the warmer machine. */
export async function inTurn<T, U>(
  repetitions: number,
  ours: () => Promise<T>,
  bare: () => Promise<U>,
): Promise<{ ours: T[]; bare: U[] }> {
  const measured: { ours: T[]; bare: U[] } = { ours: [], bare: [] };
  for (let round = 0; round < repetitions; round += 1) {
    if (round % 2 === 0) measured.bare.push(await bare());
    measured.ours.push(await ours());
    if (round % 2 === 1) measured.bare.push(await bare());
  }
  return measured;
}
