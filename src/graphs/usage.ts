/** Token usage of model calls: read, fold the reports of one call, add up calls. */
import type { Usage } from '#src/events/event.ts';

/** LangChain's `usage_metadata`, or null when it holds no counts. */
export function readUsage(value: unknown): Usage | null {
  if (typeof value !== 'object' || value === null) return null;
  const raw = value as Record<string, unknown>;
  const input = count(raw.input_tokens);
  const output = count(raw.output_tokens);
  if (input === null && output === null) return null;
  const usage: Usage = {
    input_tokens: input ?? 0,
    output_tokens: output ?? 0,
    total_tokens: count(raw.total_tokens) ?? (input ?? 0) + (output ?? 0),
  };
  const inputDetails = readDetails(raw.input_token_details);
  const outputDetails = readDetails(raw.output_token_details);
  if (inputDetails !== null) usage.input_token_details = inputDetails;
  if (outputDetails !== null) usage.output_token_details = outputDetails;
  return usage;
}

/**
 * Folds one more report of the same model call into what was known. Providers report in three ways: once at the end;
 * the totals so far with every chunk; or parts that add up (the prompt first, the answer later). A report that names the prompt
 * again and is nowhere smaller than the sum so far is a total and replaces it; any other is a part and is added.
 */
export function foldUsage(known: Usage | null, report: Usage): Usage {
  if (known === null) return report;
  const isTotal =
    report.input_tokens > 0 && report.input_tokens >= known.input_tokens && report.output_tokens >= known.output_tokens;
  return isTotal ? report : addUsage(known, report);
}

/** The sum of two usages, details included. */
export function addUsage(left: Usage | null, right: Usage): Usage {
  if (left === null) return right;
  const sum: Usage = {
    input_tokens: left.input_tokens + right.input_tokens,
    output_tokens: left.output_tokens + right.output_tokens,
    total_tokens: left.total_tokens + right.total_tokens,
  };
  const inputDetails = addDetails(left.input_token_details, right.input_token_details);
  const outputDetails = addDetails(left.output_token_details, right.output_token_details);
  if (inputDetails !== undefined) sum.input_token_details = inputDetails;
  if (outputDetails !== undefined) sum.output_token_details = outputDetails;
  return sum;
}

type Details = { [key: string]: number };

function addDetails(left: Details | undefined, right: Details | undefined): Details | undefined {
  if (left === undefined || right === undefined) return left ?? right;
  const sum = { ...left };
  for (const [key, value] of Object.entries(right)) sum[key] = (sum[key] ?? 0) + value;
  return sum;
}

function readDetails(value: unknown): Details | null {
  if (typeof value !== 'object' || value === null) return null;
  const entries = Object.entries(value).filter((entry): entry is [string, number] => count(entry[1]) !== null);
  return entries.length === 0 ? null : Object.fromEntries(entries);
}

function count(value: unknown): number | null {
  return typeof value === 'number' && Number.isFinite(value) ? value : null;
}
