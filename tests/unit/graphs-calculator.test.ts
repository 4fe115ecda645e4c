import fc from 'fast-check';
import { expect, test } from 'vitest';
import { calculate, ExpressionError } from '#src/graphs/calculator.ts';

test.each([
  ['17 * 23', 391],
  ['2 + 3 * 4 - 1', 13],
  ['2*(3+4)', 14],
  ['-(2 - 5)', 3],
  ['2 ^ 3 ^ 2', 512],
  ['-2^2', -4],
  ['10 % 4 / 2', 1],
  ['1.5e3 + 0.5', 1500.5],
  ['  7  ', 7],
  ['1/0', Number.POSITIVE_INFINITY],
])('%s = %d', (expression, value) => {
  expect(calculate(expression)).toBe(value);
});

test.each(['', '2 +', '(1', '1)', '2 3', 'process.exit()', '2; 3', 'Infinity', '1'.repeat(1001)])(
  'refuses %j',
  (expression) => {
    expect(() => calculate(expression)).toThrow(ExpressionError);
  },
);

test('agrees with JavaScript on sums, differences and products', () => {
  const operator = fc.constantFrom('+', '-', '*');
  const terms = fc.array(fc.tuple(operator, fc.nat(1000)), { maxLength: 20 });
  fc.assert(
    fc.property(fc.nat(1000), terms, (first, rest) => {
      const expression = [first, ...rest.flat()].join(' ');
      expect(calculate(expression)).toBe(Function(`return ${expression}`)());
    }),
  );
});

test('anything else is refused, never thrown otherwise', () => {
  fc.assert(
    fc.property(fc.string({ unit: fc.constantFrom(...'0123456789.+-*/%^() e') }), (text) => {
      try {
        expect(calculate(text)).toBeTypeOf('number');
      } catch (error) {
        expect(error).toBeInstanceOf(ExpressionError);
      }
    }),
  );
});
