import { AIMessage, AIMessageChunk, HumanMessage } from '@langchain/core/messages';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import type { RunEvent } from '#src/events/event.ts';
import { createTold } from '#src/graphs/told.ts';
import { createTranslator, type TranslatorOptions } from '#src/graphs/translate.ts';
import { assemble } from '#tests/support/graphs/drive.ts';

/** One metadata object per model call, as LangGraph gives it. */
const modelMetadata = (extra: object = {}) => ({ ls_model_type: 'chat', langgraph_node: 'agent', ...extra });

function translate(parts: [string[], string, unknown][], options: Partial<TranslatorOptions> = {}) {
  const events: RunEvent[] = [];
  const translator = createTranslator({
    ...options,
    write: (event) => {
      events.push(event);
      return events.length - 1;
    },
  });
  for (const part of parts) translator.part(part);
  return { events, translator };
}

const streamed = (chunks: AIMessageChunk[], ns: string[] = [], metadata = modelMetadata()) =>
  chunks.map((chunk): [string[], string, unknown] => [ns, 'messages', [chunk, metadata]]);

const chunk = (fields: object) => new AIMessageChunk({ id: 'm', content: '', ...fields });

/** Text with everything that is hard on the way: NUL, lone surrogates, line separators. */
const text = fc.string({ unit: fc.constantFrom('a', 'é', '\u0000', '\ud83d', '\ude00', '\u2028', '\r\n', '"', '\\') });

describe('any chunking of a message comes together as the message', () => {
  const textChunk = text.map((content) => chunk({ content }));
  const reasoningChunk = text.map((reasoning_content) => chunk({ additional_kwargs: { reasoning_content } }));
  const bothChunk = fc
    .tuple(text, text)
    .map(([content, reasoning_content]) => chunk({ content, additional_kwargs: { reasoning_content } }));
  const argsChunk = fc.tuple(fc.nat(2), text).map(([index, args]) => {
    const part = { index, args, type: 'tool_call_chunk' as const };
    return chunk({
      tool_call_chunks: [part],
      additional_kwargs: { tool_calls: [{ index, function: { arguments: args } }] },
    });
  });
  const twoArgsChunk = fc.tuple(text, text).map(([first, second]) =>
    chunk({
      tool_call_chunks: [
        { index: 0, args: first, type: 'tool_call_chunk' },
        { index: 1, args: second, type: 'tool_call_chunk' },
      ],
    }),
  );
  const startChunk = fc
    .nat(2)
    .map((index) =>
      chunk({ tool_call_chunks: [{ index, id: `c${index}`, name: `t${index}`, args: '', type: 'tool_call_chunk' }] }),
    );
  const chunks = fc.array(fc.oneof(textChunk, reasoningChunk, bothChunk, argsChunk, twoArgsChunk, startChunk), {
    minLength: 1,
    maxLength: 30,
  });

  test('text, reasoning and arguments, in one stream or in several at once', () => {
    fc.assert(
      fc.property(chunks, chunks, fc.boolean(), (left, right, interleaved) => {
        const first = streamed(left);
        const second = streamed(right, ['sub:1']);
        const { events } = translate(interleaved ? zip(first, second) : [...first, ...second]);
        // One head each; without interleaving the first chunk of each decides the order.
        const [one, two] = assemble(events);
        expect([one, two].map((message) => message?.text)).toEqual([left, right].map(textOf));
        expect([one, two].map((message) => message?.reasoning)).toEqual([left, right].map(reasoningOf));
        expect([one, two].map((message) => argsOfEvents(message?.args ?? {}))).toEqual([left, right].map(argsOf));
      }),
    );
  });
});

function zip<T>(left: T[], right: T[]): T[] {
  return Array.from({ length: Math.max(left.length, right.length) }).flatMap((_, index) =>
    [left[index], right[index]].filter((item): item is T => item !== undefined),
  );
}

const textOf = (chunks: AIMessageChunk[]) => chunks.map((part) => part.content).join('');
const reasoningOf = (chunks: AIMessageChunk[]) =>
  chunks.map((part) => part.additional_kwargs.reasoning_content ?? '').join('');
