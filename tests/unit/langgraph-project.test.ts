import { describe, expect, test } from 'vitest';
import type { StreamMode } from '#src/dialects/langgraph/frames.ts';
import { createFold, type Seen } from '#src/dialects/langgraph/project.ts';
import type { EventOf, RunEvent } from '#src/events/event.ts';

const started: RunEvent = { type: 'run.started', run_id: 'r', thread_id: 't', turn_id: null, graph_id: 'g' };
const head: EventOf<'message.head'> = {
  type: 'message.head',
  ns: [],
  message: { id: 'm', type: 'ai', content: 'be' },
  metadata: { langgraph_node: 'agent' },
};
const delta: RunEvent = { type: 'message.delta', m: 1, kind: 'text', text: 'gin' };
const sealed: EventOf<'run.sealed'> = {
  type: 'run.sealed',
  status: 'succeeded',
  error: null,
  usage: null,
  interrupts: [],
  reason: null,
};
const part = (
  mode: EventOf<'graph.part'>['mode'],
  data: EventOf<'graph.part'>['data'],
  ns: string[] = [],
): RunEvent => ({
  type: 'graph.part',
  mode,
  ns,
  data,
});

function frames(modes: StreamMode[], events: (RunEvent | 'hole')[], subgraphs = false) {
  const fold = createFold({ runId: 'r', modes: new Set(modes), subgraphs });
  return events.flatMap((event): ReturnType<typeof fold> => {
    const item: Seen =
      event === 'hole'
        ? { kind: 'resync' }
        : {
            kind: 'event',
            event,
            head: event.type === 'message.delta' || event.type === 'message.chunk' ? head : null,
          };
    return fold(item);
  });
}
const metadata = { event: 'metadata', data: { run_id: 'r', attempt: 1 }, id: '0' };

describe('ids', () => {
  test('count the frames of the run’s own modes, and nothing else', () => {
    const seen = frames(
      ['values'],
      [started, head, delta, part('updates', { a: 1 }), part('values', { n: 1 }), sealed],
    );
    expect(seen).toEqual([metadata, { event: 'values', data: { n: 1 }, id: '1' }]);
  });

  test('stop at a hole, which is said', () => {
    const seen = frames(['values'], [started, 'hole', part('values', { n: 1 })]);
    expect(seen).toEqual([metadata, { event: 'resync_required', data: {} }, { event: 'values', data: { n: 1 } }]);
  });

  test('a torn log is a hole', () => {
    const seen = frames(['values'], [started, { type: 'log.torn', reason: 'max_events' }, part('values', { n: 1 })]);
    expect(seen.map(({ event, id }) => [event, id])).toEqual([
      ['metadata', '0'],
      ['resync_required', undefined],
      ['values', undefined],
    ]);
  });
});

describe('messages', () => {
  test('mode messages-tuple gives each chunk with the metadata of its message', () => {
    const seen = frames(['messages-tuple'], [started, head, delta]);
    expect(seen.slice(1)).toEqual([
      { event: 'messages', id: '1', data: [expect.objectContaining({ id: 'm', content: 'be' }), head.metadata] },
      { event: 'messages', id: '2', data: [expect.objectContaining({ id: 'm', content: 'gin' }), head.metadata] },
    ]);
    expect(seen[1]?.data).toMatchObject([
      { type: 'ai', tool_calls: [], tool_call_chunks: [], additional_kwargs: {} },
      {},
    ]);
  });

  test('chunks that are stored as one are told apart', () => {
    const merged: RunEvent = { type: 'message.delta', m: 1, kind: 'text', text: 'abcd', cuts: [1, 3] };
    const seen = frames(['messages-tuple'], [started, head, merged]);
    expect(seen.slice(2).map(({ id, data }) => [id, contentOf(data)])).toEqual([
      ['2', 'a'],
      ['3', 'bc'],
      ['4', 'd'],
    ]);
  });

  test('mode messages repeats the message so far, and gives it once when it is in the state', () => {
    const message = { id: 'm', type: 'ai', content: 'begin' };
    const events = [
      started,
      head,
      delta,
      part('values', { messages: [message] }),
      part('values', { messages: [message] }),
    ];
    expect(frames(['messages'], events).map(({ event, data }) => [event, contentOf(data)])).toEqual([
      ['metadata', undefined],
      ['messages/metadata', undefined],
      ['messages/partial', 'be'],
      ['messages/partial', 'begin'],
      ['messages/complete', 'begin'],
    ]);
  });

  test('arguments of a tool call are put together', () => {
    const call: RunEvent = {
      type: 'message.chunk',
      m: 1,
      message: {
        id: 'm',
        type: 'ai',
        content: '',
        tool_call_chunks: [{ index: 0, id: 'c', name: 'add', args: '{"a"' }],
      },
    };
    const args: RunEvent = { type: 'message.delta', m: 1, kind: 'tool_args', text: ':1}', index: 0 };
    const [last] = frames(['messages'], [started, head, call, args]).slice(-1);
    expect(last?.data).toMatchObject([{ tool_calls: [{ id: 'c', name: 'add', args: { a: 1 }, type: 'tool_call' }] }]);
  });

  test('what a retry drops is removed, and the next attempt is counted', () => {
    const retry: RunEvent = { type: 'run.retry', attempt: 1, delay_ms: 0, dropped: ['m'] };
    expect(frames(['messages-tuple'], [started, head, retry]).slice(2)).toMatchObject([
      { event: 'metadata', data: { run_id: 'r', attempt: 2 }, id: '2' },
      { event: 'messages', data: [{ type: 'remove', id: 'm' }, {}], id: '3' },
    ]);
  });

  test('a message of the state has the fields LangChain always has', () => {
    const data = { messages: [{ id: 'h', type: 'human', content: 'hi' }], note: { id: 'x', type: 'human' } };
    expect(frames(['values'], [started, part('values', data)])[1]?.data).toEqual({
      messages: [{ id: 'h', type: 'human', content: 'hi', additional_kwargs: {}, response_metadata: {} }],
      note: { id: 'x', type: 'human' },
    });
  });
});

