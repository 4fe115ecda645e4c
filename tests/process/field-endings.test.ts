/**
 * Committed, then told: whenever a client reads `run_end`, the row in Postgres is terminal already, whatever ended the run
 * and on whichever process the client reads. Postgres is asked in the very callback that parsed the frame.
 */
import { fileURLToPath } from 'node:url';
import { createParser } from 'eventsource-parser';
import pg from 'pg';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type Cluster, call, follow, type Sent, send, startCluster } from '#tests/support/cluster.ts';
import { callTools, fail, lastText, type Reply, type Step, say } from '#tests/support/fake-model-script.ts';
import type { TestServer } from '#tests/support/server.ts';
import { until } from '#tests/support/until.ts';

const ROUNDS = 4;
const endings = fileURLToPath(new URL('../support/graphs/endings.ts', import.meta.url));
const chat = fileURLToPath(new URL('../../src/graphs/chat.ts', import.meta.url));
const graphs = {
  chat: `${chat}:graph`,
  throwing: `${endings}:throwing`,
  noGraph: `${endings}:noGraph`,
  endless: `${endings}:endless`,
  unstorable: `${endings}:unstorable`,
  waiting: `${endings}:waiting`,
  asking: `${endings}:asking`,
};

/** Two servers that execute runs, and two that only serve HTTP, where a run stays queued. */
let cluster: Cluster;
let idle: Cluster;
let ledger: pg.Pool;

const hang: Step = { do: 'hang' };
const error = (status: number): Reply => fail(status, { error: { message: 'secret of the provider' } });
/** What the model says to a message; the message is the name of the case. */
const replies: { [text: string]: Reply } = {
  succeeded: say('one two three'),
  interrupted: say('before the question'),
  'interrupted by a tool': callTools([{ id: 'c1', name: 'send_email', args: { to: 'a', subject: 'b', body: 'c' } }]),
  'cancelled in mid answer': { steps: [{ do: 'text', text: 'half ' }, hang] },
  'model refuses': error(400),
  'model does not know us': error(401),
  'model is silent': { steps: [{ do: 'text', text: 'half ' }, hang] },
  'retries exhausted': error(503),
  'cut in mid answer, retries exhausted': {
    steps: [{ do: 'text', text: 'half ' }, { do: 'delay', ms: 200 }, { do: 'reset' }],
  },
};

beforeAll(async () => {
  cluster = await startCluster({
    size: 2,
    model: { script: (request) => replies[lastText(request)] ?? say('?') },
    server: {
      config: { graphs, runs: { timeout: '6s', max_retries: 1, recursion_limit: 5 }, model: { chunk_timeout: '2s' } },
    },
  });
  idle = await startCluster({ size: 2, server: { config: { roles: ['http'] } } });
  ledger = await warmPool(cluster.database.url);
});
afterAll(async () => {
  await ledger?.end();
  await Promise.all([cluster?.stop(), idle?.stop()]);
});

/** Connected before it is needed: a question to Postgres must not wait for a connection. */
async function warmPool(connectionString: string): Promise<pg.Pool> {
  const pool = new pg.Pool({ connectionString, max: 16, idleTimeoutMillis: 0 });
  pool.on('error', () => undefined);
  const clients = await Promise.all(Array.from({ length: 16 }, () => pool.connect()));
  for (const client of clients) client.release();
  return pool;
}

interface Row {
  status: string;
  log_end: string | null;
  ended: boolean;
  code: string | null;
  open: string[];
  answer: { content: unknown; partial: boolean } | null;
}

const ROW = `
  select r.status, r.log_end, r.ended_at is not null as ended, r.error ->> 'code' as code,
         array(select i.id from interrupts i where i.run_id = r.id and i.status = 'open') as open,
         (select json_build_object('content', m.content, 'partial', m.partial) from messages m
          where m.run_id = r.id and m.role = 'assistant') as answer
  from runs r where r.id = $1`;

interface Told {
  event: string;
  id: string | undefined;
  data: { status?: string; error?: { code: string }; interrupts?: { id: string }[] };
  /** The row as it was when the frame was parsed. Only for the frames that tell an end. */
  row: Row | undefined;
}

const TELLING = new Set(['run_end', 'error', 'interrupt']);

/** Reads a run's stream to its end and looks at the row at each frame that tells an end. */
async function watch(server: TestServer, sent: Sent, pool = ledger): Promise<Told[]> {
  const told: Promise<Told>[] = [];
  const response = await fetch(`${server.url}${sent.stream_url}`, { headers: { accept: 'text/event-stream' } });
  const parser = createParser({
    onEvent({ event = 'message', id, data }) {
      const row = TELLING.has(event) ? pool.query<Row>(ROW, [sent.run_id]) : undefined;
      told.push(Promise.resolve(row).then((found) => ({ event, id, data: JSON.parse(data), row: found?.rows[0] })));
    },
  });
  const decoder = new TextDecoder();
  for await (const bytes of response.body ?? []) parser.feed(decoder.decode(bytes, { stream: true }));
  return Promise.all(told);
}

interface Ending {
  name: string;
  graph: string;
  status: string;
  code?: string;
  /** Stops the run once it is where the case wants it. */
  stop?: (server: TestServer, sent: Sent) => Promise<void>;
  /** What people read as the answer, when there is any. */
  answer?: Row['answer'];
}

async function cancelOnce(server: TestServer, sent: Sent, ready: () => Promise<boolean>): Promise<void> {
  await until(ready, { message: 'the run to get where it is to be cancelled' });
  await call(server, 'POST', `/api/v1/threads/${sent.thread_id}/cancel?run_id=${sent.run_id}`);
}
const statusIs = (sent: Sent, status: string) => async () => {
  const { rows } = await ledger.query<Row>(ROW, [sent.run_id]);
  return rows[0]?.status === status;
};

