import { BaseCallbackHandler } from '@langchain/core/callbacks/base';
import { AIMessage, AIMessageChunk, HumanMessage, ToolMessage } from '@langchain/core/messages';
import {
  Annotation,
  Command,
  getWriter,
  interrupt,
  MemorySaver,
  MessagesAnnotation,
  Send,
  START,
  StateGraph,
} from '@langchain/langgraph';
import { InMemoryCache } from '@langchain/langgraph-checkpoint';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import type { GraphMode, Json, JsonObject, RunEvent } from '#src/events/event.ts';
import type { DrivenGraph } from '#src/graphs/graph.ts';
import { createChatModel } from '#src/graphs/models.ts';
import type { GraphRuntime } from '#src/graphs/registry.ts';
import { createTold } from '#src/graphs/told.ts';
import { type FakeModel, startFakeModel } from '#tests/support/fake-model.ts';
import { say } from '#tests/support/fake-model-script.ts';
import { assemble, drive, modelConfig, storedMessages } from '#tests/support/graphs/drive.ts';
import { models, quiet, toolLog, waiting } from '#tests/support/graphs/nested.ts';
import { idless } from '#tests/support/graphs/plain.ts';
import { until } from '#tests/support/until.ts';

let model: FakeModel;
let runtime: GraphRuntime;
beforeEach(async () => {
  model = await startFakeModel();
  const createModel = () => createChatModel({ model: modelConfig(model.url) });
  runtime = { createModel, accessContext: 'threads.create_run', executionRuntime: { context: undefined } };
});
afterEach(() => model.close());

const input = { messages: [new HumanMessage({ id: 'question', content: 'hi' })] };
const compile = (builder: { compile(options: object): unknown }, saver = new MemorySaver()) =>
  builder.compile({ checkpointer: saver }) as DrivenGraph;
const State = MessagesAnnotation;

describe('subgraphs', () => {
  test('have their namespace; the answer is the root’s', async () => {
    model.setScript((_request, index) => say(`answer ${index}`));
    const graph = compile(models({ configurable: {} }, runtime));
    const run = await drive(graph, input);
    const [outer, inner] = assemble(run.events);
    expect(outer).toMatchObject({ ns: [], text: 'answer 0' });
    expect(inner?.text).toBe('answer 1');
    expect(inner?.ns).toEqual([expect.stringMatching(/^inner:[0-9a-f-]+$/)]);
    expect(run.of('run.usage').map((event) => [event.message_id, event.ns])).toEqual([
      [outer?.id, []],
      [inner?.id, inner?.ns],
    ]);
    expect(run.of('graph.part').map((event) => [event.ns.length, Object.keys(event.data as object)])).toEqual([
      [0, ['outer']],
      [1, ['think']],
      [1, ['ask']],
      [0, ['inner']],
    ]);
    expect(run.translator.answer()).toEqual({ stream_id: inner?.id, content: 'answer 1' });
    expect((await storedMessages(graph)).map((message) => message.id)).toEqual(['question', outer?.id, inner?.id]);
  });

  test('an interrupt inside is the root’s interrupt, once, and held at both levels', async () => {
    const graph = compile(models({ configurable: { ask: true } }, runtime));
    const run = await drive(graph, input);
    expect(run.translator.interrupts).toMatchObject([{ value: 'inner?' }]);
    expect(run.translator.held.map((event) => event.type === 'graph.part' && event.ns.length)).toEqual([1, 0]);
    expect(JSON.stringify(run.events)).not.toContain('inner?');
    const id = run.translator.interrupts[0]?.id ?? '';
    const after = await drive(graph, new Command({ resume: { [id]: 'because' } }), { continued: true });
    expect(after.error).toBeUndefined();
    expect(after.of('message.whole').map((event) => event.message.content)).toEqual(['because']);
  });
});

