/**
 * After any ending the history is one that a provider takes (field cases A09, A10): a cancel or a kill -9 in mid tool, in a
 * parallel batch with some results in, in half a tool call. The model refuses, as providers do, a call without its result.
 * Each case runs for messages kept whole and for messages kept as differences.
 */
import { fileURLToPath } from 'node:url';
import pg from 'pg';
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import { type Cluster, call, ended, follow, type Sent, send, startCluster } from '#tests/support/cluster.ts';
import { type ChatRequest, callTools, type Reply, say } from '#tests/support/fake-model-script.ts';
import { dataOf } from '#tests/support/frames.ts';
import type { TestServer } from '#tests/support/server.ts';
import { type SlowService, startSlowService } from '#tests/support/slow-service.ts';
import { until } from '#tests/support/until.ts';

let cluster: Cluster;
let service: SlowService;
let ledger: pg.Pool;

beforeAll(async () => {
  const agents = fileURLToPath(new URL('../support/graphs/agents.ts', import.meta.url));
  const graphs = { agent: `${agents}:agent`, deltaAgent: `${agents}:deltaAgent` };
  service = await startSlowService();
  cluster = await startCluster({ size: 1, model: { strict: true, script }, server: { config: { graphs } } });
  ledger = new pg.Pool({ connectionString: cluster.database.url, max: 2 });
});
afterAll(async () => {
  await ledger?.end();
  await Promise.all([cluster?.stop(), service?.close()]);
});
afterEach(async () => {
  for (const server of cluster.servers.splice(1)) {
    server.kill('SIGKILL');
    await server.exit;
  }
});

const GRAPHS = ['agent', 'deltaAgent'] as const;
const MOMENTS = ['in mid tool', 'with two of five results in', 'in half a tool call'] as const;
type Moment = (typeof MOMENTS)[number];

const calls = (count: number): Reply =>
  callTools(Array.from({ length: count }, (_, n) => ({ id: `c${n}`, name: 'work', args: { n } })));
const HALF: Reply = {
  steps: [
    { do: 'text', text: 'let me see ' },
    { do: 'tool_call', index: 0, id: 'c0', name: 'work', args: '{"n"' },
    { do: 'hang' },
  ],
};

const asked = new Set<string>();

/** By what the person said last: `moment|key`. The same half tool call is not said twice. */
function script({ messages }: ChatRequest): Reply {
  const last = messages.at(-1);
  if (last?.role !== 'user') return say('done');
  const said = String(last.content);
  const [moment] = said.split('|');
  const again = asked.has(said);
  asked.add(said);
  if (moment === 'in mid tool') return calls(1);
  if (moment === 'with two of five results in') return calls(5);
  return moment === 'in half a tool call' && !again ? HALF : say('fine');
}

interface Case {
  sent: Sent;
  graph: string;
  key: string;
  more: Record<string, unknown>;
}

let cases = 0;

/** Starts a run on `home` and waits until it is in the moment, in Postgres too. */
async function begun(home: TestServer, graph: string, moment: Moment): Promise<Case> {
  cases += 1;
  const key = `case-${cases}`;
  const more = { graph, config: { configurable: { url: service.url, key } } };
  const sent = await send(home, `${moment}|${key}`, more);
  if (moment === 'in half a tool call') {
    const stream = await follow(home, sent);
    await stream.waitFor(({ event }) => event === 'tool_call_chunks');
    stream.close();
    return { sent, graph, key, more };
  }
  const count = moment === 'in mid tool' ? 1 : 5;
  const all = Array.from({ length: count }, (_, n) => `/${key}/${n}`);
  await until(() => all.every((path) => service.times(path) === 1), { message: 'all tools to call' });
  if (count > 1) {
    const stream = await follow(home, sent);
    for (const path of all.slice(0, 2)) service.release(path);
    await until(() => dataOf(stream, 'tool_call_result').length === 2, { message: 'two results to be told' });
    await until(() => resultsStored(sent), { message: 'two results to be stored' });
    stream.close();
  }
  return { sent, graph, key, more };
}

async function resultsStored({ thread_id }: Sent): Promise<boolean> {
  const { rows } = await ledger.query<{ tasks: number }>(
    `select count(distinct w.task_id)::int as tasks from checkpoint_writes w join lineages l on l.tip_checkpoint_id = w.checkpoint_id
     where l.id = $1::uuid and w.thread_id = l.id::text and w.channel = 'messages'`,
    [thread_id],
  );
  return rows[0]?.tasks === 2;
}

