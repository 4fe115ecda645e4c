/** `RemoteGraph`, LangGraph's own stand-in for a graph that is elsewhere: alone, and as a part of a graph in another process. */
import { fileURLToPath } from 'node:url';
import { HumanMessage } from '@langchain/core/messages';
import { Command, isGraphInterrupt, MemorySaver, MessagesAnnotation, START, StateGraph } from '@langchain/langgraph';
import { RemoteGraph } from '@langchain/langgraph/remote';
import { Client } from '@langchain/langgraph-sdk';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type Cluster, startCluster } from '#tests/support/cluster.ts';

const graphFile = (name: string) => fileURLToPath(new URL(`../support/graphs/${name}`, import.meta.url));

let cluster: Cluster;
let url = '';
beforeAll(async () => {
  const graphs = { remote: `${graphFile('remote.ts')}:graph` };
  cluster = await startCluster({ server: { config: { graphs } } });
  url = cluster.servers[0]?.url ?? '';
});
afterAll(() => cluster.stop());

const remote = () => new RemoteGraph({ graphId: 'remote', url });
const onThread = async () => ({
  configurable: { thread_id: (await new Client({ apiUrl: url }).threads.create()).thread_id },
});
const human = (content: string) => ({ messages: [{ role: 'human', content }] });
const FIVE = 'w0 w1 w2 w3 w4 ';
const texts = (values: unknown) =>
  (values as { messages: { content: unknown }[] }).messages.map(({ content }) => content);

describe('alone', () => {
  test('invoke, with and without a thread', async () => {
    expect(texts(await remote().invoke(human('hi')))).toEqual(['hi', FIVE]);
    const config = await onThread();
    await remote().invoke(human('hi'), config);
    expect(texts(await remote().invoke(human('again'), config))).toEqual(['hi', FIVE, 'again', FIVE]);
  });

  test('streams in one mode and in several', async () => {
    const values: unknown[] = [];
    for await (const part of await remote().stream(human('hi'), { streamMode: 'values' })) values.push(part);
    expect(texts(values.at(-1))).toEqual(['hi', FIVE]);
    const modes = new Map<string, unknown[]>();
    const streamMode: ('messages' | 'updates')[] = ['updates', 'messages'];
    for await (const [mode, part] of await remote().stream(human('hi'), { streamMode })) {
      modes.set(mode, [...(modes.get(mode) ?? []), part]);
    }
    expect(modes.get('updates')).toMatchObject([
      { gate: { said: null } },
      { speak: { messages: [{ content: FIVE }] } },
    ]);
    const chunks = (modes.get('messages') ?? []) as [{ content: string }, { langgraph_node: string }][];
    expect(chunks.map(([{ content }]) => content).join('')).toBe(FIVE);
    expect(chunks.every(([, { langgraph_node: node }]) => node === 'speak')).toBe(true);
  });

  test('asks, is asked what it is doing, and goes on', async () => {
    const config = await onThread();
    await expect(remote().invoke(human('ask'), config)).rejects.toSatisfy(isGraphInterrupt);
    const asking = await remote().getState(config);
    expect(asking.next).toEqual(['gate']);
    expect(asking.tasks[0]?.interrupts).toMatchObject([{ value: { question: 'go on?' } }]);
    expect(texts(await remote().invoke(new Command({ resume: 'yes' }), config))).toEqual(['ask', 'answer: yes']);
  });

  test('state: history, an update, a fork from before', async () => {
    const config = await onThread();
    await remote().invoke(human('hi'), config);
    const history: { config: object; next: readonly string[] }[] = [];
    for await (const state of remote().getStateHistory(config)) history.push(state);
    expect(history.map(({ next }) => next)).toEqual([[], ['speak'], ['gate'], ['__start__']]);
    await remote().updateState(config, { said: 'noted' }, 'speak');
    expect((await remote().getState(config)).values).toMatchObject({ said: 'noted' });
    const before = history[1] ?? expect.unreachable('there is a state before the last');
    expect(texts(await remote().invoke(null, before.config))).toEqual(['hi', FIVE]);
  });

  test('its drawing', async () => {
    const drawing = await remote().getGraphAsync();
    expect(Object.keys(drawing.nodes).sort()).toEqual(['__end__', '__start__', 'gate', 'speak']);
  });

  test('what it throws is an error here', async () => {
    await expect(remote().invoke(human('fail'))).rejects.toThrow();
    await expect(remote().invoke(human('fail'), await onThread())).rejects.toThrow();
  });
});

test('as a node: it answers in the outer graph’s state, and its question is the outer graph’s', async () => {
  const outer = new StateGraph(MessagesAnnotation)
    .addNode('far', remote())
    .addEdge(START, 'far')
    .compile({ checkpointer: new MemorySaver() });
  const hi = { messages: [new HumanMessage('hi')] };
  expect(texts(await outer.invoke(hi, await onThread()))).toEqual(['hi', FIVE]);
  const ask = { messages: [new HumanMessage('ask')] };
  const asked = await outer.invoke(ask, await onThread()).catch((error: unknown) => {
    if (isGraphInterrupt(error)) return { __interrupt__: error.interrupts };
    throw error;
  });
  expect(JSON.stringify(asked)).toContain('go on?');
});
