/** The end of a run is told to its webhook: signed, at least once, also when the process that ended it dies at once. */
import { createHmac } from 'node:crypto';
import { createServer, type IncomingHttpHeaders } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { type Cluster, call, ended, send, startCluster } from '#tests/support/cluster.ts';
import { say } from '#tests/support/fake-model-script.ts';
import type { TestServer } from '#tests/support/server.ts';
import { until } from '#tests/support/until.ts';

const SECRET = 'a secret of the tests, long enough';
const received: { headers: IncomingHttpHeaders; body: string }[] = [];
let answer = 204;
const receiver = createServer((request, response) => {
  let body = '';
  request.setEncoding('utf8').on('data', (part: string) => {
    body += part;
  });
  request.on('end', () => {
    received.push({ headers: request.headers, body });
    response.writeHead(answer).end();
  });
});
let cluster: Cluster;
let a: TestServer;
let url: string;

beforeAll(async () => {
  await new Promise<void>((resolve) => receiver.listen(0, '127.0.0.1', resolve));
  url = `http://127.0.0.1:${(receiver.address() as AddressInfo).port}/hook?x=1`;
  cluster = await startCluster({
    server: { env: { WEBHOOK_SECRET: SECRET }, config: { webhooks: { allow_private: true, timeout: '2s' } } },
  });
  [a] = cluster.servers as [TestServer];
});
afterAll(async () => {
  await cluster.stop();
  receiver.close();
});

interface Deliveries {
  deliveries: { id: string; run_id: string; status: string; attempts: number; last_error: string | null }[];
}
const deliveriesOf = async (runId: string) =>
  (await call<Deliveries>(a, 'GET', '/api/v1/webhooks?limit=100')).body.deliveries.filter(
    (one) => one.run_id === runId,
  );
const tellingOf = (runId: string) =>
  received.filter(({ body }) => (JSON.parse(body) as { run_id: string }).run_id === runId);

test('is told once, signed, after the row is terminal', async () => {
  cluster.model.setScript(say('hi'));
  const sent = await send(a, 'hello', { webhook: url });
  const [told] = await until(() => (tellingOf(sent.run_id).length > 0 ? tellingOf(sent.run_id) : null), {
    message: 'the webhook',
  });
  if (told === undefined) throw new Error('nothing was told');
  expect(await ended(a, sent.run_id, 1_000)).toMatchObject({ status: 'succeeded' });
  expect(JSON.parse(told.body)).toMatchObject({
    type: 'run.ended',
    run_id: sent.run_id,
    thread_id: sent.thread_id,
    status: 'succeeded',
  });
  const { 'webhook-id': id, 'webhook-timestamp': timestamp, 'webhook-signature': signature } = told.headers;
  const expected = createHmac('sha256', SECRET).update(`${id}.${timestamp}.${told.body}`).digest('base64');
  expect(signature).toBe(`v1,${expected}`);
  await until(async () => (await deliveriesOf(sent.run_id))[0]?.status === 'delivered', {
    message: 'the delivery to be settled',
  });
  expect(tellingOf(sent.run_id)).toHaveLength(1);
});

test('a receiver that fails is told again, under the same id', async () => {
  answer = 500;
  const sent = await send(a, 'hello', { webhook: url });
  await until(() => tellingOf(sent.run_id).length > 0, { message: 'the first try' });
  answer = 204;
  await until(() => tellingOf(sent.run_id).length > 1, { message: 'the second try', timeoutMs: 30_000 });
  expect(new Set(tellingOf(sent.run_id).map(({ headers }) => headers['webhook-id'])).size).toBe(1);
});

test('a receiver that is gone is told no more, and the metrics say that an effect was given up', async () => {
  const dead = async () =>
    /^runledger_outbox_effects\{status="dead"\} (\d+)$/m.exec(await (await fetch(`${a.url}/metrics`)).text())?.[1];
  expect(await dead()).toBe('0');
  answer = 410;
  const sent = await send(a, 'hello', { webhook: url });
  await until(async () => (await deliveriesOf(sent.run_id))[0]?.status === 'dead', { message: 'it to be given up' });
  answer = 204;
  expect(await dead()).toBe('1');
  expect(tellingOf(sent.run_id)).toHaveLength(1);
});

test('a process that dies after the end leaves the telling to another', async () => {
  const victim = await cluster.add({
    env: { WEBHOOK_SECRET: SECRET },
    config: { webhooks: { allow_private: true, timeout: '2s' } },
  });
  answer = 500;
  const sent = await send(victim, 'hello', { webhook: url });
  await until(() => tellingOf(sent.run_id).length > 0, { message: 'the first try' });
  victim.kill('SIGKILL');
  answer = 204;
  await until(async () => (await deliveriesOf(sent.run_id))[0]?.status === 'delivered', {
    message: 'delivery by another',
    timeoutMs: 40_000,
  });
});

test('a URL that may not be sent to is refused at admission, and nothing is written', async () => {
  const before = (await call<{ threads: unknown[] }>(a, 'GET', '/api/v1/threads?limit=100')).body.threads.length;
  for (const webhook of ['ftp://example.com/', 'http://user:pw@example.com/', 'nonsense']) {
    const refused = await call(a, 'POST', '/api/v1/threads/messages', { content: 'x', webhook });
    expect(refused).toMatchObject({ status: 422, body: { path: 'webhook' } });
  }
  expect((await call<{ threads: unknown[] }>(a, 'GET', '/api/v1/threads?limit=100')).body.threads).toHaveLength(before);
});
