import { expect, test } from 'vitest';
import { failure } from '#src/runs/failures.ts';
import type { Run } from '#src/runs/run.ts';
import { webhookPayload } from '#src/runs/webhook-payload.ts';

const run = (change: Partial<Run>): Run =>
  ({
    id: 'run',
    thread_id: 'thread',
    turn_id: null,
    assistant_id: 'assistant',
    status: 'succeeded',
    config: { metadata: { a: 1 } },
    wire: { multitask_strategy: 'enqueue' },
    error: null,
    usage: null,
    interrupts: [],
    reason: null,
    created_at: 'c',
    started_at: 's',
    ended_at: 'e',
    ...change,
  }) as Run;

test('a LangGraph client is told in its own words, with the values', () => {
  expect(webhookPayload(run({}), { n: 1 })).toEqual({
    run_id: 'run',
    thread_id: 'thread',
    assistant_id: 'assistant',
    created_at: 'c',
    updated_at: 'e',
    status: 'success',
    metadata: { a: 1 },
    multitask_strategy: 'enqueue',
    run_started_at: 's',
    run_ended_at: 'e',
    values: { n: 1 },
  });
});

test.each([
  ['interrupted', null, 'success'],
  ['cancelled', null, 'interrupted'],
  ['failed', failure('GRAPH_ERROR'), 'error'],
  ['failed', failure('RUN_TIMEOUT'), 'timeout'],
] as const)('%s with %o is %s', (status, error, told) => {
  expect(webhookPayload(run({ status, error }), null)).toMatchObject({ status: told });
});

test('what a graph threw reaches LangGraph clients only', () => {
  const error = { ...failure('GRAPH_ERROR'), thrown: { name: 'Refusal', message: 'hunter2' } };
  expect(webhookPayload(run({ status: 'failed', error }), null)).toMatchObject({ error: error.thrown });
  expect(JSON.stringify(webhookPayload(run({ status: 'failed', error, assistant_id: null }), null))).not.toContain(
    'hunter2',
  );
});
