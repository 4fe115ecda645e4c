import { describe, expect, test } from 'vitest';
import type { z } from 'zod';
import {
  answerBody,
  cursorOf,
  messageBody,
  requestKeyOf,
  threadListQuery,
  uuidOr,
  wantsStream,
} from '#src/dialects/rest/wire.ts';
import { BEFORE_START } from '#src/events/cursor.ts';
import { validatorCompiler } from '#src/http/validation.ts';

/** The path a client is told, or null when the value is accepted. */
function refusedPath(schema: z.ZodType, value: unknown): string | null {
  const validate = validatorCompiler({ schema, method: 'POST', url: '/', httpPart: 'body' });
  const result = validate(value) as { value?: unknown; error?: { path: string } };
  return result.error === undefined ? null : result.error.path;
}

describe('a message', () => {
  test.each<[unknown]>([
    ['hi'],
    ['\u2028'.concat('x')],
    [[{ type: 'text', text: 'hi' }]],
    [[{ type: 'image_url', image_url: { url: 'data:x' } }]],
    [
      [
        { type: 'text', text: '' },
        { type: 'image_url', image_url: 'x' },
      ],
    ],
    [[{ type: 'text', text: 'hi', extra: { kept: [1] } }]],
  ])('content %j is kept as it is', (content) => {
    expect(messageBody.parse({ content })).toEqual({ content });
  });

  test.each<[unknown, string]>([
    [undefined, 'content'],
    [null, 'content'],
    [7, 'content'],
    ['', 'content'],
    [' \n\t', 'content'],
    [[], 'content'],
    [[{ type: 'text', text: '' }], 'content'],
    [
      [
        { type: 'text', text: ' ' },
        { type: 'text', text: '' },
      ],
      'content',
    ],
    [[{ type: 'text' }], 'content.0.text'],
    [
      [
        { type: 'text', text: 'x' },
        { type: 'text', text: 7 },
      ],
      'content.1.text',
    ],
    [[{ text: 'x' }], 'content.0.type'],
    [[{ type: '' }], 'content.0.type'],
    [['hi'], 'content.0'],
  ])('content %j is refused at %s', (content, path) => {
    expect(refusedPath(messageBody, { content })).toBe(path);
  });

  test('config reaches the graph, without the ids that are the server’s', () => {
    const config = {
      configurable: { model: 'x', deep: { run_id: 1 } },
      recursion_limit: 1000,
      tags: ['a'],
      metadata: { b: 1 },
    };
    expect(messageBody.parse({ content: 'x', config })).toEqual({ content: 'x', config });
    for (const key of [
      'thread_id',
      'checkpoint_id',
      'checkpoint_ns',
      'checkpoint_map',
      'run_id',
      '__pregel_resuming',
      '__',
    ]) {
      expect(refusedPath(messageBody, { content: 'x', config: { configurable: { [key]: 1 } } })).toBe(
        `config.configurable.${key}`,
      );
    }
  });

  test.each<[unknown, string]>([
    [{ recursion_limit: 0 }, 'config.recursion_limit'],
    [{ recursion_limit: 1001 }, 'config.recursion_limit'],
    [{ recursion_limit: 2.5 }, 'config.recursion_limit'],
    [{ tags: ['a', 1] }, 'config.tags.1'],
    [{ metadata: [] }, 'config.metadata'],
    [{ configurable: 'x' }, 'config.configurable'],
    [{ callbacks: [] }, 'config.callbacks'],
  ])('config %j is refused at %s', (config, path) => {
    expect(refusedPath(messageBody, { content: 'x', config })).toBe(path);
  });

  test('a misspelt field is refused, not ignored', () => {
    expect(refusedPath(messageBody, { content: 'x', on_disconect: 'cancel' })).toBe('on_disconect');
    expect(refusedPath(messageBody, { content: 'x', on_disconnect: 'stop' })).toBe('on_disconnect');
    expect(refusedPath(messageBody, { content: 'x', request_key: '' })).toBe('request_key');
  });
});

