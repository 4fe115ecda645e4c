import { fileURLToPath } from 'node:url';
import { HumanMessage } from '@langchain/core/messages';
import { Command } from '@langchain/langgraph';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import type { Json } from '#src/events/event.ts';
import type { DrivenGraph } from '#src/graphs/graph.ts';
import { createGraphRegistry } from '#src/graphs/registry.ts';
import { type FakeModel, startFakeModel } from '#tests/support/fake-model.ts';
import { callTools, lastText, type Script, type ScriptedCall, say } from '#tests/support/fake-model-script.ts';
import { assemble, drive, instantiate, modelConfig, storedMessages } from '#tests/support/graphs/drive.ts';

let model: FakeModel;
beforeEach(async () => {
  model = await startFakeModel({ strict: true });
});
afterEach(() => model.close());

async function chat(baseUrl: string | null = model.url): Promise<DrivenGraph> {
  const file = fileURLToPath(new URL('../../src/graphs/chat.ts', import.meta.url));
  const graphs = { chat: { file, exportName: 'graph', context: 'checkpoint' as const } };
  return instantiate(await createGraphRegistry({ graphs, model: modelConfig(baseUrl) }), 'chat');
}

const ask = (text: string) => ({ messages: [new HumanMessage(text)] });
const email = (id: string, to: string): ScriptedCall => ({
  id,
  name: 'send_email',
  args: { to, subject: 'hello', body: 'there' },
});
/** First the calls, then a plain answer that repeats the last tool result. */
const callsThenAnswer =
  (calls: ScriptedCall[], pieceChars = 5): Script =>
  (request, index) =>
    index === 0 ? callTools(calls, { pieceChars }) : say(`Done: ${lastText(request)}`);

describe('tools', () => {
  test('a call is streamed, announced whole, run, and its result goes to the model', async () => {
    model.setScript(callsThenAnswer([{ id: 'c1', name: 'calculate', args: { expression: '2*(3+4)' } }]));
    const graph = await chat();
    const run = await drive(graph, ask('what is it?'));
    const [calling, answering] = assemble(run.events);
    expect(calling).toMatchObject({
      calls: { 0: { id: 'c1', name: 'calculate' } },
      args: { 0: '{"expression":"2*(3+4)"}' },
    });
    expect(run.of('message.tool_calls')).toEqual([
      {
        type: 'message.tool_calls',
        ns: [],
        message_id: calling?.id,
        tool_calls: [{ id: 'c1', name: 'calculate', args: { expression: '2*(3+4)' } }],
      },
    ]);
    expect(run.of('message.whole').map((event) => event.message)).toMatchObject([
      { type: 'tool', tool_call_id: 'c1', content: '14', status: 'success' },
    ]);
    expect(answering?.text).toBe('Done: 14');
    expect(run.translator.answer()).toEqual({ stream_id: answering?.id, content: 'Done: 14' });
    expect(run.translator.usage()).toEqual({ input_tokens: 22, output_tokens: 14, total_tokens: 36 });
    const stored = await storedMessages(graph);
    const streamedIds = [calling?.id, run.of('message.whole')[0]?.message.id, answering?.id];
    expect(stored.slice(1).map((message) => message.id)).toEqual(streamedIds);
  });

  test('a hundred calls in one answer', async () => {
    const calls = Array.from({ length: 100 }, (_, index) => ({
      id: `c${index}`,
      name: 'calculate',
      args: { expression: `${index}+1` },
    }));
    model.setScript(callsThenAnswer(calls));
    const graph = await chat();
    const run = await drive(graph, ask('all of them'));
    expect(run.error).toBeUndefined();
    const results = run.of('message.whole').map((event) => [event.message.tool_call_id, event.message.content]);
    expect(new Map(results as [string, Json][])).toEqual(
      new Map(calls.map(({ id }, index) => [id, String(index + 1)])),
    );
    expect(Object.keys(assemble(run.events)[0]?.args ?? {})).toHaveLength(100);
    expect(run.of('message.tool_calls')[0]?.tool_calls).toHaveLength(100);
    expect(await storedMessages(graph)).toHaveLength(103);
  });

  test.each([
    ['an unknown tool', { id: 'c1', name: 'no_such_tool', args: {} }, /There is no tool with the name "no_such_tool"/],
    ['arguments the schema refuses', { id: 'c1', name: 'calculate', args: { expression: 7 } }, /./],
    [
      'arguments that are half JSON',
      { id: 'c1', name: 'send_email', args: '{"to":"a@example.com","subject":"hel' },
      /not valid JSON/,
    ],
    ['arguments that are no JSON', { id: 'c1', name: 'calculate', args: 'two plus two' }, /not valid JSON/],
    ['arguments that are no object', { id: 'c1', name: 'calculate', args: '[1]' }, /not valid JSON/],
    [
      'an expression that is none',
      { id: 'c1', name: 'calculate', args: { expression: 'process.exit()' } },
      /cannot calculate/,
    ],
  ])('%s: the model is told, nothing is run', async (_name, call, told) => {
    model.setScript(callsThenAnswer([call, { id: 'c2', name: 'calculate', args: { expression: '1+1' } }]));
    const graph = await chat();
    const run = await drive(graph, ask('go'));
    expect(run.error).toBeUndefined(); // the strict model would refuse a call without a result
    expect(run.translator.interrupts).toEqual([]);
    const results = Object.fromEntries(
      (await storedMessages(graph)).flatMap((message) =>
        message.tool_call_id === undefined ? [] : [[message.tool_call_id, String(message.content)]],
      ),
    );
    expect(results.c1).toMatch(told);
    expect(results.c2).toBe('2');
    expect(run.translator.answer()?.content).toMatch(/^Done: /);
  });

  test('what the model sent as broken arguments is kept', async () => {
    const broken = '{"to":"a@example.com","subject":"hel';
    model.setScript(callsThenAnswer([{ id: 'c1', name: 'send_email', args: broken }]));
    const graph = await chat();
    const run = await drive(graph, ask('go'));
    expect(assemble(run.events)[0]?.args[0]).toBe(broken);
    const calling = (await storedMessages(graph)).find((message) => (message.tool_calls?.length ?? 0) > 0);
    expect(calling?.tool_calls).toMatchObject([{ id: 'c1', name: 'send_email', args: {} }]);
    expect(calling?.invalid_tool_calls).toMatchObject([{ id: 'c1', args: broken }]);
  });
});

