/**
 * Text that breaks databases, parsers and frames, from models, tools and graphs: the run succeeds, and what a client reads (on
 * another process than the one that executes), what /turns says and what the model is sent again are equal to what was said.
 */
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type Cluster, call, ended, follow, type Sent, send, startCluster, textOf } from '#tests/support/cluster.ts';
import { callTools, type Reply, type ScriptedCall, type Step, say } from '#tests/support/fake-model-script.ts';
import { dataOf, parseWithUnicodeLines, spoken } from '#tests/support/frames.ts';
import { HOSTILE_MEGABYTE, HOSTILE_TEXT, HOSTILE_VALUE } from '#tests/support/hostile-text.ts';
import type { TestServer } from '#tests/support/server.ts';
import type { SseStream } from '#tests/support/sse.ts';

let cluster: Cluster;
let a: TestServer;
let b: TestServer;

beforeAll(async () => {
  const hostile = fileURLToPath(new URL('../support/graphs/hostile.ts', import.meta.url));
  const chat = fileURLToPath(new URL('../../src/graphs/chat.ts', import.meta.url));
  const graphs = {
    chat: `${chat}:graph`,
    tools: `${hostile}:tools`,
    nodes: `${hostile}:nodes`,
    remembers: `${hostile}:remembers`,
  };
  cluster = await startCluster({ size: 2, model: { strict: true }, server: { config: { graphs } } });
  [a, b] = cluster.servers as [TestServer, TestServer];
});
afterAll(() => cluster.stop());

/** Sends to one process, reads on the other, to the end. Every reader gets the same frames, whatever it splits lines at. */
async function run(content: unknown, more: Record<string, unknown> = {}, threadId?: string) {
  const sent = await send(a, content, more, threadId);
  const stream = await follow(b, sent);
  await stream.closed;
  expect(parseWithUnicodeLines(stream.raw())).toEqual(
    stream.frames.map(({ event, id, data }) => ({ event, id, data })),
  );
  await readableEverywhere(sent);
  return { sent, stream };
}

async function readableEverywhere({ thread_id, run_id }: Pick<Sent, 'thread_id' | 'run_id'>): Promise<void> {
  const paths = ['/api/v1/threads', `/api/v1/threads/${thread_id}`, `/api/v1/threads/${thread_id}/turns`];
  for (const path of [...paths, `/api/v1/threads/${thread_id}/status`, `/api/v1/runs/${run_id}`]) {
    expect(await call(b, 'GET', path), path).toMatchObject({ status: 200 });
  }
}

interface Turn {
  status: string;
  question: { content: unknown };
  answer: { content: unknown; stream_id: string | null; partial: boolean } | null;
  interrupts: { id: string; value: unknown }[];
}

async function lastTurn({ thread_id }: Pick<Sent, 'thread_id'>): Promise<Turn> {
  const { body } = await call<{ turns: Turn[] }>(b, 'GET', `/api/v1/threads/${thread_id}/turns`);
  const turn = body.turns.at(-1);
  if (turn === undefined) throw new Error('no turn');
  return turn;
}

const statusOf = (stream: SseStream) => dataOf(stream, 'run_end')[0]?.status;

/** One chunk per UTF-16 unit: characters of two units are cut in half. */
const inUnits = (text: string, make: (unit: string) => Step): Step[] =>
  Array.from({ length: text.length }, (_, at) => make(text.charAt(at)));

/** First the tools are called, then, with their results, the model says `done`. */
function callThenSay(reply: Reply): void {
  cluster.model.setScript((request) => (request.messages.at(-1)?.role === 'tool' ? say('done') : reply));
}