describe('stopping', () => {
  test.each([
    ['the parent', 0],
    ['a subgraph', 1],
  ])('reaches the model call of %s; what was streamed is the partial answer', async (_name, call) => {
    model.setScript((_request, index) =>
      index === call
        ? {
            steps: [
              { do: 'text', text: 'partial' },
              { do: 'gate', gate: 'never' },
              { do: 'text', text: ' more' },
            ],
          }
        : say('whole'),
    );
    const controller = new AbortController();
    const running = drive(compile(models({ configurable: {} }, runtime)), input, {
      signal: controller.signal,
      onEvent: (event) => event.type === 'message.delta' && event.text === 'partial' && controller.abort(),
    });
    const run = await running;
    const stopped = await model.waitForEnd(await model.waitForCall(call + 1));
    expect(stopped.aborted).toBe(true);
    expect(run.error).toBeDefined();
    const last = assemble(run.events).at(-1);
    expect(last?.text).toBe('partial');
    expect(run.translator.unfinished()).toEqual([last?.id]);
    // The root's own whole answer stands; text of a subgraph that never reached the root does not replace it.
    expect(run.translator.answer()?.content).toBe(call === 0 ? 'partial' : 'whole');
    expect(run.of('run.usage')).toHaveLength(call);
  });

  test('reaches the tools of the parent and of a subgraph', async () => {
    const controller = new AbortController();
    const running = drive(compile(waiting({ configurable: { key: 'stop' } })), input, { signal: controller.signal });
    await until(() => toolLog.get('stop')?.length === 2, { message: 'both tools run' });
    controller.abort();
    const run = await running;
    expect(run.error).toBeDefined();
    expect(toolLog.get('stop')?.map((entry) => entry.aborted)).toEqual([true, true]);
    expect(run.of('graph.part')).toEqual([]);
  });
});

describe('messages that nodes return', () => {
  test('without an id: none is lost, and the streamed ids are the stored ones', async () => {
    const graph = Object.create(idless, { checkpointer: { value: new MemorySaver() } }) as DrivenGraph;
    const run = await drive(graph, input);
    const told = run.of('message.whole').map((event) => [event.message.id, event.message.content]);
    expect(told.map(([, content]) => content)).toEqual(['one', 'two', 'three']);
    expect(new Set(told.map(([id]) => id)).size).toBe(3);
    const stored = await storedMessages(graph);
    expect(stored.slice(1).map((message) => [message.id, message.content])).toEqual(told);
    expect(run.translator.answer()?.content).toBe('three');
  });

  test('are told although a slow callback of the graph’s author holds up LangChain’s queue', async () => {
    const slow = BaseCallbackHandler.fromMethods({
      handleChainStart: () => new Promise((resolve) => setTimeout(resolve, 50)),
    });
    slow.awaitHandlers = false;
    const builder = new StateGraph(State)
      .addNode('n', () => ({ messages: [new AIMessage({ id: 'x', content: 'told' })] }))
      .addEdge(START, 'n');
    const graph = builder.compile({ checkpointer: new MemorySaver() }).withConfig({ callbacks: [slow] });
    const run = await drive(graph as unknown as DrivenGraph, input);
    expect(run.of('message.whole').map((event) => event.message.content)).toEqual(['told']);
  });

  test('a chunk that a node returns is a whole message', async () => {
    const builder = new StateGraph(State)
      .addNode('n', () => ({ messages: [new AIMessageChunk({ id: 'x', content: 'all of it' })] }))
      .addEdge(START, 'n');
    const run = await drive(compile(builder), input);
    expect(run.events.map((event) => event.type)).toEqual(['message.whole', 'graph.part']);
  });

  test('a tool result of a megabyte, with every bad character, is whole in the event', async () => {
    const content = `${'x'.repeat(1_000_000)}\u0000\ud800\u2028\r\nevent: run_end\r\n\r\n`;
    const builder = new StateGraph(State)
      .addNode('n\r\nevent x', () => ({
        messages: [new ToolMessage({ content, tool_call_id: 'c\r\n', name: 't\u0000' })],
      }))
      .addEdge(START, 'n\r\nevent x');
    const graph = compile(builder);
    const run = await drive(graph, input);
    expect(run.error).toBeUndefined();
    expect(run.of('message.whole')[0]?.message).toMatchObject({ content, tool_call_id: 'c\r\n', name: 't\u0000' });
    expect(Object.keys(run.of('graph.part')[0]?.data as object)).toEqual(['n\r\nevent x']);
    expect((await storedMessages(graph)).at(-1)?.content).toBe(content);
    for (const event of run.events) expect(JSON.stringify(event)).not.toMatch(/[\r\n]/);
  });

  test('old messages returned again do not become the answer', async () => {
    const builder = new StateGraph(State)
      .addNode('trim', () => ({ messages: [new AIMessage({ id: 'old', content: 'old answer' }), ...input.messages] }))
      .addEdge(START, 'trim');
    const run = await drive(compile(builder), input);
    expect(run.translator.answer()).toBeNull();
  });
});

