/**
 * Questions to a person (field cases A20, A21, A22): a double click on two processes acts once, parallel questions have ids
 * of their own and each gets its own answer, and a question is there after a reload, in another window, after a restart.
 */
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import {
  type Answer,
  type Cluster,
  call,
  ended,
  follow,
  type Sent,
  send,
  startCluster,
} from '#tests/support/cluster.ts';
import { callTools, say } from '#tests/support/fake-model-script.ts';
import { dataOf } from '#tests/support/frames.ts';
import type { TestServer } from '#tests/support/server.ts';
import { type SlowService, startSlowService } from '#tests/support/slow-service.ts';

const TRIALS = 50;
/** Trials at a time. */
const LANES = 5;

let cluster: Cluster;
let a: TestServer;
let b: TestServer;
let service: SlowService;

beforeAll(async () => {
  const agents = fileURLToPath(new URL('../support/graphs/agents.ts', import.meta.url));
  const graphs = { agent: `${agents}:agent`, deltaAgent: `${agents}:deltaAgent` };
  service = await startSlowService();
  // How many questions are asked at once is the message.
  cluster = await startCluster({
    size: 2,
    model: {
      strict: true,
      script: ({ messages }) => {
        const last = messages.at(-1);
        if (last?.role !== 'user') return say('done');
        const count = Number(last.content);
        return callTools(Array.from({ length: count }, (_, n) => ({ id: `c${n}`, name: 'ask', args: { n } })));
      },
    },
    server: { config: { graphs } },
  });
  [a, b] = cluster.servers as [TestServer, TestServer];
});
afterAll(() => Promise.all([cluster?.stop(), service?.close()]));

let keys = 0;

interface Asking {
  sent: Sent;
  key: string;
}

/** A turn that waits for `count` answers. */
async function asking(server: TestServer, count: number, graph = 'agent'): Promise<Asking> {
  keys += 1;
  const key = `approval-${keys}`;
  const sent = await send(server, String(count), { graph, ...settings(key) });
  expect(await ended(server, sent.run_id)).toMatchObject({ status: 'interrupted' });
  return { sent, key };
}

const settings = (key: string) => ({ config: { configurable: { url: service.url, key } } });

interface Question {
  id: string;
  value: { question: number };
}
interface Turn {
  status: string;
  interrupts: Question[];
  answer: { content: string } | null;
}

async function turnOf(server: TestServer, { sent }: Asking): Promise<Turn> {
  const { body } = await call<{ turns: Turn[] }>(server, 'GET', `/api/v1/threads/${sent.thread_id}/turns`);
  expect(body.turns).toHaveLength(1);
  return body.turns[0] as Turn;
}

type Answered = Answer<{ run_id: string; code?: string }>;

const answer = (
  server: TestServer,
  { sent, key }: Asking,
  interrupts: Record<string, unknown>,
  more: Record<string, unknown> = {},
): Promise<Answered> =>
  call(server, 'POST', `/api/v1/threads/${sent.thread_id}/answer`, { interrupts, ...settings(key), ...more });

/** What the model was told of the tools, in the last call of the turn. */
function toldOf(count: number): string[] {
  const bodies = cluster.model.calls.map(({ body }) => body.messages);
  const told = bodies.findLast((messages) => messages.filter(({ role }) => role === 'tool').length === count) ?? [];
  return told.flatMap(({ role, content }) => (role === 'tool' ? [String(content)] : []));
}

describe('a double click', () => {
  async function trial(n: number): Promise<void> {
    const one = await asking(n % 2 === 0 ? a : b, 1, n % 4 < 2 ? 'agent' : 'deltaAgent');
    const [question] = (await turnOf(a, one)).interrupts;
    const interrupts = { [question?.id ?? '']: 'yes' };
    const both = await Promise.all([answer(a, one, interrupts), answer(b, one, interrupts)]);
    expect(both.map(({ status }) => status).sort()).toEqual([202, 409]);
    const lost = both.find(({ status }) => status === 409);
    expect(['INTERRUPT_ANSWERED', 'RUN_IN_PROGRESS']).toContain(lost?.body.code);
    const won = both.find(({ status }) => status === 202)?.body.run_id ?? '';
    expect(await ended(a, won, 30_000)).toMatchObject({ status: 'succeeded' });
    expect(service.times(`/${one.key}/acted-0`)).toBe(1);
    // A third, after the end.
    expect(await answer(b, one, interrupts)).toMatchObject({ status: 409, body: { code: 'INTERRUPT_ANSWERED' } });
    const turn = await turnOf(a, one);
    expect(turn).toMatchObject({ status: 'succeeded', interrupts: [], answer: { content: 'done' } });
    expect(await turnOf(b, one)).toEqual(turn);
  }

  test(`on two processes acts once, ${TRIALS} times`, async () => {
    const waiting = Array.from({ length: TRIALS }, (_, n) => n);
    const lane = async () => {
      for (let n = waiting.pop(); n !== undefined; n = waiting.pop()) await trial(n);
    };
    await Promise.all(Array.from({ length: LANES }, lane));
  }, 120_000);

  test('under one request key is one run for both', async () => {
    for (let n = 0; n < 5; n += 1) {
      const one = await asking(a, 1);
      const [question] = (await turnOf(b, one)).interrupts;
      const more = { request_key: `click-${one.key}` };
      const interrupts = { [question?.id ?? '']: 'yes' };
      const both = await Promise.all([answer(a, one, interrupts, more), answer(b, one, interrupts, more)]);
      expect(both.map(({ status }) => status)).toEqual([202, 202]);
      expect(new Set(both.map(({ body }) => body.run_id)).size).toBe(1);
      expect(await ended(b, both[0].body.run_id)).toMatchObject({ status: 'succeeded' });
      expect(service.times(`/${one.key}/acted-0`)).toBe(1);
    }
  });
});

