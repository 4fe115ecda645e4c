import { describe, expect, test } from 'vitest';
import { type Entry, project, RESYNC } from '#src/dialects/rest/project.ts';
import type { EventOf, Json, MessageFields, RunEvent, RunEventType } from '#src/events/event.ts';
import { REPLAY_HOME } from '#src/events/event.ts';

const metadata = {};
const ai: MessageFields = { id: 'ai-1', type: 'ai', content: '' };
const head: EventOf<'message.head'> = { type: 'message.head', ns: [], message: ai, metadata };
const nestedHead: EventOf<'message.head'> = { ...head, ns: ['research:7'] };
const usage = { input_tokens: 3, output_tokens: 4, total_tokens: 7 };
const ids = { run_id: 'r', thread_id: 't', turn_id: 'u' };
const sealed: EventOf<'run.sealed'> = {
  type: 'run.sealed',
  status: 'succeeded',
  error: null,
  usage,
  interrupts: [],
  reason: null,
};
const failure = { code: 'MODEL_TIMEOUT', message: 'The model did not answer in time.', recovery: 'retry' } as const;

function frames(event: RunEvent, extra: Partial<Entry> = {}) {
  return project({ cursor: 42, event, head: null, ...extra });
}

/** [event, expected frames without ids, head]. Every event type is here at least once; a test below sees to it. */
const golden: [name: string, RunEvent, { event: string; data: unknown }[], EventOf<'message.head'>?][] = [
  [
    'the start',
    { type: 'run.started', ...ids, graph_id: 'chat' },
    [{ event: 'metadata', data: { ...ids, takeover: 0 } }],
  ],
  [
    'a takeover tells what to forget',
    { type: 'run.taken_over', ...ids, takeover: 2, checkpoint_id: 'c', after: 7, dropped: ['ai-1'] },
    [{ event: 'metadata', data: { ...ids, takeover: 2, dropped: ['ai-1'] } }],
  ],
  [
    'a takeover that drops nothing says so',
    { type: 'run.taken_over', ...ids, takeover: 1, checkpoint_id: null, after: -1, dropped: [] },
    [{ event: 'metadata', data: { ...ids, takeover: 1, dropped: [] } }],
  ],
  ['an empty head', head, []],
  [
    'a head with text',
    { ...head, message: { ...ai, content: 'Hel' } },
    [{ event: 'message_chunk', data: { message_id: 'ai-1', type: 'text', delta: 'Hel' } }],
  ],
  [
    'a head in a nested graph, with reasoning beside the text, and a tool call',
    {
      ...nestedHead,
      message: {
        ...ai,
        content: 'so',
        additional_kwargs: { reasoning_content: 'hm' },
        tool_call_chunks: [{ index: 0, id: 'call', name: 'look', args: '' }],
      },
    },
    [
      { event: 'message_chunk', data: { message_id: 'ai-1', type: 'reasoning', delta: 'hm', ns: ['research:7'] } },
      { event: 'message_chunk', data: { message_id: 'ai-1', type: 'text', delta: 'so', ns: ['research:7'] } },
      {
        event: 'tool_call_chunks',
        data: {
          message_id: 'ai-1',
          tool_call_chunks: [{ index: 0, id: 'call', name: 'look', args: '' }],
          ns: ['research:7'],
        },
      },
    ],
  ],
  [
    'a head with content blocks, in their order',
    {
      ...head,
      message: {
        ...ai,
        content: [
          { type: 'thinking', thinking: 'a', signature: 's' },
          { type: 'reasoning', reasoning: 'b' },
          {
            type: 'reasoning',
            summary: [
              { type: 'summary_text', text: 'c' },
              { type: 'summary_text', text: 'd' },
            ],
          },
          { type: 'text', text: 'e' },
          'f',
          { type: 'text', text: '' },
          { type: 'image_url', image_url: { url: 'x' } },
          7,
        ],
      },
    },
    ['a', 'b', 'cd', 'e', 'f'].map((delta) => ({
      event: 'message_chunk',
      data: { message_id: 'ai-1', type: delta === 'e' || delta === 'f' ? 'text' : 'reasoning', delta },
    })),
  ],
  ['a streamed message of a person', { ...head, message: { ...ai, type: 'human', content: 'hi' } }, []],
  [
    'more text',
    { type: 'message.delta', m: 1, kind: 'text', text: 'lo' },
    [{ event: 'message_chunk', data: { message_id: 'ai-1', type: 'text', delta: 'lo' } }],
    head,
  ],
  [
    'more reasoning in a nested graph',
    { type: 'message.delta', m: 1, kind: 'reasoning', text: 'hm', block: { index: 0, type: 'thinking' } },
    [{ event: 'message_chunk', data: { message_id: 'ai-1', type: 'reasoning', delta: 'hm', ns: ['research:7'] } }],
    nestedHead,
  ],
  [
    'more arguments of a tool call',
    { type: 'message.delta', m: 1, kind: 'tool_args', text: '{"q":', index: 2 },
    [{ event: 'tool_call_chunks', data: { message_id: 'ai-1', tool_call_chunks: [{ index: 2, args: '{"q":' }] } }],
    head,
  ],
  [
    'more of a message that is not the model’s',
    { type: 'message.delta', m: 1, kind: 'text', text: 'x' },
    [],
    { ...head, message: { ...ai, type: 'human' } },
  ],
  ['more of a message whose head is lost', { type: 'message.delta', m: 1, kind: 'text', text: 'x' }, []],
  [
    'a chunk that is more than text',
    {
      type: 'message.chunk',
      m: 1,
      message: {
        id: 'ai-1',
        type: 'ai',
        content: 'end',
        tool_call_chunks: [{ index: 0, args: '}' }],
        usage_metadata: usage,
      },
    },
    [
      { event: 'message_chunk', data: { message_id: 'ai-1', type: 'text', delta: 'end' } },
      { event: 'tool_call_chunks', data: { message_id: 'ai-1', tool_call_chunks: [{ index: 0, args: '}' }] } },
    ],
    head,
  ],
  [
    'a chunk with a finish reason only',
    { type: 'message.chunk', m: 1, message: { ...ai, response_metadata: { finish_reason: 'stop' } } },
    [],
    head,
  ],
  [
    'a whole answer that was not streamed',
    { type: 'message.whole', ns: [], message: { ...ai, content: 'All of it.' }, metadata },
    [{ event: 'message_chunk', data: { message_id: 'ai-1', type: 'text', delta: 'All of it.' } }],
  ],
  [
    'a tool’s result',
    {
      type: 'message.whole',
      ns: ['research:7'],
      message: { id: 'tool-1', type: 'tool', name: 'look', tool_call_id: 'call', status: 'error', content: [{ a: 1 }] },
      metadata,
    },
    [
      {
        event: 'tool_call_result',
        data: {
          message_id: 'tool-1',
          tool_call_id: 'call',
          name: 'look',
          status: 'error',
          content: [{ a: 1 }],
          ns: ['research:7'],
        },
      },
    ],
  ],
  [
    'a tool’s result with little in it',
    { type: 'message.whole', ns: [], message: { id: 'tool-1', type: 'tool', content: '' }, metadata },
    [
      {
        event: 'tool_call_result',
        data: { message_id: 'tool-1', tool_call_id: null, name: null, status: null, content: '' },
      },
    ],
  ],
  [
    'a whole message of a person',
    { type: 'message.whole', ns: [], message: { id: 'h', type: 'human', content: 'hi' }, metadata },
    [],
  ],
  [
    'tool calls',
    {
      type: 'message.tool_calls',
      ns: [],
      message_id: 'ai-1',
      tool_calls: [{ id: 'call', name: 'look', args: { q: 1 } }],
    },
    [{ event: 'tool_calls', data: { message_id: 'ai-1', tool_calls: [{ id: 'call', name: 'look', args: { q: 1 } }] } }],
  ],
  [
    'what a node writes itself',
    { type: 'graph.part', mode: 'custom', ns: ['a:1', 'b:2'], data: 'half done' },
    [{ event: 'custom', data: { data: 'half done', ns: ['a:1', 'b:2'] } }],
  ],
  [
    'questions to a person',
    {
      type: 'graph.part',
      mode: 'updates',
      ns: [],
      data: {
        __interrupt__: [{ id: 'i1', value: { ask: 'ok?' }, when: 'during' }, { id: 'i2' }, { value: 'no id' }, null],
      },
    },
    [
      {
        event: 'interrupt',
        data: {
          interrupts: [
            { id: 'i1', value: { ask: 'ok?' } },
            { id: 'i2', value: null },
          ],
        },
      },
    ],
  ],
  [
    'questions, told by a nested graph',
    { type: 'graph.part', mode: 'updates', ns: ['a:1'], data: { __interrupt__: [{ id: 'i1', value: 1 }] } },
    [],
  ],
  ['updates', { type: 'graph.part', mode: 'updates', ns: [], data: { agent: { messages: [] } } }, []],
  ['updates of another shape', { type: 'graph.part', mode: 'updates', ns: [], data: { __interrupt__: 'x' } }, []],
  ['values', { type: 'graph.part', mode: 'values', ns: [], data: { __interrupt__: [{ id: 'i1', value: 1 }] } }, []],
  [
    'usage',
    { type: 'run.usage', ns: [], message_id: 'ai-1', model: 'm', usage },
    [{ event: 'usage', data: { message_id: 'ai-1', model: 'm', usage } }],
  ],
  [
    'a retry',
    { type: 'run.retry', attempt: 1, delay_ms: 500, dropped: ['ai-1'] },
    [{ event: 'retry', data: { attempt: 1, delay_ms: 500, dropped: ['ai-1'] } }],
  ],
  ['input given while it ran', { type: 'run.steered', message: { id: 'h', type: 'human', content: 'hi' } }, []],
  ['put back', { type: 'run.requeued', reason: 'drain' }, []],
  ['a torn log', { type: 'log.torn', reason: 'max_bytes' }, [{ event: 'resync_required', data: {} }]],
  ['success', sealed, [{ event: 'run_end', data: { status: 'succeeded', usage } }]],
  [
    'a failure, told twice',
    { ...sealed, status: 'failed', error: failure, usage: null },
    [
      { event: 'error', data: failure },
      { event: 'run_end', data: { status: 'failed', usage: null, error: failure } },
    ],
  ],
  [
    'a wait for a person',
    { ...sealed, status: 'interrupted', interrupts: [{ id: 'i1', value: 1 }] },
    [{ event: 'run_end', data: { status: 'interrupted', usage, interrupts: [{ id: 'i1', value: 1 }] } }],
  ],
  [
    'a cancel by the server',
    { ...sealed, status: 'cancelled', usage: null, reason: 'SUPERSEDED' },
    [{ event: 'run_end', data: { status: 'cancelled', usage: null, reason: 'SUPERSEDED' } }],
  ],
];

