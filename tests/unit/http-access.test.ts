/** The filters of Auth handlers: what they let through, and that what is not understood lets nothing through. */
import { describe, expect, test } from 'vitest';
import { compiledFilter, isSeen } from '#src/http/access.ts';

const seen = (fields: { [key: string]: unknown }, filter: object) => isSeen(fields, compiledFilter(filter));

describe('a filter', () => {
  test.each<[{ [key: string]: unknown }, object, boolean]>([
    [{ a: 'x' }, {}, true],
    [{ a: 'x', b: 1 }, { a: 'x' }, true],
    [{ a: 'x', b: 1 }, { a: 'x', b: 2 }, false],
    [{}, { a: 'x' }, false],
    [{ a: '1' }, { a: 1 }, false],
    [{ a: null }, { a: null }, true],
    [{}, { a: null }, false],
    [{ a: false }, { a: { $eq: false } }, true],
    [{ a: true }, { a: { $eq: false } }, false],
    [{ a: '' }, { a: { $eq: '' } }, true],
    [{ a: 'x' }, { a: { $eq: '' } }, false],
    [{ a: 'x' }, { a: { $contains: 'x' } }, false],
    [{ a: ['x', 'y'] }, { a: { $contains: 'x' } }, true],
    [{ a: ['x', 'y'] }, { a: { $contains: '' } }, false],
    [{ a: ['x', 'y'] }, { a: { $contains: ['y', 'x'] } }, true],
    [{ a: ['x'] }, { a: { $contains: ['y', 'x'] } }, false],
    [{ a: ['x'] }, { a: 'x' }, false],
    [{ a: ['x'] }, { a: { $contains: 'x', $eq: 'x' } }, false],
    [{ toString: 1 }, { constructor: 'x' }, false],
  ])('%j through %j: %s', (fields, filter, expected) => {
    expect(seen(fields, filter)).toBe(expected);
  });

  test.each([
    { a: undefined },
    { a: {} },
    { a: { $eq: undefined } },
    { a: { $eq: ['x'] } },
    { a: { $ne: 'x' } },
    { a: { $contains: undefined } },
    { a: { $contains: [] } },
    { a: { $contains: [undefined] } },
    { a: { $contains: 'x', $or: [] } },
    { a: ['x'] },
    { a: Number.NaN },
    { $or: [{ a: 'x' }] },
  ])('%o is refused', (filter) => {
    expect(() => compiledFilter(filter)).toThrow(TypeError);
  });
});
