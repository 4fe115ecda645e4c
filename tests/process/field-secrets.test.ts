/**
 * What went wrong inside is for the log, not for clients (field case A42): the text of errors of nodes, tools, factories and
 * providers is on no surface, however it is carried, and every frame stays whole.
 */
import { randomUUID } from 'node:crypto';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type Cluster, call, ended, follow, send, startCluster } from '#tests/support/cluster.ts';
import { fail, lastText, type Reply } from '#tests/support/fake-model-script.ts';
import { dataOf, parseWithUnicodeLines } from '#tests/support/frames.ts';
import type { TestServer } from '#tests/support/server.ts';
import { until } from '#tests/support/until.ts';

let cluster: Cluster;
let a: TestServer;
let b: TestServer;
let hook: string;
const told: string[] = [];
const receiver = createServer((request, response) => {
  let body = '';
  request.setEncoding('utf8').on('data', (part: string) => {
    body += part;
  });
  request.on('end', () => {
    told.push(body);
    response.writeHead(204).end();
  });
});

/** How a provider says it, by the message: `how|leak`. */
function replyOf(said: string): Reply {
  const [how, leak = ''] = said.split('|');
  const error = { message: `key sk-${leak}`, type: leak, code: leak, param: leak };
  if (how === 'status') return fail(400, { error });
  if (how === 'plain') return fail(401, `<html>${leak}</html>`, { 'x-request-id': leak });
  if (how === 'streamed')
    return {
      steps: [
        { do: 'text', text: 'half ' },
        { do: 'stream_error', error },
      ],
    };
  return {
    steps: [
      { do: 'text', text: 'half ' },
      { do: 'raw', bytes: `data: {"${leak}": \n\n` },
    ],
  };
}

beforeAll(async () => {
  const file = fileURLToPath(new URL('../support/graphs/leaky.ts', import.meta.url));
  const names = ['inNode', 'inSubgraph', 'inTool', 'inFactory', 'inModel'];
  await new Promise<void>((resolve) => receiver.listen(0, '127.0.0.1', resolve));
  hook = `http://127.0.0.1:${(receiver.address() as AddressInfo).port}/hook`;
  cluster = await startCluster({
    size: 2,
    model: { script: (request) => replyOf(lastText(request)) },
    server: {
      env: { WEBHOOK_SECRET: 'a secret of the tests, long enough' },
      config: {
        graphs: Object.fromEntries(names.map((name) => [name, `${file}:${name}`])),
        runs: { max_retries: 1 },
        webhooks: { allow_private: true },
      },
    },
  });
  [a, b] = cluster.servers as [TestServer, TestServer];
});
afterAll(async () => {
  await cluster?.stop();
  receiver.close();
});

/** Every place where a client can read about the run, in one text. */
async function everySurface(sent: { run_id: string; thread_id: string }): Promise<string> {
  const live = await follow(b, sent);
  await live.closed;
  await ended(a, sent.run_id);
  const later = await follow(a, sent);
  await later.closed;
  for (const stream of [live, later]) {
    expect(dataOf(stream, 'run_end')).toMatchObject([{ status: 'failed' }]);
    // As a client reads that ends lines anywhere: every frame is whole, and there is none beside them.
    expect(parseWithUnicodeLines(stream.raw())).toHaveLength(stream.frames.length);
    const [{ code, message, recovery } = {}] = dataOf(stream, 'error');
    expect(code).toMatch(/^[A-Z_]+$/);
    expect(String(message).length).toBeLessThan(200);
    expect(['retry', 'resend', 'none']).toContain(recovery);
  }
  const webhook = await until(() => told.find((body) => body.includes(sent.run_id)), { message: 'the webhook' });
  const thread = `/api/v1/threads/${sent.thread_id}`;
  const paths = [`/api/v1/runs/${sent.run_id}`, thread, `${thread}/turns`, `${thread}/status`, '/api/v1/webhooks'];
  const bodies = await Promise.all(paths.map(async (path) => JSON.stringify((await call(b, 'GET', path)).body)));
  const waited = await call(b, 'POST', `${thread}/cancel?wait=true`);
  return [live.raw(), later.raw(), webhook, ...bodies, JSON.stringify(waited.body)].join('\n');
}

async function expectNoLeak(content: string, graph: string, leak: string, configurable = {}): Promise<void> {
  const sent = await send(a, content, { graph, webhook: hook, config: { configurable } });
  const surfaces = await everySurface(sent);
  // The marks are in what the client itself sent, if at all; nothing else may say them.
  expect(surfaces.replaceAll(content, '').split(leak), `${graph} ${content}`).toHaveLength(1);
  expect(surfaces).not.toMatch(/node_modules|\.ts:\d+|at async /);
  const logs = () => a.logs() + b.logs();
  // What the client library itself leaves out is in no log either.
  const detail = content.startsWith('malformed') ? sent.run_id : leak;
  await until(() => logs().includes(detail), { message: 'the detail to be in a log' });
  expect(logs()).toContain(sent.run_id);
}

const KINDS = ['message', 'frames', 'megabyte', 'name', 'cause', 'aggregate', 'text', 'object'];

describe.each(['inNode', 'inSubgraph', 'inTool', 'inFactory'])('an error thrown %s', (graph) => {
  test.each(KINDS)('with a secret as its %s', async (kind) => {
    const leak = `LEAK${randomUUID().replaceAll('-', '')}`;
    await expectNoLeak('go', graph, leak, { leak, kind });
  });
});

describe('a provider that says a secret', () => {
  test.each(['status', 'plain', 'streamed', 'malformed'])('%s', async (how) => {
    const leak = `LEAK${randomUUID().replaceAll('-', '')}`;
    await expectNoLeak(`${how}|${leak}`, 'inModel', leak);
  });
});