const cancelAndWait = async (server: TestServer, { sent }: Case) => {
  const answer = await call(server, 'POST', `/api/v1/threads/${sent.thread_id}/cancel?wait=true`);
  expect(answer).toMatchObject({ status: 200, body: { outcome: 'stopped', status: 'cancelled' } });
};

/** The next message works; returns what the model was told of tools, in order. */
async function goOn(server: TestServer, { sent, more }: Case): Promise<string[]> {
  const next = await send(server, `next|${sent.thread_id}`, more, sent.thread_id);
  expect(await ended(server, next.run_id)).toMatchObject({ status: 'succeeded', error: null });
  const told = cluster.model.calls
    .map(({ body }) => body.messages)
    .findLast((messages) => messages.at(-1)?.content === `next|${sent.thread_id}`);
  return (told ?? []).flatMap(({ role, content }) => (role === 'tool' ? [String(content)] : []));
}

const closed = expect.stringContaining('not completed');

function expectClosed(moment: Moment, told: string[]): void {
  if (moment === 'in half a tool call') expect(told).toEqual([]);
  else if (moment === 'in mid tool') expect(told).toEqual([closed]);
  // What was finished is kept as it was; the rest is closed.
  else expect(told).toEqual(['0: done', '1: done', closed, closed, closed]);
}

async function onVictim(moment: Moment): Promise<{ survivor: TestServer; begunCases: Case[] }> {
  const [survivor] = cluster.servers as [TestServer];
  const victim = await cluster.add();
  // Held still until the victim dies, so that it is the victim that claims what it admits.
  survivor.kill('SIGSTOP');
  const begunCases = await Promise.all(GRAPHS.map((graph) => begun(victim, graph, moment)));
  survivor.kill('SIGCONT');
  victim.kill('SIGKILL');
  await victim.exit;
  return { survivor, begunCases };
}

describe.each(MOMENTS)('%s', (moment) => {
  test('a cancel: the next message works', async () => {
    const [server] = cluster.servers as [TestServer];
    for (const one of await Promise.all(GRAPHS.map((graph) => begun(server, graph, moment)))) {
      await cancelAndWait(server, one);
      expectClosed(moment, await goOn(server, one));
      // And the one after it: what was closed stays closed.
      expectClosed(moment, await goOn(server, one));
    }
  });

  test('a kill -9: the run goes on, what was finished is not done again, and the next message works', async () => {
    const { survivor, begunCases } = await onVictim(moment);
    for (const one of begunCases) {
      for (let n = 0; n < 5; n += 1) service.release(`/${one.key}/${n}`);
      expect(await ended(survivor, one.sent.run_id, 40_000)).toMatchObject({ status: 'succeeded', error: null });
      const times = Array.from({ length: 5 }, (_, n) => service.times(`/${one.key}/${n}`));
      const told = await goOn(survivor, one);
      if (moment === 'in half a tool call') {
        expect(told).toEqual([]);
      } else if (moment === 'in mid tool') {
        expect(times).toEqual([2, 0, 0, 0, 0]);
        expect(told).toEqual(['0: done']);
      } else {
        expect(times).toEqual([1, 1, 2, 2, 2]);
        expect(told).toEqual(['0: done', '1: done', '2: done', '3: done', '4: done']);
      }
    }
  });

  test('a kill -9 and then a cancel: what was finished is kept, the rest is closed, the next message works', async () => {
    const { survivor, begunCases } = await onVictim(moment);
    // Both before anybody has noticed the death.
    await Promise.all(begunCases.map((one) => cancelAndWait(survivor, one)));
    for (const one of begunCases) expectClosed(moment, await goOn(survivor, one));
  });
});

test('a thread that an older version left broken is repaired before its next run', async () => {
  const [server] = cluster.servers as [TestServer];
  for (const graph of GRAPHS) {
    const one = await begun(server, graph, 'in mid tool');
    await cancelAndWait(server, one);
    // As if nobody had closed the lineage: the tip is the checkpoint with the open call.
    const { rowCount } = await ledger.query(
      `update lineages l set tip_checkpoint_id = (
         select c.checkpoint_id from checkpoints c
         where c.thread_id = l.id::text and c.checkpoint_ns = '' and c.metadata ->> 'source' = 'loop' order by c.seq desc limit 1)
       where id = $1::uuid`,
      [one.sent.thread_id],
    );
    expect(rowCount).toBe(1);
    expectClosed('in mid tool', await goOn(server, one));
  }
});
