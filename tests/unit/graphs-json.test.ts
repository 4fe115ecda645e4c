import { AIMessage, HumanMessage } from '@langchain/core/messages';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { toJson } from '#src/graphs/json.ts';
import { partJson } from '#src/graphs/message-fields.ts';

describe('toJson', () => {
  test('keeps JSON as it is, as a copy', () => {
    fc.assert(
      fc.property(fc.jsonValue(), (value) => {
        const plain = JSON.parse(JSON.stringify(value));
        expect(toJson(plain)).toEqual(plain);
      }),
    );
    const inner = { n: 1 };
    const copy = toJson({ inner });
    inner.n = 2;
    expect(copy).toEqual({ inner: { n: 1 } });
  });

  test('never throws and gives what JSON.stringify takes, for anything', () => {
    const anything = fc.anything({
      withBigInt: true,
      withBoxedValues: true,
      withDate: true,
      withMap: true,
      withNullPrototype: true,
      withObjectString: true,
      withSet: true,
      withSparseArray: true,
      withTypedArray: true,
      withUnicodeString: true,
    });
    fc.assert(
      fc.property(anything, (value) => {
        const json = toJson(value);
        expect(JSON.parse(JSON.stringify(json))).toEqual(json);
      }),
    );
  });

  const circular: Record<string, unknown> = { name: 'a' };
  circular.self = circular;
  const shared = { x: 1 };
  const hostile = {
    ok: 1,
    get bad(): never {
      throw new Error('no');
    },
  };
  const revoked = Proxy.revocable({}, {});
  revoked.revoke();

  test.each<[string, unknown, unknown]>([
    ['BigInt', { n: 12n }, { n: '12n' }],
    ['a negative zero', -0, 0],
    ['NaN and infinity', [Number.NaN, Number.POSITIVE_INFINITY], ['NaN', 'Infinity']],
    ['functions and symbols', [() => 1, Symbol('s')], ['[function]', '[symbol]']],
    ['undefined', { a: undefined, b: [undefined] }, { b: [null] }],
    ['a cycle', circular, { name: 'a', self: '[circular]' }],
    ['an object met twice, which is no cycle', [shared, shared], [{ x: 1 }, { x: 1 }]],
    ['a getter that throws', hostile, { ok: 1, bad: '[unreadable]' }],
    ['a revoked proxy', [revoked.proxy], ['[unreadable]']],
    ['toJSON that throws', { toJSON: () => JSON.parse('{') }, '[unreadable]'],
    ['a Date', new Date(0), '1970-01-01T00:00:00.000Z'],
    ['an invalid Date', new Date(Number.NaN), null],
    ['a Map with string keys', new Map([['a', 1n]]), { a: '1n' }],
    ['a Map with other keys', new Map([[1, 'x']]), [[1, 'x']]],
    ['a Set', new Set([1, 'a']), [1, 'a']],
    ['bytes', new Uint8Array([1, 2, 255]), 'data:application/octet-stream;base64,AQL/'],
    ['numbers in a typed array', new Float32Array([0.5]), [0.5]],
    ['a promise', Promise.resolve(1), '[promise]'],
    ['a key that is __proto__', JSON.parse('{"__proto__": {"x": 1}}'), JSON.parse('{"__proto__": {"x": 1}}')],
  ])('%s', (_name, value, expected) => {
    expect(toJson(value)).toEqual(expected);
    expect(JSON.stringify(toJson(value))).toBe(JSON.stringify(expected));
  });

  test('an Error without its stack', () => {
    const error = Object.assign(new TypeError('bad'), { secret: 'x' });
    expect(toJson({ error })).toEqual({ error: { name: 'TypeError', message: 'bad' } });
  });

  test('nesting deeper than any stack', () => {
    let deep: unknown = 'end';
    for (let depth = 0; depth < 100_000; depth += 1) deep = [deep];
    expect(JSON.stringify(toJson(deep))).toContain('nested too deeply');
  });

  test('NUL, lone surrogates and U+2028 are kept', () => {
    const text = 'a\u0000b\ud800c\u2028d';
    expect(toJson({ [text]: text })).toEqual({ [text]: text });
  });
});

describe('partJson', () => {
  test('messages anywhere in it become their fields, and are reported in order', () => {
    const first = new AIMessage({
      id: 'a',
      content: 'hi',
      tool_calls: [{ id: 'c', name: 't', args: { x: 1 } }],
      additional_kwargs: { reasoning_content: 'hm' },
    });
    const second = new HumanMessage({ id: 'b', content: [{ type: 'text', text: 'x' }] });
    const found: string[] = [];
    const json = partJson({ node: { messages: [first], deep: [[second]] } }, (message) => found.push(message.id ?? ''));
    expect(found).toEqual(['a', 'b']);
    expect(json).toEqual({
      node: {
        messages: [
          {
            id: 'a',
            type: 'ai',
            content: 'hi',
            additional_kwargs: { reasoning_content: 'hm' },
            tool_calls: [{ id: 'c', name: 't', args: { x: 1 } }],
          },
        ],
        deep: [[{ id: 'b', type: 'human', content: [{ type: 'text', text: 'x' }] }]],
      },
    });
  });
});
