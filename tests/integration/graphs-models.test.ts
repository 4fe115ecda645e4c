import { HumanMessage } from '@langchain/core/messages';
import { MemorySaver, MessagesAnnotation, START, StateGraph } from '@langchain/langgraph';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import type { Usage } from '#src/events/event.ts';
import { classify, type GraphFailureCode } from '#src/graphs/failures.ts';
import type { DrivenGraph } from '#src/graphs/graph.ts';
import { ModelStalledError } from '#src/graphs/model-fetch.ts';
import { createChatModel, type ModelConfig } from '#src/graphs/models.ts';
import { type FakeModel, startFakeModel } from '#tests/support/fake-model.ts';
import { fail, type Reply, type Step, say } from '#tests/support/fake-model-script.ts';
import { assemble, type Driven, drive, modelConfig, storedMessages } from '#tests/support/graphs/drive.ts';

let model: FakeModel;
beforeEach(async () => {
  model = await startFakeModel({ strict: true });
});
afterEach(() => model.close());

const SECRET = 'sk-secret-in-the-body';
const input = { messages: [new HumanMessage('hi')] };

/** One node that calls the model. */
function oneCall(limits: Partial<ModelConfig> = {}): DrivenGraph {
  const chat = createChatModel({ model: modelConfig(model.url, limits) });
  return new StateGraph(MessagesAnnotation)
    .addNode('agent', async ({ messages }, config) => ({ messages: [await chat.invoke(messages, config)] }))
    .addEdge(START, 'agent')
    .compile({ checkpointer: new MemorySaver() }) as DrivenGraph;
}

async function answerTo(reply: Reply, limits: Partial<ModelConfig> = {}): Promise<{ run: Driven; graph: DrivenGraph }> {
  model.setScript(reply);
  const graph = oneCall(limits);
  return { run: await drive(graph, input), graph };
}

const steps = (...list: Step[]): Reply => ({ steps: [...list, { do: 'finish', reason: 'stop' }] });

describe('what the model says is what is streamed and stored', () => {
  test('text, token by token, under one id', async () => {
    const { run, graph } = await answerTo(say('Hello there, you.'));
    const stored = (await storedMessages(graph)).at(-1);
    const [streamed] = assemble(run.events);
    expect(streamed).toMatchObject({ id: stored?.id, ns: [], text: 'Hello there, you.' });
    expect(stored?.content).toBe('Hello there, you.');
    expect(run.of('message.delta').map((delta) => delta.text)).toEqual(['Hello', ' there,', ' you.']);
    expect(run.translator.answer()).toEqual({ stream_id: stored?.id, content: 'Hello there, you.' });
    expect(run.translator.unfinished()).toEqual([]);
  });

  test.each(['reasoning_content', 'reasoning'] as const)('reasoning sent as %s', async (field) => {
    const { run, graph } = await answerTo(
      steps(
        { do: 'reasoning', text: 'let me ', field },
        { do: 'reasoning', text: 'think', field },
        { do: 'text', text: '42' },
      ),
    );
    const stored = (await storedMessages(graph)).at(-1);
    expect(assemble(run.events)).toMatchObject([{ text: '42', reasoning: 'let me think' }]);
    expect(stored?.additional_kwargs).toEqual({ reasoning_content: 'let me think' });
    expect(run.of('message.delta').map((delta) => [delta.kind, delta.text])).toEqual([
      ['reasoning', 'let me '],
      ['reasoning', 'think'],
      ['text', '42'],
    ]);
  });

  test('NUL, lone surrogates, U+2028 and what looks like a frame', async () => {
    const hostile = ['a\u0000b', 'c\ud800d', '\u2028\u2029', '\r\nevent: run_end\r\ndata: {}\r\n\r\n'];
    const { run, graph } = await answerTo(steps(...hostile.map((text): Step => ({ do: 'text', text }))));
    const stored = (await storedMessages(graph)).at(-1);
    expect(stored?.content).toBe(hostile.join(''));
    expect(assemble(run.events)[0]?.text).toBe(hostile.join(''));
    expect(JSON.parse(JSON.stringify(run.events))).toEqual(run.events);
  });

  test('the finish reason and the model, once', async () => {
    const { run, graph } = await answerTo(say('a b c'));
    const metadata = { model_provider: 'openai', finish_reason: 'stop', model_name: 'fake' };
    expect((await storedMessages(graph)).at(-1)?.response_metadata).toMatchObject(metadata);
    const told = run.events.flatMap((event) =>
      event.type === 'message.head' || event.type === 'message.chunk' ? [event.message.response_metadata ?? {}] : [],
    );
    expect(told.flatMap(Object.keys).sort()).toEqual(['finish_reason', 'model_name', 'model_provider']);
  });
});

