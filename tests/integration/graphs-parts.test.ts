import { randomUUID } from 'node:crypto';
import { fileURLToPath } from 'node:url';
import { type LangGraphRunnableConfig, MessagesAnnotation, START, StateGraph } from '@langchain/langgraph';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { DrivenGraph, GraphRegistry } from '#src/graphs/graph.ts';
import { eachPart } from '#src/graphs/parts.ts';
import { createGraphRegistry } from '#src/graphs/registry.ts';
import { type FakeModel, startFakeModel } from '#tests/support/fake-model.ts';
import { callTools, say } from '#tests/support/fake-model-script.ts';
import { instantiate, modelConfig } from '#tests/support/graphs/drive.ts';

const graphFile = (name: string) => fileURLToPath(new URL(`../support/graphs/${name}.ts`, import.meta.url));
const chatFile = fileURLToPath(new URL('../../src/graphs/chat.ts', import.meta.url));

let model: FakeModel;
let registry: GraphRegistry;

beforeAll(async () => {
  model = await startFakeModel({
    script: ({ messages }) =>
      messages.length > 3
        ? say('It is 4, I think.')
        : callTools([{ id: 'call_1', name: 'calculator', args: { expression: '2 + 2' } }]),
  });
  const entry = (file: string, exportName: string) => ({ file, exportName, context: 'checkpoint' as const });
  registry = await createGraphRegistry({
    graphs: {
      chat: entry(chatFile, 'graph'),
      plain: entry(graphFile('plain'), 'compiled'),
      nested: entry(graphFile('nested'), 'models'),
      asks: entry(graphFile('approvals'), 'twoNodes'),
    },
    model: modelConfig(model.url),
  });
});
afterAll(() => model.close());

const never = new AbortController().signal;
const input = () => ({ messages: [{ type: 'human', id: 'question', content: 'hello' }] });
const graphOf = (name: string, configurable = {}): Promise<DrivenGraph> => instantiate(registry, name, configurable);

function optionsOf(streamMode: string[], configurable = {}) {
  return {
    configurable: { ...configurable, thread_id: randomUUID(), run_id: 'run', model: 'fake', user_id: 'anna' },
    metadata: { run_id: 'run', graph_id: 'graph' },
    tags: ['mine'],
    recursionLimit: 25,
    streamMode,
    subgraphs: true,
    durability: 'sync',
  };
}

/** Parts as JSON, every id of a run, a message or a checkpoint by the order it first appears in. */
function comparable(parts: unknown[]): unknown[] {
  const ids: string[] = [];
  const text = JSON.stringify(parts).replace(/[0-9a-f]{8}(-?[0-9a-f]{4}){3}-?[0-9a-f]{12}/g, (id) => {
    if (!ids.includes(id)) ids.push(id);
    return `id-${ids.indexOf(id)}`;
  });
  return JSON.parse(text.replace(/"(ts|timestamp)":"[^"]*"/g, '"$1":"then"')) as unknown[];
}

type Streaming = { stream(input: unknown, options: object): Promise<AsyncIterable<unknown>> };

describe('a graph yields what graph.stream yields, metadata included', () => {
  test.each([
    ['chat', ['messages', 'updates', 'custom'], {}],
    ['plain', ['values', 'updates', 'messages', 'tasks', 'debug', 'checkpoints'], {}],
    ['nested', ['messages', 'updates', 'values', 'custom'], {}],
    ['nested', ['messages', 'updates', 'custom'], { ask: true }],
    ['asks', ['updates', 'values'], {}],
  ] as const)('%s, modes %j, configurable %j', async (name, modes, configurable) => {
    const options = optionsOf([...modes], configurable);
    const expected: unknown[] = [];
    const graph = (await graphOf(name, configurable)) as unknown as Streaming;
    for await (const part of await graph.stream(input(), options)) expected.push(part);
    const parts: unknown[] = [];
    await eachPart(await graphOf(name, configurable), input(), options, never, (part) => {
      parts.push(part);
      return undefined;
    });
    expect(parts.length).toBeGreaterThan(1);
    expect(comparable(parts)).toEqual(comparable(expected));
  });
});

function graphWith(node: (config: LangGraphRunnableConfig) => Promise<unknown>): DrivenGraph {
  return new StateGraph(MessagesAnnotation)
    .addNode('before', () => ({}))
    .addNode('node', async (_state, config: LangGraphRunnableConfig) => {
      await node(config);
      return {};
    })
    .addEdge(START, 'before')
    .addEdge('before', 'node')
    .compile() as unknown as DrivenGraph;
}

test('it rejects with the very error a node threw', async () => {
  const error = new Error('the node failed');
  const graph = graphWith(() => Promise.reject(error));
  await expect(eachPart(graph, input(), optionsOf(['updates']), never, () => undefined)).rejects.toBe(error);
});

test('an abort ends it at once, also while a node does not heed it', async () => {
  const reason = new Error('stopped');
  const abort = new AbortController();
  const started = Promise.withResolvers<void>();
  const finish = Promise.withResolvers<void>();
  const graph = graphWith(() => {
    started.resolve();
    return finish.promise;
  });
  const reading = eachPart(graph, input(), optionsOf(['updates']), abort.signal, () => undefined);
  const outcome = reading.catch((error: unknown) => error);
  await started.promise;
  abort.abort(reason);
  expect(await outcome).toBe(reason);
  finish.resolve();
});

test('an abort ends it while a part is waited for', async () => {
  const abort = new AbortController();
  const waiting = Promise.withResolvers<void>();
  const graph = graphWith(() => Promise.resolve());
  const reading = eachPart(graph, input(), optionsOf(['updates']), abort.signal, () => {
    waiting.resolve();
    return new Promise(() => undefined);
  });
  const outcome = reading.catch((error: unknown) => error);
  await waiting.promise;
  abort.abort('stopped');
  expect(await outcome).toBe('stopped');
});

test('a signal that aborted before it begins runs nothing', async () => {
  let ran = false;
  const graph = graphWith(async () => {
    ran = true;
  });
  const reading = eachPart(graph, input(), optionsOf(['updates']), AbortSignal.abort('early'), () => undefined);
  await expect(reading).rejects.toBe('early');
  expect(ran).toBe(false);
});

test('when a part cannot be taken the graph is told to stop', async () => {
  const stopped = Promise.withResolvers<unknown>();
  const graph = graphWith(({ signal, writer }) => {
    signal?.addEventListener('abort', () => stopped.resolve(signal.reason));
    writer?.('one that cannot be taken');
    return stopped.promise;
  });
  const error = new Error('no');
  const reading = eachPart(graph, input(), optionsOf(['custom']), never, () => {
    throw error;
  });
  await expect(reading).rejects.toBe(error);
  expect(await stopped.promise).toBe(error);
});