describe('three questions at once', () => {
  test.each(['agent', 'deltaAgent'])('have ids of their own, and each tool gets its own answer (%s)', async (graph) => {
    const one = await asking(a, 3, graph);
    const stream = await follow(b, one.sent);
    await stream.closed;
    const questions = (await turnOf(a, one)).interrupts.toSorted((x, y) => x.value.question - y.value.question);
    const ids = questions.map(({ id }) => id);
    expect(new Set(ids).size).toBe(3);
    expect(questions.map(({ value }) => value)).toEqual([{ question: 0 }, { question: 1 }, { question: 2 }]);
    const shown = dataOf<{ interrupts: Question[] }>(stream, 'interrupt').flatMap(({ interrupts }) => interrupts);
    expect(shown.toSorted((x, y) => x.value.question - y.value.question)).toEqual(questions);
    expect(dataOf<{ interrupts: Question[] }>(stream, 'run_end')[0]?.interrupts).toHaveLength(3);
    const answers = { [ids[1] ?? '']: 'no', [ids[0] ?? '']: 'yes', [ids[2] ?? '']: { action: 'edit', n: 7 } };
    const answered = await answer(b, one, answers);
    expect(await ended(b, answered.body.run_id)).toMatchObject({ status: 'succeeded' });
    expect(toldOf(3)).toEqual(['0: "yes"', '1: "no"', '2: {"action":"edit","n":7}']);
    for (const n of [0, 1, 2]) expect(service.times(`/${one.key}/acted-${n}`)).toBe(1);
  });

  test.each(['agent', 'deltaAgent'])('answered one by one: the others stay, as they were asked (%s)', async (graph) => {
    const one = await asking(a, 3, graph);
    let open = (await turnOf(b, one)).interrupts;
    for (const n of [1, 2, 0]) {
      const question = open.find(({ value }) => value.question === n);
      const answered = await answer(n === 1 ? b : a, one, { [question?.id ?? '']: `answer ${n}` });
      expect(answered.status).toBe(202);
      await ended(a, answered.body.run_id);
      const left = (await turnOf(b, one)).interrupts;
      expect(left).toEqual(open.filter(({ id }) => id !== question?.id));
      open = left;
    }
    expect(await turnOf(a, one)).toMatchObject({ status: 'succeeded', interrupts: [] });
    expect(toldOf(3)).toEqual(['0: "answer 0"', '1: "answer 1"', '2: "answer 2"']);
    for (const n of [0, 1, 2]) expect(service.times(`/${one.key}/acted-${n}`)).toBe(1);
  });
});

describe('a question', () => {
  test('is there after a reload, in another window and after a restart; answered in one window it is gone in all', async () => {
    const one = await asking(a, 1);
    const thread = `/api/v1/threads/${one.sent.thread_id}`;
    const turn = await turnOf(a, one);
    expect(turn).toMatchObject({ status: 'interrupted', interrupts: [{ value: { question: 0 } }] });
    expect(await turnOf(b, one)).toEqual(turn);
    expect((await call(b, 'GET', thread)).body).toMatchObject({ status: 'interrupted' });
    // Who follows the run again is told of it again.
    const again = await follow(b, one.sent);
    await again.closed;
    expect(dataOf(again, 'interrupt')).toMatchObject([{ interrupts: [{ id: turn.interrupts[0]?.id }] }]);
    // Every process is replaced by a new one.
    await Promise.all(cluster.servers.map((server) => server.stop()));
    cluster.servers.length = 0;
    [a, b] = await Promise.all([cluster.add(), cluster.add()]);
    expect(await turnOf(a, one)).toEqual(turn);
    expect(await turnOf(b, one)).toEqual(turn);
    const refused = await call(a, 'POST', `${thread}/messages`, { content: '0' });
    expect(refused).toMatchObject({ status: 409, body: { code: 'TURN_WAITING_APPROVAL' } });
    const answered = await answer(a, one, { [turn.interrupts[0]?.id ?? '']: 'yes' });
    // From the moment the answer is taken the other window sees no question.
    expect((await turnOf(b, one)).interrupts).toEqual([]);
    expect(await ended(b, answered.body.run_id)).toMatchObject({ status: 'succeeded' });
    expect(service.times(`/${one.key}/acted-0`)).toBe(1);
  });
});