function argsOf(chunks: AIMessageChunk[]): Record<number, string> {
  const args: Record<number, string> = {};
  for (const part of chunks.flatMap((one) => one.tool_call_chunks ?? [])) {
    args[part.index ?? -1] = (args[part.index ?? -1] ?? '') + (part.args ?? '');
  }
  return argsOfEvents(args);
}
const argsOfEvents = (args: Record<number, string>) =>
  Object.fromEntries(Object.entries(args).filter(([, value]) => value !== ''));

describe('what is a delta', () => {
  const deltas = (chunks: AIMessageChunk[]) => translate(streamed([chunk({}), ...chunks])).events.slice(1);

  test.each<[string, object, object]>([
    ['text', { content: 'x' }, { kind: 'text', text: 'x' }],
    ['reasoning', { additional_kwargs: { reasoning_content: 'x' } }, { kind: 'reasoning', text: 'x' }],
    [
      'arguments',
      { tool_call_chunks: [{ index: 3, args: 'x', type: 'tool_call_chunk' }] },
      { kind: 'tool_args', text: 'x', index: 3 },
    ],
    [
      'a text block',
      { content: [{ type: 'text', text: 'x', index: 0 }] },
      { kind: 'text', text: 'x', block: { index: 0, type: 'text' } },
    ],
    [
      'a thinking block',
      { content: [{ type: 'thinking', thinking: 'x', index: 1 }] },
      { kind: 'reasoning', text: 'x', block: { index: 1, type: 'thinking' } },
    ],
    [
      'a reasoning block',
      { content: [{ type: 'reasoning', reasoning: 'x' }] },
      { kind: 'reasoning', text: 'x', block: { type: 'reasoning' } },
    ],
  ])('%s', (_name, fields, delta) => {
    expect(deltas([chunk(fields)])).toEqual([{ type: 'message.delta', m: 0, ...delta }]);
  });

  test.each<[string, object]>([
    ['text and reasoning', { content: 'x', additional_kwargs: { reasoning_content: 'y' } }],
    [
      'the start of a tool call',
      { tool_call_chunks: [{ index: 0, id: 'c', name: 't', args: '', type: 'tool_call_chunk' }] },
    ],
    ['a finish reason', { content: 'x', response_metadata: { finish_reason: 'stop' } }],
    ['usage', { usage_metadata: { input_tokens: 1, output_tokens: 1, total_tokens: 2 } }],
    ['a block with more than text', { content: [{ type: 'thinking', thinking: 'x', signature: 's' }] }],
    [
      'two blocks',
      {
        content: [
          { type: 'text', text: 'x' },
          { type: 'text', text: 'y' },
        ],
      },
    ],
    ['other kwargs', { content: 'x', additional_kwargs: { audio: {} } }],
    ['text and complete tool calls', { content: 'x', tool_calls: [{ id: 'c', name: 't', args: {} }] }],
    [
      'arguments and reasoning',
      {
        tool_call_chunks: [{ index: 0, args: 'x', type: 'tool_call_chunk' }],
        additional_kwargs: { reasoning_content: 'y' },
      },
    ],
    ['complete tool calls', { tool_calls: [{ id: 'c', name: 't', args: {} }] }],
  ])('not: %s', (_name, fields) => {
    const [event, ...more] = deltas([chunk(fields)]);
    expect(event?.type).toBe('message.chunk');
    expect(more).toEqual([]);
  });

  test('tool call parts are told once, though the library repeats them in the kwargs', () => {
    const [event] = deltas([
      chunk({
        tool_call_chunks: [{ index: 0, id: 'c', name: 't', args: '', type: 'tool_call_chunk' }],
        additional_kwargs: { tool_calls: [{ index: 0, id: 'c', function: { name: 't', arguments: '' } }] },
      }),
    ]);
    expect(event).toEqual({
      type: 'message.chunk',
      m: 0,
      message: { id: 'm', type: 'ai', content: '', tool_call_chunks: [{ index: 0, id: 'c', name: 't', args: '' }] },
    });
  });

  test('a chunk that says nothing gives no event', () => {
    expect(deltas([chunk({}), chunk({ additional_kwargs: { reasoning_content: null } })])).toEqual([]);
  });

  test('response metadata is told once, and running usage in it never', () => {
    const metadata = { model_provider: 'p', usage: { prompt_tokens: 1 } };
    const events = deltas([
      chunk({ content: 'a', response_metadata: metadata }),
      chunk({ content: 'b', response_metadata: { ...metadata, usage: { prompt_tokens: 2 } } }),
      chunk({ content: 'c', response_metadata: { ...metadata, finish_reason: 'stop' } }),
    ]);
    expect(
      events.map((event) => (event.type === 'message.chunk' ? event.message.response_metadata : event.type)),
    ).toEqual([{ model_provider: 'p' }, 'message.delta', { finish_reason: 'stop' }]);
  });
});