describe('providers that are only nearly like OpenAI', () => {
  test('one completion id for all answers: two messages stay two', async () => {
    model.setScript((_request, index) => ({ ...say(`answer ${index}`), id: 'chatcmpl-123' }));
    const graph = oneCall();
    await drive(graph, input);
    await drive(graph, input);
    const contents = (await storedMessages(graph)).map((message) => message.content);
    expect(contents.filter((content) => String(content).startsWith('answer'))).toHaveLength(2);
  });

  test('no role in the first chunk', async () => {
    const bare = (delta: object, finish: string | null = null): Step => ({
      do: 'raw',
      bytes: `data: ${JSON.stringify({ id: 'x', choices: [{ index: 0, delta, finish_reason: finish }] })}\n\n`,
    });
    const { createServer } = await import('node:http');
    const frames = [bare({ content: 'no ' }), bare({ content: 'role' }, 'stop')].map(
      (step) => (step as { bytes: string }).bytes,
    );
    const server = createServer((_request, response) => {
      response.writeHead(200, { 'content-type': 'text/event-stream' }).end(`${frames.join('')}data: [DONE]\n\n`);
    });
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
    try {
      const { port } = server.address() as { port: number };
      const chat = createChatModel({ model: modelConfig(`http://127.0.0.1:${port}/v1`) });
      const answer = await chat.invoke('hi');
      expect([answer.type, answer.content]).toEqual(['ai', 'no role']);
    } finally {
      server.close();
    }
  });

  test('a model named by the run', async () => {
    const chat = createChatModel({ model: modelConfig(model.url), configurable: { model: 'other' } });
    await chat.invoke('hi');
    expect(model.calls[0]?.body.model).toBe('other');
  });
});

describe('usage is the provider’s, once per call', () => {
  const truth: Usage = { input_tokens: 30, output_tokens: 12, total_tokens: 42 };
  const reported = { prompt_tokens: 30, completion_tokens: 12, total_tokens: 42 };

  test.each(['last', 'cumulative'] as const)('reported %s', async (reportUsage) => {
    const { run, graph } = await answerTo(say('one two three four', { usage: reported, reportUsage }));
    const stored = (await storedMessages(graph)).at(-1);
    expect(run.of('run.usage')).toMatchObject([{ message_id: stored?.id, model: 'fake', ns: [], usage: truth }]);
    expect(run.translator.usage()).toEqual(truth);
    expect(stored?.usage_metadata).toMatchObject(truth);
    expect(stored?.response_metadata.usage).toEqual(reported);
    // Written after the last part of its message and before the node's update.
    const order = run.events.map((event) => event.type);
    expect(order.slice(-3)).toEqual(['message.chunk', 'run.usage', 'graph.part']);
  });

  test('not reported', async () => {
    const { run } = await answerTo(say('one two', { reportUsage: 'none' }));
    expect(run.of('run.usage')).toEqual([]);
    expect(run.translator.usage()).toBeNull();
    expect(run.error).toBeUndefined();
  });

  test('details are kept', async () => {
    const usage = {
      ...reported,
      prompt_tokens_details: { cached_tokens: 20 },
      completion_tokens_details: { reasoning_tokens: 5 },
    };
    const { run } = await answerTo(say('x', { usage }));
    expect(run.translator.usage()).toMatchObject({
      input_token_details: { cache_read: 20 },
      output_token_details: { reasoning: 5 },
    });
  });
});

