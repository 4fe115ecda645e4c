import { describe, expect, test } from 'vitest';
import { addUsage, foldUsage, readUsage } from '#src/graphs/usage.ts';

const usage = (input: number, output: number, details?: Record<string, number>) => ({
  input_tokens: input,
  output_tokens: output,
  total_tokens: input + output,
  ...(details === undefined ? {} : { output_token_details: details }),
});
const fold = (reports: ReturnType<typeof usage>[]) => reports.reduce(foldUsage, null as never);

describe('reports of one call', () => {
  test.each([
    ['once, at the end', [usage(25, 9)], usage(25, 9)],
    ['totals with every chunk', [usage(25, 1), usage(25, 2), usage(25, 9)], usage(25, 9)],
    ['totals, the last one repeated', [usage(25, 9), usage(25, 9)], usage(25, 9)],
    ['the prompt first, the answer later', [usage(25, 1), usage(0, 8)], usage(25, 9)],
    ['parts, one per chunk', [usage(25, 0), usage(0, 1), usage(0, 1), usage(0, 1)], usage(25, 3)],
    ['parts without the prompt', [usage(0, 1), usage(0, 1)], usage(0, 2)],
    [
      'details of totals',
      [usage(25, 1, { reasoning: 1 }), usage(25, 9, { reasoning: 4 })],
      usage(25, 9, { reasoning: 4 }),
    ],
    [
      'details of parts',
      [usage(25, 1, { reasoning: 1 }), usage(0, 8, { reasoning: 3 })],
      usage(25, 9, { reasoning: 4 }),
    ],
  ])('%s', (_name, reports, truth) => {
    expect(fold(reports)).toEqual(truth);
  });
});

test('calls add up, details included', () => {
  expect(addUsage(usage(10, 5, { reasoning: 2 }), usage(1, 1, { audio: 1 }))).toEqual(
    usage(11, 6, { reasoning: 2, audio: 1 }),
  );
});

describe('readUsage', () => {
  test.each([null, undefined, 'x', {}, { input_tokens: 'many' }, { input_tokens: Number.NaN }])(
    '%j is none',
    (value) => {
      expect(readUsage(value)).toBeNull();
    },
  );
  test('fills in the total and leaves out empty details', () => {
    const raw = { input_tokens: 3, output_tokens: 4, input_token_details: {}, output_token_details: { x: undefined } };
    expect(readUsage(raw)).toEqual({ input_tokens: 3, output_tokens: 4, total_tokens: 7 });
  });
});