describe('other modes', () => {
  test('custom data keeps its namespace and becomes JSON, whatever it is', async () => {
    const circular: Record<string, unknown> = { n: 1n, fn: () => 1 };
    circular.self = circular;
    const inner = new StateGraph(State)
      .addNode('emit', () => {
        getWriter()?.({ from: 'inner' });
        return {};
      })
      .addEdge(START, 'emit')
      .compile();
    const builder = new StateGraph(State)
      .addNode('emit', () => {
        getWriter()?.(circular);
        getWriter()?.(new AIMessage({ id: 'm', content: 'in custom' }));
        return {};
      })
      .addNode('inner', inner)
      .addEdge(START, 'emit')
      .addEdge('emit', 'inner');
    const run = await drive(compile(builder), input);
    const custom = run.of('graph.part').filter((event) => event.mode === 'custom');
    expect(custom.map((event) => event.data)).toEqual([
      { n: '1n', fn: '[function]', self: '[circular]' },
      { id: 'm', type: 'ai', content: 'in custom' },
      { from: 'inner' },
    ]);
    expect(custom.map((event) => event.ns.length)).toEqual([0, 0, 1]);
  });

  test('values, tasks and checkpoints only when asked, with messages as fields', async () => {
    const graph = compile(models({ configurable: {} }, runtime));
    const plain = await drive(graph, input, { threadId: 'plain' });
    expect(new Set(plain.of('graph.part').map((event) => event.mode))).toEqual(new Set(['updates']));
    const full = await drive(graph, input, { threadId: 'full', modes: ['values', 'tasks', 'checkpoints', 'debug'] });
    const parts = full.of('graph.part');
    expect(new Set(parts.map((event) => event.mode))).toEqual(
      new Set(['updates', 'values', 'tasks', 'checkpoints', 'debug']),
    );
    const values = parts.filter((event) => event.mode === 'values' && event.ns.length === 0).at(-1);
    expect(values?.data).toMatchObject({
      messages: [{ id: 'question', type: 'human' }, { type: 'ai' }, { type: 'ai' }],
    });
    const configs = parts
      .filter((event) => event.mode === 'checkpoints')
      .map((event) => (event.data as { config: { configurable: JsonObject; callbacks?: unknown } }).config);
    expect(configs.length).toBeGreaterThan(5);
    expect(configs.flatMap((config) => Object.keys(config.configurable)).filter((key) => key.startsWith('__'))).toEqual(
      [],
    );
    expect(configs.filter((config) => 'callbacks' in config)).toEqual([]);
  });

  test('no mode tells a client the text of an error', async () => {
    const builder = new StateGraph(State)
      .addNode('fails', () => {
        throw new Error('postgres://user:secret@db');
      })
      .addEdge(START, 'fails');
    const graph = compile(builder);
    const modes: GraphMode[] = ['values', 'tasks', 'checkpoints', 'debug', 'tools'];
    const run = await drive(graph, input, { modes });
    const again = await drive(graph, null, { modes }); // its checkpoint tells of the failed task
    expect(String(run.error)).toContain('secret');
    expect(JSON.stringify([run.events, again.events])).not.toContain('secret');
    const told = again.of('graph.part').filter((event) => JSON.stringify(event).includes('It failed.'));
    // Mode tasks tells it too, unless the graph's end overtakes it.
    expect(told.map((event) => event.mode)).toEqual(expect.arrayContaining(['checkpoints', 'debug']));
  });

  test('no mode tells of an interrupt before the end', async () => {
    const builder = new StateGraph(State)
      .addNode('ask', () => ({ messages: [String(interrupt('sure?'))] }))
      .addEdge(START, 'ask');
    const run = await drive(compile(builder), input, { modes: ['values', 'tasks', 'checkpoints', 'debug'] });
    expect(JSON.stringify(run.events)).not.toContain('sure?');
    expect(new Set(run.translator.held.map((event) => event.type === 'graph.part' && event.mode))).toEqual(
      new Set(['updates', 'values', 'tasks', 'debug']),
    );
  });

  test('a breakpoint pauses without an interrupt', async () => {
    const graph = new StateGraph(State)
      .addNode('n', () => ({}))
      .addEdge(START, 'n')
      .compile({ checkpointer: new MemorySaver(), interruptBefore: ['n'] });
    const run = await drive(graph as DrivenGraph, input);
    expect([run.translator.paused, run.translator.interrupts]).toEqual([true, []]);
  });
});

describe('model calls that stream nothing', () => {
  test('count in the usage, once each, and give no message', async () => {
    const graph = compile(quiet({ configurable: {} }, runtime));
    const run = await drive(graph, input);
    expect(model.calls).toHaveLength(3);
    expect(run.of('message.head')).toHaveLength(1);
    expect(run.of('run.usage')).toHaveLength(3);
    expect(new Set(run.of('run.usage').map((event) => event.message_id)).size).toBe(3);
    expect(run.translator.usage()).toEqual({ input_tokens: 33, output_tokens: 21, total_tokens: 54 });
  });
});