describe('an answer', () => {
  test('takes any value for any id, but at least one', () => {
    const interrupts = { i1: null, i2: { approved: true }, i3: [1, 'x'] };
    expect(answerBody.parse({ interrupts })).toEqual({ interrupts });
    expect(refusedPath(answerBody, { interrupts: {} })).toBe('interrupts');
    expect(refusedPath(answerBody, { interrupts: ['i1'] })).toBe('interrupts');
  });
});

describe('a page', () => {
  test('has 1 to 100 threads, 20 by default', () => {
    expect(threadListQuery.parse({})).toEqual({ limit: 20 });
    expect(threadListQuery.parse({ limit: '100', archived: 'false' })).toEqual({ limit: 100, archived: false });
    for (const limit of ['0', '101', 'x', '1.5', '', '-1'])
      expect(refusedPath(threadListQuery, { limit })).toBe('limit');
    expect(refusedPath(threadListQuery, { archived: 'yes' })).toBe('archived');
    expect(refusedPath(threadListQuery, { cursor: ['a', 'b'] })).toBe('cursor');
  });
});

describe('cursorOf', () => {
  const from = (header: string | undefined, query?: string) =>
    cursorOf({ headers: header === undefined ? {} : { 'last-event-id': header } }, query);

  test('none and empty are the start, the query wins over the header', () => {
    expect([from(undefined), from(''), from(undefined, ''), from('', '')]).toEqual(Array(4).fill(BEFORE_START));
    expect([from('7'), from('7', ''), from('7', '3000001'), from(undefined, '0')]).toEqual([7, 7, 3_000_001, 0]);
  });

  test.each([
    'abc',
    '-5',
    '-1',
    '1-',
    '1-2',
    '1.5',
    '1e3',
    ' 1',
    '0x1',
    '18446744073709551616-0',
    '9'.repeat(16),
    'x'.repeat(10_000),
    '😀',
    "'; DROP TABLE runs;--",
  ])('cursor case %# is refused', (text) => {
    expect(() => from(text)).toThrow(expect.objectContaining({ code: 'INVALID_CURSOR', path: 'last-event-id' }));
    expect(() => from('7', text)).toThrow(expect.objectContaining({ code: 'INVALID_CURSOR', path: 'last_event_id' }));
  });
});

describe('requestKeyOf', () => {
  const of = (header: string | undefined, body?: string) =>
    requestKeyOf({ headers: header === undefined ? {} : { 'idempotency-key': header } }, body);

  test('body or header', () => {
    expect([of(undefined), of('', 'b'), of(undefined, 'b'), of('h'), of('same', 'same')]).toEqual([
      undefined,
      'b',
      'b',
      'h',
      'same',
    ]);
    expect(() => of('h', 'b')).toThrow(expect.objectContaining({ code: 'INVALID_REQUEST', path: 'idempotency-key' }));
    expect(() => of('x'.repeat(256))).toThrow(expect.objectContaining({ code: 'INVALID_REQUEST' }));
  });
});

describe('wantsStream', () => {
  test.each<[string | undefined, boolean]>([
    ['text/event-stream', true],
    ['application/json, text/event-stream', true],
    ['TEXT/Event-Stream; charset=utf-8; q=0.5', true],
    ['text/event-stream;q=0', false],
    ['text/event-stream; q=0.000', false],
    ['*/*', false],
    ['text/*', false],
    ['application/json', false],
    [undefined, false],
  ])('%s: %s', (accept, wanted) => {
    expect(wantsStream({ headers: accept === undefined ? {} : { accept } })).toBe(wanted);
  });
});

describe('uuidOr', () => {
  test('what is no UUID names nothing', () => {
    const id = '0198C5A0-0000-7000-8000-00000000000A';
    expect(uuidOr('RUN_NOT_FOUND', id)).toBe(id.toLowerCase());
    for (const text of ['', 'x', `${id}0`, id.replaceAll('-', ''), `{${id}}`, `${id}\n`, '../x']) {
      expect(() => uuidOr('THREAD_NOT_FOUND', text)).toThrow(expect.objectContaining({ code: 'THREAD_NOT_FOUND' }));
    }
  });
});