describe('what a model says', () => {
  test('text and reasoning, cut between the halves of characters', async () => {
    const text: Step[] = inUnits(HOSTILE_TEXT, (unit) => ({ do: 'text', text: unit }));
    const reasoning: Step[] = inUnits(HOSTILE_TEXT, (unit) => ({ do: 'reasoning', text: unit }));
    cluster.model.setScript({ steps: [...reasoning, ...text, { do: 'finish', reason: 'stop' }] });
    const { sent, stream } = await run('speak');
    expect(statusOf(stream)).toBe('succeeded');
    expect([...spoken(stream, 'text').values()]).toEqual([HOSTILE_TEXT]);
    expect([...spoken(stream, 'reasoning').values()]).toEqual([HOSTILE_TEXT]);
    const turn = await lastTurn(sent);
    expect(turn.answer).toMatchObject({ content: HOSTILE_TEXT, partial: false });
    // The next turn of the thread: the model is told its own words, unchanged.
    cluster.model.setScript(say('next'));
    const next = await run('go on', {}, sent.thread_id);
    expect(statusOf(next.stream)).toBe('succeeded');
    const { messages } = cluster.model.calls.at(-1)?.body ?? { messages: [] };
    expect(messages.filter(({ role }) => role === 'assistant')).toMatchObject([{ content: HOSTILE_TEXT }]);
  });

  test('names, ids and arguments of tool calls', async () => {
    const calls: ScriptedCall[] = [
      { id: `c1${HOSTILE_TEXT}`, name: 'calculate', args: { expression: '1 + 1', [HOSTILE_TEXT]: HOSTILE_VALUE } },
      { id: 'c2', name: HOSTILE_TEXT, args: HOSTILE_VALUE },
      { id: 'c3', name: 'calculate', args: `{"expression": "${'\u0000\u2028'}` },
      { id: 'c4', name: 'calculate', args: { expression: HOSTILE_TEXT } },
    ];
    callThenSay(callTools(calls, { pieceChars: 3 }));
    const { stream } = await run('call');
    expect(statusOf(stream)).toBe('succeeded');
    expect(textOf(stream)).toBe('done');
    assertCallsSeen(stream, calls);
    assertCallsToldAgain(calls);
  });

  test('a hundred tool calls in one answer', async () => {
    const calls = Array.from({ length: 100 }, (_, at) => ({
      id: `c${at}`,
      name: 'calculate',
      args: { expression: `${at} + 1` },
    }));
    callThenSay(callTools(calls));
    const { sent, stream } = await run('call them all');
    expect(statusOf(stream)).toBe('succeeded');
    assertCallsSeen(stream, calls);
    assertCallsToldAgain(calls);
    const results = dataOf<{ tool_call_id: string; content: string }>(stream, 'tool_call_result');
    const truth = calls.map(({ id }, at) => [id, String(at + 1)]);
    expect(results.map(({ tool_call_id, content }) => [tool_call_id, content]).sort()).toEqual(truth.sort());
    const { messages } = cluster.model.calls.at(-1)?.body ?? { messages: [] };
    const told = messages
      .filter(({ role }) => role === 'tool')
      .map((message) => [message.tool_call_id, message.content]);
    expect(told.sort()).toEqual(truth.sort());
    expect(await lastTurn(sent)).toMatchObject({ answer: { content: 'done', partial: false } });
  });

  test('5 MB in one chunk, and in many', async () => {
    const long = `${HOSTILE_TEXT}${'five megabytes '.repeat(350_000)}${HOSTILE_TEXT}`;
    const middle = long.length / 2;
    const pieces = [long.slice(0, middle), ...(long.slice(middle).match(/[\s\S]{1,100000}/g) ?? [])];
    const steps = pieces.map<Step>((text) => ({ do: 'text', text }));
    cluster.model.setScript({ steps: [...steps, { do: 'finish', reason: 'stop' }] });
    const { sent, stream } = await run('speak at length');
    expect(statusOf(stream)).toBe('succeeded');
    expect(textOf(stream) === long).toBe(true);
    expect((await lastTurn(sent)).answer?.content === long).toBe(true);
  });
});

/** What clients put together from pieces, and what they are told when the answer is complete. */
function assertCallsSeen(stream: SseStream, calls: ScriptedCall[]): void {
  const texts: string[] = [];
  const heads: { id?: string | undefined; name?: string | undefined }[] = [];
  type Chunks = { tool_call_chunks: { index: number; id?: string; name?: string; args?: string }[] };
  for (const chunk of dataOf<Chunks>(stream, 'tool_call_chunks').flatMap((data) => data.tool_call_chunks)) {
    texts[chunk.index] = (texts[chunk.index] ?? '') + (chunk.args ?? '');
    if (chunk.id !== undefined) heads[chunk.index] = { id: chunk.id, name: chunk.name };
  }
  expect(texts).toEqual(calls.map(({ args }) => (typeof args === 'string' ? args : JSON.stringify(args))));
  expect(heads).toEqual(calls.map(({ id, name }) => ({ id, name })));
  const complete = dataOf<{ tool_calls: unknown[] }>(stream, 'tool_calls').flatMap((data) => data.tool_calls);
  // Arguments that are no JSON are not made up.
  expect(complete).toEqual(
    calls.map(({ id, name, args }) => ({ id, name, args: typeof args === 'string' ? {} : args })),
  );
  const results = dataOf<{ tool_call_id: string }>(stream, 'tool_call_result');
  expect(results.map((result) => result.tool_call_id).sort()).toEqual(calls.map(({ id }) => id).sort());
}