describe('project', () => {
  test.each(golden)('%s', (_name, event, expected, itsHead) => {
    const made = frames(event, { head: itsHead ?? null });
    expect(made.map(({ event: name, data }) => ({ event: name, data }))).toEqual(expected);
  });

  test.each(golden)('%s: only the last frame has the id', (_name, event, expected, itsHead) => {
    const made = frames(event, { head: itsHead ?? null });
    expect(made.map(({ id }) => id)).toEqual(
      expected.map((_frame, index) => (index === expected.length - 1 ? 42 : undefined)),
    );
  });

  test('every event type has a case', () => {
    const covered = new Set<RunEventType>(golden.map(([, event]) => event.type));
    expect([...covered].sort()).toEqual(Object.keys(REPLAY_HOME).sort());
  });

  test('is pure: the same entry gives the same frames, and shares none', () => {
    for (const [, event, , itsHead] of golden) {
      const before = structuredClone([event, itsHead]) as Json;
      const [one, two] = [frames(event, { head: itsHead ?? null }), frames(event, { head: itsHead ?? null })];
      expect(two).toEqual(one);
      for (const [index, frame] of one.entries()) expect(two[index]).not.toBe(frame);
      expect([event, itsHead]).toEqual(before);
    }
    expect(RESYNC).toEqual({ event: 'resync_required', data: {} });
  });
});
