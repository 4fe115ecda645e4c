import { describe, expect, test } from 'vitest';
import { RunledgerError } from '#src/errors.ts';
import { refuseBadText } from '#src/http/text-check.ts';

function refusal(value: unknown): Pick<RunledgerError, 'code' | 'path'> {
  try {
    refuseBadText(value);
  } catch (error) {
    if (error instanceof RunledgerError) return { code: error.code, path: error.path };
    throw error;
  }
  throw new Error('was accepted');
}

describe('refuseBadText', () => {
  test.each([
    ['a\u0000b', ''],
    [{ content: 'a\u0000' }, 'content'],
    [
      {
        content: [
          { type: 'text', text: 'x' },
          { type: 'text', text: '\ud83d' },
        ],
      },
      'content.1.text',
    ],
    [{ metadata: { deep: { list: [['\udc00\ud800']] } } }, 'metadata.deep.list.0.0'],
    [{ metadata: { 'k\u0000': 1 } }, 'metadata.k\uFFFD'],
    [{ interrupts: { '\udfff': true } }, 'interrupts.\uFFFD'],
  ])('refuses %j', (value, path) => {
    expect(refusal(value)).toEqual({ code: 'INVALID_CHARACTER', path });
  });

  test('lets everything else through', () => {
    const value = { a: '😀\u2028\u0001\uFFFD\uFFFE', b: [1, null, true, ['\ud83d\ude00']], c: {} };
    expect(() => refuseBadText(value)).not.toThrow();
    expect(() => refuseBadText(undefined)).not.toThrow();
  });

  test('refuses what is nested too deeply instead of running out of stack', () => {
    const text = `${'['.repeat(100_000)}1${']'.repeat(100_000)}`;
    expect(refusal({ metadata: JSON.parse(text) })).toEqual({ code: 'INVALID_REQUEST', path: 'metadata.0.0.0' });
    expect(() => refuseBadText(JSON.parse(`${'['.repeat(100)}1${']'.repeat(100)}`))).not.toThrow();
  });
});
