/** What a model gives beside its text: reasoning, which is kept, and usage, which is counted once per call. */
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import {
  type Cluster,
  call,
  ended,
  follow,
  type Sent,
  seen,
  send,
  startCluster,
  textOf,
} from '#tests/support/cluster.ts';
import { callTools, type Reply, type Step, say, type TokenUsage } from '#tests/support/fake-model-script.ts';
import { dataOf, spoken } from '#tests/support/frames.ts';
import type { TestServer } from '#tests/support/server.ts';

let cluster: Cluster;
let a: TestServer;
let b: TestServer;

beforeAll(async () => {
  const file = (name: string): string => fileURLToPath(new URL(name, import.meta.url));
  const graphs = {
    chat: `${file('../../src/graphs/chat.ts')}:graph`,
    thinking: `${file('../support/graphs/content.ts')}:thinking`,
    counting: `${file('../support/graphs/content.ts')}:counting`,
    nested: `${file('../support/graphs/nested.ts')}:models`,
    quiet: `${file('../support/graphs/nested.ts')}:quiet`,
  };
  cluster = await startCluster({ size: 2, model: { strict: true }, server: { config: { graphs } } });
  [a, b] = cluster.servers as [TestServer, TestServer];
});
afterAll(() => cluster.stop());

async function finished(content: string, more: Record<string, unknown>, threadId?: string) {
  const sent = await send(a, content, more, threadId);
  const stream = await follow(b, sent);
  await stream.closed;
  expect(dataOf(stream, 'run_end')).toMatchObject([{ status: 'succeeded' }]);
  return { sent, stream };
}

describe('reasoning', () => {
  const openai = (field: 'reasoning_content' | 'reasoning'): Reply => ({
    steps: [
      { do: 'reasoning', text: 'let me ', field },
      { do: 'reasoning', text: 'see', field },
      { do: 'text', text: 'it ' },
      { do: 'text', text: 'is so' },
      { do: 'finish', reason: 'stop' },
    ],
  });

  test.each([
    ['reasoning_content', openai('reasoning_content'), 'plain'],
    ['reasoning', openai('reasoning'), 'plain'],
    ['content blocks', say(''), 'blocks'],
  ])('as %s: live, on every replay and in the state of the next turn', async (_name, reply, form) => {
    cluster.model.setScript(reply);
    const more = { graph: 'thinking', config: { configurable: { form } } };
    const { sent, stream } = await finished('think', more);
    for (const after of [undefined, undefined, stream.frames[1]?.id]) {
      const again = await follow(a, sent, after);
      await again.closed;
      expect(seen(again)).toEqual(seen(stream).slice(after === undefined ? 0 : 2));
    }
    expect([...spoken(stream, 'reasoning').values()]).toEqual(['let me see']);
    expect([...spoken(stream, 'text').values()]).toEqual(['it is so']);
    // Reasoning and answer are one message.
    expect([...spoken(stream, 'reasoning').keys()]).toEqual([...spoken(stream, 'text').keys()]);

    const next = await finished('again', more, sent.thread_id);
    const [[state] = []] = dataOf<{ data: { content: unknown; kwargs: Record<string, unknown> }[] }>(
      next.stream,
      'custom',
    ).map(({ data }) => data);
    expect(JSON.stringify(state)).toContain('let me see');
    if (form === 'plain')
      expect(state).toMatchObject({ content: 'it is so', kwargs: { reasoning_content: 'let me see' } });
    else expect(state?.content).toMatchObject([{ thinking: 'let me see' }, { text: 'it is so' }]);
  });
});

interface Usage {
  input_tokens: number;
  output_tokens: number;
  total_tokens: number;
  input_token_details?: Record<string, number>;
  output_token_details?: Record<string, number>;
}

const TRUTH: TokenUsage = {
  prompt_tokens: 100,
  completion_tokens: 40,
  total_tokens: 140,
  prompt_tokens_details: { cached_tokens: 60 },
  completion_tokens_details: { reasoning_tokens: 25 },
};
const times = (calls: number): Usage => ({
  input_tokens: 100 * calls,
  output_tokens: 40 * calls,
  total_tokens: 140 * calls,
  input_token_details: { cache_read: 60 * calls },
  output_token_details: { reasoning: 25 * calls },
});