/** The model's second request holds its own calls. */
function assertCallsToldAgain(calls: ScriptedCall[]): void {
  const { messages } = cluster.model.calls.at(-1)?.body ?? { messages: [] };
  const told = messages.flatMap((message) => message.tool_calls ?? []);
  expect(told.map(({ id, function: { name } }) => ({ id, name }))).toEqual(calls.map(({ id, name }) => ({ id, name })));
  const args = told.map((toldCall) => JSON.parse(String(toldCall.function.arguments)));
  expect(args).toEqual(calls.map((made) => (typeof made.args === 'string' ? {} : made.args)));
}

describe('what a tool returns', () => {
  const contents: [name: string, content: string | RegExp][] = [
    ['text', HOSTILE_TEXT],
    ['megabyte', HOSTILE_MEGABYTE],
    ['object', JSON.stringify({ value: HOSTILE_VALUE })],
    ['artifact', HOSTILE_TEXT],
  ];

  test('text, a megabyte, an object, an artifact, an error', async () => {
    const calls = [...contents.map(([name]) => name), 'fails'].map((name) => ({ id: `call ${name}`, name, args: {} }));
    callThenSay(callTools(calls));
    const { stream, sent } = await run('use them', { graph: 'tools' });
    expect(statusOf(stream)).toBe('succeeded');
    type Result = { name: string; content: string; status: string | null };
    const results = new Map(dataOf<Result>(stream, 'tool_call_result').map((result) => [result.name, result]));
    expect([...results.keys()].sort()).toEqual(calls.map(({ name }) => name).sort());
    for (const [name, content] of contents) expect(results.get(name)?.content === content, name).toBe(true);
    expect(results.get('fails')).toMatchObject({ status: 'error', content: expect.stringContaining(HOSTILE_TEXT) });
    // The model is told exactly what clients were shown.
    const { messages } = cluster.model.calls.at(-1)?.body ?? { messages: [] };
    const told = new Map(
      messages.filter(({ role }) => role === 'tool').map((message) => [message.tool_call_id, message.content]),
    );
    for (const { id, name } of calls) expect(told.get(id) === results.get(name)?.content, name).toBe(true);
    expect(await lastTurn(sent)).toMatchObject({ status: 'succeeded', answer: { content: 'done' } });
  });
});

describe('what a graph says', () => {
  test('custom events, and a question with its answer', async () => {
    const { stream, sent } = await run('talk', { graph: 'nodes' });
    expect(statusOf(stream)).toBe('interrupted');
    const custom = dataOf<{ data: unknown; ns: string[] }>(stream, 'custom');
    expect(custom.map(({ data }) => data)).toEqual([HOSTILE_TEXT, HOSTILE_VALUE, HOSTILE_MEGABYTE]);
    expect(custom[0]?.ns[0]).toMatch(/^inner\r\nevent end\r\n\r\n\u2028:/);
    const asked = dataOf<{ interrupts: { id: string; value: unknown }[] }>(stream, 'interrupt')[0]?.interrupts ?? [];
    expect(asked).toMatchObject([{ value: HOSTILE_VALUE }]);
    expect((await lastTurn(sent)).interrupts).toEqual(asked);
    expect(dataOf(stream, 'run_end')[0]?.interrupts).toEqual(asked);

    const answer = { yes: ['a\u2028b\u2029c\u0085d\r\n😀', { '\u2028': 1 }] };
    const path = `/api/v1/threads/${sent.thread_id}/answer`;
    const answered = await call<Sent>(a, 'POST', path, { interrupts: { [asked[0]?.id ?? '']: answer } });
    expect(answered.status).toBe(202);
    const rest = await follow(b, answered.body);
    await rest.closed;
    expect(statusOf(rest)).toBe('succeeded');
    expect((await lastTurn(sent)).answer?.content).toBe(JSON.stringify(answer));
  });

  test('state and messages come back from the checkpoint as they went in, whatever an id holds', async () => {
    const first = await run('one', { graph: 'remembers' });
    expect(statusOf(first.stream)).toBe('succeeded');
    expect((await lastTurn(first.sent)).answer?.content).toBe(HOSTILE_TEXT);
    const second = await run('two', { graph: 'remembers' }, first.sent.thread_id);
    expect(statusOf(second.stream)).toBe('succeeded');
    expect(dataOf(second.stream, 'custom')).toEqual([
      { data: { note: HOSTILE_TEXT, facts: HOSTILE_VALUE, texts: ['one', HOSTILE_TEXT, 'two'] } },
    ]);
    expect((await ended(a, second.sent.run_id)).status).toBe('succeeded');
  });
});