describe('approvals', () => {
  const calls = [email('c1', 'a@example.com'), email('c2', 'b@example.com'), email('c3', 'c@example.com')];

  async function asked() {
    model.setScript(callsThenAnswer(calls));
    const graph = await chat();
    const run = await drive(graph, ask('write to all three'));
    const idOf = (to: string) =>
      run.translator.interrupts.find(({ value }) => (value as { args: { to: string } }).args.to === to)?.id ?? 'none';
    return { graph, run, ids: ['a', 'b', 'c'].map((name) => idOf(`${name}@example.com`)) as [string, string, string] };
  }
  const resultsOf = async (graph: DrivenGraph) =>
    Object.fromEntries((await storedMessages(graph)).map((message) => [message.tool_call_id, message.content]));

  test('asked in parallel have an id each, and are held back', async () => {
    const { run, ids } = await asked();
    expect(new Set(ids).size).toBe(3);
    expect(run.translator.interrupts.map(({ value }) => value)).toMatchObject(
      calls.map((call) => ({ action: 'send_email', args: call.args, answers: ['approve', 'reject', 'edit'] })),
    );
    expect(run.translator.paused).toBe(true);
    expect(JSON.stringify(run.events)).not.toContain('__interrupt__');
    expect(run.translator.held.map((event) => event.type === 'graph.part' && event.mode)).toEqual(
      Array(3).fill('updates'),
    );
    expect(JSON.stringify(run.translator.held)).toContain(ids[2]);
    expect(run.translator.answer()).toBeNull(); // text before a tool call is not the answer
  });

  test('each gets its own answer', async () => {
    const { graph, ids } = await asked();
    const resume = {
      [ids[1]]: { action: 'reject', reason: 'Too soon.' },
      [ids[0]]: true,
      [ids[2]]: { action: 'edit', args: { to: 'other@example.com' } },
    };
    const run = await drive(graph, new Command({ resume }), { continued: true });
    expect(run.error).toBeUndefined();
    const results = await resultsOf(graph);
    expect(results.c1).toMatch(/^Recorded for a@example.com with the subject “hello”/);
    expect(results.c2).toBe('Not sent: the person said no. Too soon.');
    expect(results.c3).toMatch(/^Recorded for other@example.com/);
    expect(run.translator.interrupts).toEqual([]);
    expect(run.translator.answer()?.content).toMatch(/^Done: /);
  });

  test('a partial answer keeps the rest open, and does not repeat what was done', async () => {
    const { graph, ids } = await asked();
    const run = await drive(graph, new Command({ resume: { [ids[1]]: 'yes' } }), { continued: true });
    expect(run.translator.interrupts.map(({ id }) => id).sort()).toEqual([ids[0], ids[2]].sort());
    expect(run.of('message.whole').map((event) => event.message.tool_call_id)).toEqual(['c2']);
    expect(model.calls).toHaveLength(1);
    const rest = await drive(graph, new Command({ resume: { [ids[0]]: 'yes', [ids[2]]: 'no' } }), { continued: true });
    expect(
      rest
        .of('message.whole')
        .map((event) => event.message.tool_call_id)
        .sort(),
    ).toEqual(['c1', 'c3']);
    // The update of c2 is repeated by LangGraph as cached; it was told in the run before.
    expect(JSON.stringify(rest.of('graph.part'))).not.toContain('b@example.com');
    expect(model.calls).toHaveLength(2);
  });

  test.each([['maybe'], [{ action: 'edit', args: { to: 5 } }], [null], [{}], [1]])(
    'what is not clearly a yes is a no: %j',
    async (answer) => {
      const { graph, ids } = await asked();
      await drive(graph, new Command({ resume: Object.fromEntries(ids.map((id) => [id, answer])) }), {
        continued: true,
      });
      const results = await resultsOf(graph);
      expect([results.c1, results.c2, results.c3]).toEqual(Array(3).fill('Not sent: the person said no.'));
    },
  );
});