describe('usage', () => {
  const calculation = callTools([{ id: 'c1', name: 'calculate', args: { expression: '1+1' } }]);
  const REPORTS = ['last', 'cumulative', 'none'] as const;
  const GRAPHS = [
    ['one call', 'chat', 1],
    ['a call, a tool, another call', 'chat', 2],
    ['a call in the graph and one in its subgraph', 'nested', 2],
    ['two calls that nobody sees and one that streams', 'quiet', 3],
  ] as const;

  test.each(GRAPHS.flatMap(([name, graph, calls]) => REPORTS.map((report) => [name, report, graph, calls] as const)))(
    'of %s, told %s: what the provider counted, once per call, whoever looks and how often',
    async (name, reportUsage, graph, calls) => {
      const facts = { usage: TRUTH, reportUsage };
      const answer = say('one two three four five', facts);
      const wantsTool = name.includes('tool');
      cluster.model.setScript((request) =>
        wantsTool && request.messages.at(-1)?.role === 'user' ? { ...calculation, ...facts } : answer,
      );
      const { sent, stream } = await finished(name, { graph });
      await assertUsage(sent, stream, reportUsage === 'none' ? null : times(calls), calls);
    },
  );

  test.each(REPORTS)('told %s: the same in the state of the next turn', async (reportUsage) => {
    cluster.model.setScript(say('one two three four five', { usage: TRUTH, reportUsage }));
    const { sent } = await finished('count', { graph: 'thinking' });
    const next = await finished('again', { graph: 'thinking' }, sent.thread_id);
    const usage = reportUsage === 'none' ? null : times(1);
    expect(dataOf(next.stream, 'custom')).toMatchObject([{ data: [{ usage }] }]);
  });

  test('of a model that tells with every chunk what it has counted so far: the last count', async () => {
    const { stream } = await finished('count', { graph: 'counting' });
    const usage = { input_tokens: 100, output_tokens: 40, total_tokens: 140 };
    expect(dataOf(stream, 'usage')).toMatchObject([{ usage }]);
    expect(dataOf(stream, 'run_end')).toMatchObject([{ usage }]);
  });

  test('of a call that broke off and was tried again: of the one that ended', async () => {
    const broken: Step[] = [{ do: 'text', text: 'one two ' }, { do: 'delay', ms: 100 }, { do: 'reset' }];
    const first = cluster.model.calls.length;
    cluster.model.setScript((_request, index) =>
      index === first
        ? { steps: broken, usage: TRUTH, reportUsage: 'cumulative' }
        : say('one two three', { usage: TRUTH }),
    );
    const { sent, stream } = await finished('try', { graph: 'chat' });
    expect(dataOf(stream, 'retry')).toMatchObject([{ attempt: 1 }]);
    expect(textOf(stream)).toBe('one two one two three');
    await assertUsage(sent, stream, times(1), 1);
  });
});

/** In the frames of the calls, in the last frame and in the row; and the same for three more readers. */
async function assertUsage(
  sent: Sent,
  first: Pick<Awaited<ReturnType<typeof follow>>, 'frames'>,
  truth: Usage | null,
  calls: number,
): Promise<void> {
  const readers = [first];
  for (const server of [a, b, a]) {
    const again = await follow(server, sent);
    await again.closed;
    readers.push(again);
  }
  for (const reader of readers) {
    expect(dataOf<{ usage: Usage }>(reader, 'usage').map(({ usage }) => usage)).toEqual(
      truth === null ? [] : Array(calls).fill(times(1)),
    );
    expect(dataOf(reader, 'run_end')[0]?.usage).toEqual(truth);
    expect((await ended(b, sent.run_id)).usage).toEqual(truth);
  }
  const { body } = await call(a, 'GET', `/api/v1/threads/${sent.thread_id}/status`);
  expect(body.run).toMatchObject({ usage: truth });
}
