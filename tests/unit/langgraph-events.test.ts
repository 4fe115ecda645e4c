import { AIMessageChunk } from '@langchain/core/messages';
import { expect, test } from 'vitest';
import type { RunEvent } from '#src/events/event.ts';
import { createTranslator } from '#src/graphs/translate.ts';

function translated(data: unknown) {
  const written: RunEvent[] = [];
  const translator = createTranslator({ write: (event) => written.push(event) });
  translator.part([[], 'events', data]);
  return { written, held: translator.held };
}

test('a chunk in an event keeps the parts of a tool call that it brings', () => {
  const chunk = new AIMessageChunk({
    id: 'm',
    content: '',
    tool_call_chunks: [{ index: 0, id: 'c', name: 'add', args: '{' }],
  });
  const { written } = translated({ event: 'on_chat_model_stream', data: { chunk } });
  expect(written).toMatchObject([
    {
      data: {
        data: { chunk: { id: 'm', type: 'ai', tool_call_chunks: [{ index: 0, id: 'c', name: 'add', args: '{' }] } },
      },
    },
  ]);
});

test.each([
  { event: 'on_chain_end', data: { output: { __interrupt__: [{ id: 'i', value: 1 }] } } },
  { event: 'on_chain_stream', data: { chunk: [['child:1'], 'updates', { __interrupt__: [] }] } },
])('an event that tells of a question waits for the end of the run: %j', (event) => {
  const { written, held } = translated(event);
  expect(written).toEqual([]);
  expect(held).toHaveLength(1);
});
