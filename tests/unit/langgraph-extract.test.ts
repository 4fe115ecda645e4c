import { expect, test } from 'vitest';
import { extracted, isPath } from '#src/dialects/langgraph/extract.ts';

const thread = { values: { messages: [{ content: 'a' }, { content: 'b' }], n: 0 }, metadata: { 'a key': true } };

test('a path names fields by dots and places in lists by brackets, from the end too', () => {
  const paths = {
    last: 'values.messages[-1].content',
    first: 'values.messages[0]',
    n: 'values.n',
    key: 'metadata.a key',
    all: 'metadata',
  };
  expect(extracted(thread, paths)).toEqual({
    last: 'b',
    first: { content: 'a' },
    n: 0,
    key: true,
    all: { 'a key': true },
  });
});

test('where there is nothing it gives null, and nothing of the language itself', () => {
  const paths = {
    far: 'values.messages[5].content',
    length: 'values.messages.length',
    proto: 'values.__proto__',
    x: 'x.y',
  };
  expect(extracted(thread, paths)).toEqual({ far: null, length: null, proto: null, x: null });
});

test('anything else is no path', () => {
  for (const path of ['', '.', 'a.', 'a..b', 'a[x]', 'a[', 'a]b', '[0]a']) expect(isPath(path), path).toBe(false);
  for (const path of ['a', 'a.b', 'a[0].b', 'a[-1][2]']) expect(isPath(path), path).toBe(true);
});
