import { AIMessageChunk, HumanMessage } from '@langchain/core/messages';
import { MemorySaver, MessagesAnnotation, START, StateGraph } from '@langchain/langgraph';
import { expect, test } from 'vitest';
import type { DrivenGraph } from '#src/graphs/graph.ts';
import { createTranslator } from '#src/graphs/translate.ts';
import { ChunkModel } from '#tests/support/graphs/chunk-model.ts';
import { drive } from '#tests/support/graphs/drive.ts';

const input = { messages: [new HumanMessage('hi')] };

function graphOf(model: ChunkModel, tags: string[] = []): DrivenGraph {
  return new StateGraph(MessagesAnnotation)
    .addNode('n', async ({ messages }, config) => ({ messages: [await model.invoke(messages, { ...config, tags })] }))
    .addEdge(START, 'n')
    .compile({ checkpointer: new MemorySaver() }) as DrivenGraph;
}

const report = (input_tokens: number, output_tokens: number) => ({
  input_tokens,
  output_tokens,
  total_tokens: input_tokens + output_tokens,
});
const chunk = (content: string, usage?: ReturnType<typeof report>) =>
  Object.assign(new AIMessageChunk({ content }), usage === undefined ? {} : { usage_metadata: usage });

test.each([
  ['once, at the end', [chunk('a'), chunk('b'), chunk('', report(25, 9))]],
  ['totals with every chunk', [chunk('a', report(25, 3)), chunk('b', report(25, 6)), chunk('c', report(25, 9))]],
  ['the prompt first, the answer later', [chunk('', report(25, 1)), chunk('a'), chunk('b', report(0, 8))]],
])('a model that reports %s', async (_name, chunks) => {
  for (const tags of [[], ['nostream']]) {
    const run = await drive(graphOf(new ChunkModel(() => chunks), tags), input);
    expect(run.error).toBeUndefined();
    expect(run.of('run.usage').map((event) => event.usage)).toEqual([report(25, 9)]);
    expect(run.translator.usage()).toEqual(report(25, 9));
  }
});

test('usage is written as soon as the call has ended and its chunks are told, before the node’s update', async () => {
  const chunks = [chunk('a'), chunk('b', report(1, 1))];
  const streamed = await drive(graphOf(new ChunkModel(() => chunks)), input);
  expect(streamed.events.map((event) => event.type)).toEqual([
    'message.head',
    'message.chunk',
    'run.usage',
    'graph.part',
  ]);
  const quiet = await drive(graphOf(new ChunkModel(() => chunks), ['nostream']), input);
  expect(quiet.events.map((event) => event.type)).toEqual(['run.usage', 'message.whole', 'graph.part']);
});

test('a call that fails is not counted, and its error is known as the model’s', async () => {
  const broken = new ChunkModel(() => {
    throw new TypeError('bad');
  });
  const run = await drive(graphOf(broken), input);
  expect(run.translator.usage()).toBeNull();
  expect(run.translator.fromModel(run.error)).toBe(true);
  expect(run.translator.fromModel(new TypeError('bad'))).toBe(false);
});

test('the callback is awaited, whatever the environment says', () => {
  const before = process.env.LANGCHAIN_CALLBACKS_BACKGROUND;
  process.env.LANGCHAIN_CALLBACKS_BACKGROUND = 'true';
  try {
    expect(createTranslator({ write: () => 0 }).usageCallback.awaitHandlers).toBe(true);
  } finally {
    process.env.LANGCHAIN_CALLBACKS_BACKGROUND = before;
  }
});