describe('a model that goes silent', () => {
  const limits = { chunkTimeoutMs: 150, callTimeoutMs: 5_000 };

  test.each<[string, Reply]>([
    ['before the first byte', { ...say('late'), firstByteDelayMs: 60_000 }],
    ['in the middle of the text', { steps: [{ do: 'text', text: 'so ' }, { do: 'hang' }] }],
    [
      'in the middle of a tool call',
      { steps: [{ do: 'tool_call', index: 0, id: 'c', name: 'calculate', args: '{"expr' }, { do: 'hang' }] },
    ],
    [
      'with keep-alive comments',
      {
        steps: Array.from({ length: 200 }, (): Step[] => [
          { do: 'delay', ms: 40 },
          { do: 'raw', bytes: ': still here\n\n' },
        ]).flat(),
      },
    ],
  ])('%s', async (_name, reply) => {
    const { run, graph } = await answerTo(reply, limits);
    expect(classify(run.error, run.translator.fromModel)).toEqual({ code: 'MODEL_TIMEOUT', transient: false });
    const call = await model.waitForEnd(await model.waitForCall(1));
    expect(call.aborted).toBe(true);
    expect(call.abortedAt ?? 0).toBeLessThan(call.startedAt + 5_000);
    expect((await storedMessages(graph)).map((message) => message.content)).toEqual(['hi']);
  });

  test('a slow answer is none: each chunk, reasoning too, starts the wait anew', async () => {
    const slow: Step[] = Array.from({ length: 8 }, (_, index): Step[] => [
      { do: 'delay', ms: 200 },
      index < 4 ? { do: 'reasoning', text: 'r' } : { do: 'text', text: 't' },
    ]).flat();
    const { run } = await answerTo(steps(...slow), { ...limits, chunkTimeoutMs: 1_000 });
    expect(run.error).toBeUndefined();
    expect(assemble(run.events)).toMatchObject([{ reasoning: 'rrrr', text: 'tttt' }]);
  });

  test('a call that takes too long in all', async () => {
    const endless: Step[] = Array.from({ length: 1_000 }, (): Step[] => [
      { do: 'text', text: 'x' },
      { do: 'delay', ms: 20 },
    ]).flat();
    const { run } = await answerTo(steps(...endless), { chunkTimeoutMs: 15_000, callTimeoutMs: 2_000 });
    expect(classify(run.error, run.translator.fromModel).code).toBe('MODEL_TIMEOUT');
    expect((await model.waitForEnd(await model.waitForCall(1))).aborted).toBe(true);
    // What was streamed is known, and known to be unfinished.
    expect(run.translator.unfinished()).toEqual([assemble(run.events)[0]?.id]);
    expect(run.translator.answer()?.content).toMatch(/^x+$/);
  });

  test('the error says nothing the client library could take for its own timeout', async () => {
    const { run } = await answerTo({ ...say('late'), firstByteDelayMs: 60_000 }, limits);
    const chain = [run.error, (run.error as Error).cause];
    expect(chain.some((error) => error instanceof ModelStalledError)).toBe(true);
  });
});

describe('what a provider’s failure is called', () => {
  const body = { error: { message: `Incorrect key ${SECRET}`, type: 'server_error', code: null } };
  const streamError = (error: Record<string, unknown>): Reply => ({
    steps: [
      { do: 'text', text: 'so' },
      { do: 'stream_error', error },
    ],
  });

  test.each<[string, Reply, GraphFailureCode, boolean]>([
    ['429', fail(429, body, { 'retry-after': '1' }), 'MODEL_RATE_LIMITED', true],
    ['429, no quota', fail(429, { error: { code: 'insufficient_quota' } }), 'MODEL_RATE_LIMITED', false],
    ['500', fail(500, body), 'MODEL_UNAVAILABLE', true],
    ['503 with HTML', fail(503, '<html>busy</html>'), 'MODEL_UNAVAILABLE', true],
    ['529', fail(529, body), 'MODEL_UNAVAILABLE', true],
    ['401', fail(401, body), 'MODEL_AUTH', false],
    ['403', fail(403, body), 'MODEL_AUTH', false],
    ['400', fail(400, body), 'MODEL_REJECTED', false],
    ['400, context too long', fail(400, { error: { code: 'context_length_exceeded' } }), 'MODEL_REJECTED', false],
    ['404', fail(404, body), 'MODEL_REJECTED', false],
    ['a reset before the answer', { steps: [{ do: 'reset' }] }, 'MODEL_UNAVAILABLE', true],
    ['a reset in the middle', { steps: [{ do: 'text', text: 'so' }, { do: 'reset' }] }, 'MODEL_UNAVAILABLE', true],
    ['a stream cut in the middle', { steps: [{ do: 'text', text: 'so' }, { do: 'cut' }] }, 'MODEL_UNAVAILABLE', true],
    ['an error in the stream', streamError({ message: SECRET, type: 'server_error' }), 'MODEL_UNAVAILABLE', true],
    [
      'a rate limit in the stream',
      streamError({ message: SECRET, type: 'rate_limit_error' }),
      'MODEL_RATE_LIMITED',
      true,
    ],
    ['a status in the stream', streamError({ message: SECRET, code: 401 }), 'MODEL_AUTH', false],
    ['a malformed chunk', { steps: [{ do: 'raw', bytes: 'data: {"half\n\n' }] }, 'MODEL_UNAVAILABLE', true],
  ])('%s', async (_name, reply, code, transient) => {
    const { run } = await answerTo(reply);
    expect(classify(run.error, run.translator.fromModel)).toEqual({ code, transient });
    expect(model.calls).toHaveLength(1); // the run retries, the model does not
    expect(JSON.stringify(run.events)).not.toContain(SECRET);
  });

  test('a server that is not there', async () => {
    const gone = await startFakeModel();
    await gone.close();
    const chat = createChatModel({ model: modelConfig(gone.url) });
    const error = await chat.invoke('hi').catch((thrown: unknown) => thrown);
    expect(classify(error)).toEqual({ code: 'MODEL_UNAVAILABLE', transient: true });
  });
});