describe('the identity of a stream', () => {
  test('is its metadata object: chunks with other ids belong to it, another call with the same id does not', () => {
    const { events } = translate([
      ...streamed([chunk({ content: 'a' }), new AIMessageChunk({ id: 'other', content: 'b' })]),
      ...streamed([chunk({ content: 'c' })]),
    ]);
    expect(events.map((event) => event.type)).toEqual(['message.head', 'message.delta', 'message.head']);
    expect(assemble(events).map(({ id, text: whole }) => [id, whole])).toEqual([
      ['m', 'ab'],
      ['m', 'c'],
    ]);
  });

  test('the metadata is stored once, in the head', () => {
    const { events } = translate(
      streamed([chunk({ content: 'a' }), chunk({ content: 'b' })], [], modelMetadata({ big: 'x' })),
    );
    expect(JSON.stringify(events).match(/"big"/g)).toHaveLength(1);
  });
});

describe('the answer so far', () => {
  const call = chunk({ tool_call_chunks: [{ index: 0, id: 'c', name: 't', args: '', type: 'tool_call_chunk' }] });
  const answerOf = (parts: [string[], string, unknown][]) => translate(parts).translator.answer()?.content ?? null;

  test('is the text streamed last', () => {
    expect(answerOf([...streamed([chunk({ content: 'a' })]), ...streamed([chunk({ content: 'b' })])])).toBe('b');
  });

  test('is not the text before a tool call, nor after it in the same message', () => {
    expect(answerOf(streamed([chunk({ content: 'a' }), call]))).toBeNull();
    expect(answerOf(streamed([chunk({ content: 'a' }), call, chunk({ content: 'b' })]))).toBeNull();
    expect(answerOf([...streamed([chunk({ content: 'a' }), call]), ...streamed([chunk({ content: 'b' })])])).toBe('b');
  });

  test('is the root’s if it has any, else a subgraph’s', () => {
    const inner = streamed([chunk({ content: 'inner' })], ['sub:1']);
    expect(answerOf(inner)).toBe('inner');
    expect(answerOf([...streamed([chunk({ content: 'outer' })]), ...inner])).toBe('outer');
  });

  test('of content blocks is their text', () => {
    const blocks = [
      chunk({ content: [{ type: 'thinking', thinking: 'hm', index: 0 }] }),
      chunk({ content: [{ type: 'text', text: 'a', index: 1 }] }),
    ];
    expect(answerOf(streamed(blocks))).toBe('a');
  });
});

test('a repeated update that returns the past tells only what came after the last question', () => {
  const { events } = translate(
    [
      [
        [],
        'updates',
        {
          inner: {
            messages: [
              new AIMessage({ id: 'old', content: 'old' }),
              new HumanMessage({ id: 'q', content: 'q' }),
              new AIMessage({ id: 'new', content: 'new' }),
            ],
          },
          __metadata__: { cached: true },
        },
      ],
    ],
    { continued: true, told: createTold() },
  );
  expect(events.map((event) => (event.type === 'message.whole' ? event.message.id : event.type))).toEqual([
    'new',
    'graph.part',
  ]);
});