describe('nested graphs', () => {
  const nested = part('values', { n: 1 }, ['child:1', 'deep:2']);
  test('are shown only where the client asks, with their namespace', () => {
    expect(frames(['values'], [started, nested])).toEqual([metadata]);
    expect(frames(['values'], [started, nested], true)[1]).toMatchObject({ event: 'values|child:1|deep:2', id: '1' });
  });

  test('their messages are shown either way', () => {
    const inner = { ...head, ns: ['child:1'] };
    expect(frames(['messages-tuple'], [started, inner])[1]?.event).toBe('messages');
    expect(frames(['messages-tuple'], [started, inner], true)[1]?.event).toBe('messages|child:1');
  });
});

test('checkpoints are told in short, debug checkpoints with their names', () => {
  const config = { configurable: { thread_id: 't', checkpoint_ns: '', checkpoint_id: 'c2' } };
  const parentConfig = { configurable: { thread_id: 't', checkpoint_ns: '', checkpoint_id: 'c1' } };
  const payload = { values: { n: 1 }, metadata: { step: 0 }, next: ['a'], tasks: [], config, parentConfig };
  const seen = frames(
    ['checkpoints', 'debug'],
    [started, part('checkpoints', payload), part('debug', { type: 'checkpoint', step: 0, payload })],
  );
  expect(seen[1]?.data).toEqual({ values: { n: 1 }, metadata: { step: 0 }, next: ['a'] });
  expect(seen[2]?.data).toMatchObject({
    payload: {
      checkpoint: { thread_id: 't', checkpoint_id: 'c2', checkpoint_ns: '', checkpoint_map: null },
      parent_checkpoint: { checkpoint_id: 'c1' },
    },
  });
});

test('a task of a nested graph is told with the place of its checkpoints', () => {
  const state = { configurable: { thread_id: 't', checkpoint_ns: 'child:1' } };
  const [, frame] = frames(['tasks'], [started, part('tasks', { id: 'task', name: 'child', state })]);
  expect(frame?.data).toEqual({
    id: 'task',
    name: 'child',
    checkpoint: { thread_id: 't', checkpoint_id: null, checkpoint_ns: 'child:1', checkpoint_map: null },
  });
});

test('a failure is the last frame; an end without one has none', () => {
  const failed: RunEvent = {
    ...sealed,
    status: 'failed',
    error: { code: 'RECURSION_LIMIT', message: 'Too many steps.', recovery: 'retry' },
  };
  expect(frames(['values'], [started, failed]).at(-1)).toMatchObject({
    event: 'error',
    data: { error: 'GraphRecursionError', message: 'Too many steps.' },
  });
  expect(frames(['values'], [started, sealed])).toEqual([metadata]);
});

test('a log without a beginning is given one', () => {
  expect(frames(['values'], [sealed])).toEqual([metadata]);
});

test('the same events give the same frames', () => {
  const events = [
    started,
    head,
    delta,
    part('values', { messages: [{ id: 'm', type: 'ai', content: 'begin' }] }),
    sealed,
  ];
  const modes: StreamMode[] = ['messages', 'messages-tuple', 'values'];
  expect(frames(modes, events)).toEqual(frames(modes, events));
});

function contentOf(data: unknown): unknown {
  return Array.isArray(data) ? (data[0] as { content?: unknown }).content : undefined;
}