describe('going on after a takeover or a retry', () => {
  /** Two nodes at once: one finishes, the other fails the first time. */
  function halfFailing(failures: number) {
    let left = failures;
    const done = { count: 0 };
    const builder = new StateGraph(State)
      .addNode('steady', () => {
        done.count += 1;
        return { messages: [new AIMessage({ id: 'steady', content: 'steady' })] };
      })
      .addNode('shaky', async ({ messages }, config) => {
        const answer = await runtime.createModel().invoke(messages, config);
        if (left-- > 0) throw Object.assign(new Error('busy'), { status: 503 });
        return { messages: [answer] };
      })
      .addEdge(START, 'steady')
      .addEdge(START, 'shaky');
    return { graph: compile(builder), done };
  }

  test('repeated updates of finished nodes are dropped, the rest is told', async () => {
    const { graph, done } = halfFailing(1);
    const first = await drive(graph, input);
    expect(first.error).toBeDefined();
    expect(first.of('graph.part').map((event) => Object.keys(event.data as object))).toEqual([['steady']]);
    expect(first.translator.unfinished()).toEqual([assemble(first.events)[0]?.id]);

    const second = await drive(graph, null, { continued: true });
    expect(second.error).toBeUndefined();
    expect(second.of('graph.part').map((event) => Object.keys(event.data as object))).toEqual([['shaky']]);
    expect(second.of('message.whole')).toEqual([]);
    expect(done.count).toBe(1);
    expect((await storedMessages(graph)).map((message) => message.id).sort()).toEqual(
      ['question', 'steady', assemble(second.events)[0]?.id].sort(),
    );
  });

  /** Three nodes at once; two fail at once, so LangGraph gives the update of the first, but not its message. */
  function lostUpdate() {
    let left = 2;
    const fails = async () => {
      if (left-- > 0) throw new Error('busy');
      return {};
    };
    const builder = new StateGraph(State)
      .addNode('a', async () => ({
        messages: [new AIMessage({ id: 'lost', content: 'lost?', tool_calls: [{ id: 'c', name: 't', args: {} }] })],
      }))
      .addNode('b', fails)
      .addNode('c', fails)
      .addEdge(START, 'a')
      .addEdge(START, 'b')
      .addEdge(START, 'c');
    return compile(builder);
  }
  const typesOf = (events: RunEvent[]) => events.map((event) => event.type);

  test('a message that was lost on the way is told when its update is repeated, once', async () => {
    const graph = lostUpdate();
    const run = await drive(graph, input);
    expect(run.error).toBeDefined();
    expect(typesOf(run.events)).toEqual(['graph.part']);
    run.translator.forgetUnfinished();
    await drive(graph, null, { after: run });
    expect(typesOf(run.events.slice(1))).toEqual(['message.whole', 'message.tool_calls', 'graph.part', 'graph.part']);
    expect(run.of('message.whole')[0]?.message).toMatchObject({ id: 'lost', content: 'lost?' });
  });

  test('after a takeover, what the log holds is not told again, and what it does not hold is', async () => {
    for (const [inLog, expected] of [
      [true, ['graph.part', 'graph.part']],
      [false, ['message.whole', 'message.tool_calls', 'graph.part', 'graph.part', 'graph.part']],
    ] as const) {
      const graph = lostUpdate();
      await drive(graph, input);
      const told = createTold();
      const message = { id: 'lost', type: 'ai', content: 'lost?' };
      if (inLog) {
        told.note({ type: 'message.whole', ns: [], message, metadata: {} });
        told.note({
          type: 'graph.part',
          mode: 'updates',
          ns: [],
          data: { a: { messages: [message as unknown as Json] } },
        });
      }
      const run = await drive(graph, null, { continued: true, told });
      expect(typesOf(run.events)).toEqual(expected);
    }
  });

  test('a message that was streamed in part and lost its end is known, and told whole when it is repeated', () => {
    const told = createTold();
    const head = (id: string): RunEvent => ({
      type: 'message.head',
      ns: [],
      message: { id, type: 'ai', content: '' },
      metadata: {},
    });
    told.note(head('whole'));
    told.note(head('cut'));
    told.note(head('dropped'));
    told.note({ type: 'run.retry', attempt: 1, delay_ms: 1, dropped: ['dropped'] });
    const message: Json = { id: 'whole', type: 'ai', content: 'x' };
    told.note({ type: 'graph.part', mode: 'updates', ns: [], data: { n: { deep: [[message]] } } });
    expect(told.unfinished()).toEqual(['cut']);
    expect(['whole', 'cut', 'dropped'].map(told.hasMessage)).toEqual([true, true, false]);
  });

  test('without `continued` they are told: a node’s own cache is news', async () => {
    let runs = 0;
    const Value = Annotation.Root({ value: Annotation<string> });
    const graph = new StateGraph(Value)
      .addNode('cached', () => ({ value: `computed ${++runs}` }), { cachePolicy: { keyFunc: () => 'same' } })
      .addEdge(START, 'cached')
      .compile({ checkpointer: new MemorySaver(), cache: new InMemoryCache() }) as DrivenGraph;
    await drive(graph, { value: 'a' }, { threadId: 'one' });
    const second = await drive(graph, { value: 'a' }, { threadId: 'two' });
    expect(runs).toBe(1);
    expect(second.of('graph.part').map((event) => event.data)).toEqual([
      { cached: { value: 'computed 1' }, __metadata__: { cached: true } },
    ]);
  });

  test('with `continued`, a node’s own cache is news all the same once the repetitions are over', async () => {
    let left = 1;
    const Value = Annotation.Root({ value: Annotation<string> });
    const graph = new StateGraph(Value)
      .addNode('steady', () => ({ value: 's' }))
      .addNode('shaky', async () => {
        await new Promise((resolve) => setImmediate(resolve));
        if (left-- > 0) throw new Error('busy');
        return {};
      })
      .addNode('cached', () => ({ value: 'c' }), { cachePolicy: { keyFunc: () => 'same' } })
      .addEdge(START, 'steady')
      .addEdge(START, 'shaky')
      .addEdge('shaky', 'cached')
      .compile({ checkpointer: new MemorySaver(), cache: new InMemoryCache() }) as DrivenGraph;
    const nodes = (events: RunEvent[]) =>
      events.flatMap((event) => (event.type === 'graph.part' ? Object.keys(event.data as object) : []));
    await drive(graph, { value: 'a' }, { threadId: 'fills the cache' }); // fails
    await drive(graph, null, { threadId: 'fills the cache' });
    left = 1;
    await drive(graph, { value: 'a' });
    const run = await drive(graph, null, { continued: true });
    expect(nodes(run.events)).toEqual(['shaky', 'cached', '__metadata__']);
  });

  test('a question asked beside a fault is held once, however often the step is tried', async () => {
    let left = 2;
    const builder = new StateGraph(State)
      .addNode('ask', () => ({ messages: [String(interrupt('sure?'))] }))
      .addNode('shaky', async () => {
        await new Promise((resolve) => setImmediate(resolve));
        if (left-- > 0) throw new Error('busy');
        return {};
      })
      .addEdge(START, 'ask')
      .addEdge(START, 'shaky');
    const graph = compile(builder);
    const run = await drive(graph, input);
    for (let attempt = 0; attempt < 2; attempt += 1) {
      run.translator.forgetUnfinished();
      await drive(graph, null, { after: run });
    }
    expect(run.translator.interrupts).toMatchObject([{ value: 'sure?' }]);
    expect(run.translator.held).toHaveLength(1);
  });

  test('forgetUnfinished gives the ids once, with their text, and what is returned stays', async () => {
    const { graph } = halfFailing(1);
    const { translator, events } = await drive(graph, input);
    const dropped = assemble(events)[0]?.id;
    expect(translator.forgetUnfinished()).toEqual([dropped]);
    expect(translator.unfinished()).toEqual([]);
    expect(translator.forgetUnfinished()).toEqual([]);
    expect(translator.answer()).toEqual({ stream_id: 'steady', content: 'steady' });
    expect(translator.usage()?.total_tokens).toBe(18); // the call was made and paid for
  });
});

test('a tool call in one of several tasks does not hide the text of another', async () => {
  model.setScript((request) => say(`for ${String(request.messages.at(-1)?.content)}`));
  const builder = new StateGraph(State)
    .addNode('one', async (task: { text: string }, config) => ({
      messages: [await runtime.createModel().invoke([new HumanMessage(task.text)], config)],
    }))
    .addConditionalEdges(START, () => ['a', 'b', 'c'].map((text) => new Send('one', { text })), ['one']);
  const run = await drive(compile(builder), input);
  expect(
    assemble(run.events)
      .map((message) => message.text)
      .sort(),
  ).toEqual(['for a', 'for b', 'for c']);
  expect(run.of('run.usage')).toHaveLength(3);
  const ids = new Set(assemble(run.events).map((message) => message.id));
  expect(new Set(run.of('run.usage').map((event) => event.message_id))).toEqual(ids);
});