const ENDINGS: Ending[] = [
  { name: 'succeeded', graph: 'chat', status: 'succeeded', answer: { content: 'one two three', partial: false } },
  { name: 'interrupted', graph: 'asking', status: 'interrupted' },
  { name: 'interrupted by a tool', graph: 'chat', status: 'interrupted' },
  { name: 'graph fails', graph: 'throwing', status: 'failed', code: 'GRAPH_ERROR' },
  { name: 'graph cannot be made', graph: 'noGraph', status: 'failed', code: 'GRAPH_UNAVAILABLE' },
  {
    name: 'recursion limit',
    graph: 'endless',
    status: 'failed',
    code: 'RECURSION_LIMIT',
    answer: { content: 'again', partial: true },
  },
  { name: 'an end that Postgres refuses', graph: 'unstorable', status: 'failed', code: 'INTERNAL' },
  { name: 'run timeout', graph: 'waiting', status: 'failed', code: 'RUN_TIMEOUT' },
  { name: 'model refuses', graph: 'chat', status: 'failed', code: 'MODEL_REJECTED' },
  { name: 'model does not know us', graph: 'chat', status: 'failed', code: 'MODEL_AUTH' },
  {
    name: 'model is silent',
    graph: 'chat',
    status: 'failed',
    code: 'MODEL_TIMEOUT',
    answer: { content: 'half ', partial: true },
  },
  { name: 'retries exhausted', graph: 'chat', status: 'failed', code: 'MODEL_UNAVAILABLE' },
  {
    name: 'cut in mid answer, retries exhausted',
    graph: 'chat',
    status: 'failed',
    code: 'MODEL_UNAVAILABLE',
    answer: { content: 'half ', partial: true },
  },
  {
    name: 'cancelled in a node',
    graph: 'waiting',
    status: 'cancelled',
    stop: (server, sent) => cancelOnce(server, sent, statusIs(sent, 'running')),
  },
  {
    name: 'cancelled in mid answer',
    graph: 'chat',
    status: 'cancelled',
    answer: { content: 'half ', partial: true },
    stop: (server, sent) => cancelOnce(server, sent, async () => (await textSent(server, sent)) === 'half '),
  },
];

/** The text a reader has been sent so far. */
async function textSent(server: TestServer, sent: Sent): Promise<string> {
  const stream = await follow(server, sent);
  const chunk = await stream.waitFor((frame) => frame.event === 'message_chunk');
  stream.close();
  return JSON.parse(chunk.data).delta;
}

describe.concurrent('when a client reads the end of a run, Postgres has it', () => {
  test.each(ENDINGS)('$name', async (ending) => {
    const outcomes = await Promise.all(
      Array.from({ length: ROUNDS }, async (_, round) => {
        const [home, other] = pair(cluster, round);
        const sent = await send(home, ending.name, { graph: ending.graph });
        const watching = Promise.all([watch(home, sent), watch(other, sent)]);
        await ending.stop?.(other, sent);
        return watching;
      }),
    );
    for (const told of outcomes.flat()) assertToldAfterCommit(told, ending);
  });

  test('cancelled while queued', async () => {
    const pool = await warmPool(idle.database.url);
    const outcomes = await Promise.all(
      Array.from({ length: ROUNDS }, async (_, round) => {
        const [home, other] = pair(idle, round);
        const sent = await send(home, 'never executed');
        const watching = Promise.all([watch(home, sent, pool), watch(other, sent, pool)]);
        await call(other, 'POST', `/api/v1/threads/${sent.thread_id}/cancel`);
        return watching;
      }),
    );
    for (const told of outcomes.flat()) assertToldAfterCommit(told, { name: '', graph: 'chat', status: 'cancelled' });
    await pool.end();
  });
});

test('an end that was told never changes', async () => {
  const ends = `select id, status, epoch, log_end, ended_at from runs order by id`;
  const before = await ledger.query<{ status: string }>(ends);
  expect(before.rows.length).toBeGreaterThan(0);
  expect(before.rows.filter(({ status }) => ['prepared', 'queued', 'running'].includes(status))).toEqual([]);
  for (const server of cluster.servers) {
    for (const { id, thread_id } of (await ledger.query<{ id: string; thread_id: string }>('select * from runs'))
      .rows) {
      await call(server, 'POST', `/api/v1/threads/${thread_id}/cancel?run_id=${id}`);
    }
  }
  expect((await ledger.query(ends)).rows).toEqual(before.rows);
});

function pair({ servers }: Cluster, round: number): [TestServer, TestServer] {
  const [a, b] = servers as [TestServer, TestServer];
  return round % 2 === 0 ? [a, b] : [b, a];
}

function assertToldAfterCommit(told: Told[], ending: Ending): void {
  for (const { event, row } of told.filter((frame) => frame.row !== undefined)) {
    expect(row, `the row when ${event} was read`).toMatchObject({
      status: ending.status,
      code: ending.code ?? null,
      ended: true,
      answer: ending.answer ?? null,
    });
  }
  expect(told[0]?.event).toBe('metadata');
  const end = told.at(-1);
  expect(end?.event).toBe('run_end');
  expect(told.filter(({ event }) => event === 'run_end')).toHaveLength(1);
  expect(end?.data.status).toBe(ending.status);
  expect(end?.row?.log_end).toBe(end?.id);
  expect(end?.data.error?.code).toBe(ending.code);
  // Nothing a graph or a provider said of its fault.
  expect(JSON.stringify(told)).not.toContain('secret');
  if (ending.status !== 'interrupted') return;
  // A question may be answered the moment it is read.
  const question = told.find(({ event }) => event === 'interrupt');
  expect(question?.row?.open).toEqual(question?.data.interrupts?.map(({ id }) => id));
}