test('the model is sent whole turns, and no more than twenty', async () => {
  model.setScript(say('ok'));
  const graph = await chat();
  for (let turn = 1; turn <= 25; turn += 1) await drive(graph, ask(`question ${turn}`));
  const sent = model.calls.at(-1)?.body.messages ?? [];
  expect(sent.filter((message) => message.role === 'user').map((message) => message.content)).toEqual(
    Array.from({ length: 20 }, (_, index) => `question ${index + 6}`),
  );
  expect(sent[0]?.role).toBe('system');
  expect(sent[1]?.content).toBe('question 6');
});

describe('the demo model, when none is configured', () => {
  test('says what it is, word by word, and reports usage', async () => {
    const run = await drive(await chat(null), ask('hello'));
    expect(run.error).toBeUndefined();
    expect(run.translator.answer()?.content).toMatch(/^I am the demo model of this server\..*You said: “hello”/);
    expect(run.of('message.delta').length).toBeGreaterThan(20);
    expect(run.of('run.usage')).toMatchObject([{ model: 'demo' }]);
    expect(model.calls).toHaveLength(0);
  });

  test('calculates', async () => {
    const run = await drive(await chat(null), ask('What is 17 * 23, please?'));
    expect(run.of('message.whole').map((event) => event.message.content)).toEqual(['391']);
    expect(run.translator.answer()?.content).toContain('391');
  });

  test('asks before it sends, once per address', async () => {
    const graph = await chat(null);
    const run = await drive(graph, ask('Send an e-mail to ada@example.com and to bob@example.org'));
    const [first, second, ...more] = run.translator.interrupts;
    expect(more).toEqual([]);
    const resume = { [first?.id ?? '']: true, [second?.id ?? '']: false };
    const after = await drive(graph, new Command({ resume }), { continued: true });
    expect(after.translator.answer()?.content).toMatch(/Recorded for ada@example.com.*Not sent/);
  });

  test('stops at once', async () => {
    const controller = new AbortController();
    const run = await drive(await chat(null), ask('hello'), {
      signal: controller.signal,
      onEvent: (_event, events) => events.length === 3 && controller.abort(),
    });
    expect(run.error).toBeDefined();
    expect(run.events.length).toBeLessThan(8);
  });
});
