/** Queries, as versions of the SDK write them. */
import { expect, test } from 'vitest';
import { historyQuery, joinQuery, stateQuery, threadQuery, threadStreamQuery } from '#src/dialects/langgraph/wire.ts';

test.each([
  ['one', 'values', 'values'],
  ['several', ['values', 'updates'], ['values', 'updates']],
  ['a list in JSON', '["values","updates"]', ['values', 'updates']],
  ['a list of none', '[]', []],
  ['a name that begins like one', '[values', '[values'],
])('%s in a query', (_name, written, read) => {
  expect(joinQuery.parse({ stream_mode: written }).stream_mode).toEqual(read);
  expect(threadQuery.parse({ include: written }).include).toEqual(read);
  expect(stateQuery.parse({ select: written }).select).toEqual(read);
  expect(historyQuery.parse({ select: written }).select).toEqual(read);
});

test('the modes of a thread’s stream', () => {
  expect(threadStreamQuery.parse({}).stream_mode).toBe('run_modes');
  expect(threadStreamQuery.parse({ stream_mode: '["lifecycle","state_update"]' }).stream_mode).toEqual([
    'lifecycle',
    'state_update',
  ]);
  expect(threadStreamQuery.safeParse({ stream_mode: '["lifecycle","other"]' }).success).toBe(false);
});
