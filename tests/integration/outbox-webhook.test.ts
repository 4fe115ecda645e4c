/** One webhook, over real sockets: what is sent, what counts as an answer, where it may not go. */
import { createHmac, randomUUID } from 'node:crypto';
import { setTimeout as pause } from 'node:timers/promises';
import { afterEach, describe, expect, test } from 'vitest';
import type { Delivery } from '#src/outbox/outbox.ts';
import { createWebhookHandler } from '#src/outbox/webhook.ts';
import { type Received, type Receiver, SECRET, startReceiver } from './outbox-rig.ts';

const receivers: Receiver[] = [];
afterEach(async () => {
  await Promise.all(receivers.splice(0).map((receiver) => receiver.close()));
});
async function receiver(...args: Parameters<typeof startReceiver>): Promise<Receiver> {
  const started = await startReceiver(...args);
  receivers.push(started);
  return started;
}

const deliveryTo = (url: string, fields: Partial<Delivery> = {}): Delivery => ({
  id: randomUUID(),
  kind: 'webhook',
  run_id: randomUUID(),
  lane: 'one',
  body: '{"type":"run.succeeded"}',
  target: { url },
  attempts: 1,
  attempt: 1,
  taken_at: 1_700_000_000,
  ...fields,
});

function onlyOne({ received }: Receiver): Received {
  const [first, ...others] = received;
  if (first === undefined || others.length > 0) throw new Error(`received ${received.length} requests`);
  return first;
}

const never = new AbortController().signal;
function send(
  url: string,
  options: { allowPrivate?: boolean; timeoutMs?: number; secret?: string; body?: string } = {},
) {
  const { allowPrivate = true, timeoutMs = 5_000, secret = SECRET, body } = options;
  const handler = createWebhookHandler({ secret, allowPrivate, timeoutMs });
  return handler(deliveryTo(url, body === undefined ? {} : { body }), never);
}

describe('what is sent', () => {
  test('is a POST of the stored bytes, with the id, the time of Postgres, and a signature others can check', async () => {
    const target = await receiver();
    const delivery = deliveryTo(`${target.url}/hook?a=1`, { body: '{"text":"grüße \\u0000 \\ud800"}' });
    const handler = createWebhookHandler({ secret: SECRET, allowPrivate: true, timeoutMs: 5_000 });
    expect(await handler(delivery, never)).toEqual({ outcome: 'delivered' });
    const { path, headers, body } = onlyOne(target);
    expect(path).toBe('/hook?a=1');
    expect(body).toBe(delivery.body);
    expect(headers).toMatchObject({
      'content-type': 'application/json',
      'content-length': String(Buffer.byteLength(delivery.body)),
      'webhook-id': delivery.id,
      'webhook-timestamp': '1700000000',
    });
    // As a receiver does it, who has the secret and the three headers.
    const key = Buffer.from(SECRET.replace('whsec_', ''), 'base64');
    const signed = `${headers['webhook-id']}.${headers['webhook-timestamp']}.${body}`;
    expect(headers['webhook-signature']).toBe(`v1,${createHmac('sha256', key).update(signed).digest('base64')}`);
  });

  test('a secret that is plain text is the key as it is', async () => {
    const target = await receiver();
    await send(target.url, { secret: 'sixteen or more é' });
    const { headers, body } = onlyOne(target);
    const signed = `${headers['webhook-id']}.${headers['webhook-timestamp']}.${body}`;
    expect(headers['webhook-signature']).toBe(
      `v1,${createHmac('sha256', 'sixteen or more é').update(signed, 'utf8').digest('base64')}`,
    );
  });

  test('the example of Standard Webhooks has the signature it is published with', async () => {
    const target = await receiver();
    const handler = createWebhookHandler({
      secret: 'whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw',
      allowPrivate: true,
      timeoutMs: 5_000,
    });
    const example = { id: 'msg_p5jXN8AQM9LWM0D4loKWxJek', taken_at: 1_614_265_330, body: '{"test": 2432232314}' };
    await handler(deliveryTo(target.url, example), never);
    expect(target.received[0]?.headers['webhook-signature']).toBe('v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=');
  });
});

describe('an answer', () => {
  test.each([
    [200, { outcome: 'delivered' }],
    [299, { outcome: 'delivered' }],
    [410, { outcome: 'dead', error: 'HTTP 410' }],
    [400, { outcome: 'retry', error: 'HTTP 400' }],
    [404, { outcome: 'retry', error: 'HTTP 404' }],
    [429, { outcome: 'retry', error: 'HTTP 429' }],
    [500, { outcome: 'retry', error: 'HTTP 500' }],
    [503, { outcome: 'retry', error: 'HTTP 503' }],
  ])('%i', async (status, result) => {
    const target = await receiver((response) => response.writeHead(status).end('the words of a stranger'));
    expect(await send(target.url)).toEqual(result);
  });

  test.each([301, 302, 303, 307, 308])('%i is not followed', async (status) => {
    const elsewhere = await receiver();
    const target = await receiver((response) => response.writeHead(status, { location: elsewhere.url }).end());
    expect(await send(target.url)).toEqual({
      outcome: 'retry',
      error: `HTTP ${status} (redirects are not followed)`,
    });
    expect(elsewhere.received).toEqual([]);
  });

  test('without an end is let go: the status counts, and little of the body is read', async () => {
    let written = 0;
    const closed = Promise.withResolvers<void>();
    const target = await receiver((response) => {
      response.writeHead(200);
      response.on('close', closed.resolve);
      const more = () => {
        if (response.destroyed) return;
        written += 65_536;
        if (response.write(Buffer.alloc(65_536))) more();
        else response.once('drain', more);
      };
      more();
    });
    expect(await send(target.url)).toEqual({ outcome: 'delivered' });
    await closed.promise;
    // What sits in the sockets' buffers between the two is not read.
    expect(written).toBeLessThan(16 * 1024 ** 2);
  });

  test('whose body comes in drops is waited for no longer than the whole delivery may take', async () => {
    const target = await receiver((response) => {
      response.writeHead(200);
      const timer = setInterval(() => response.write('.'), 20);
      response.on('close', () => clearInterval(timer));
    });
    const startedAtMs = performance.now();
    expect(await send(target.url, { timeoutMs: 400 })).toEqual({ outcome: 'delivered' });
    expect(performance.now() - startedAtMs).toBeLessThan(3_000);
  });

  test('that does not come in time', async () => {
    const hangUp = Promise.withResolvers<void>();
    const target = await receiver((response) => {
      response.on('close', hangUp.resolve);
    });
    expect(await send(target.url, { timeoutMs: 300 })).toEqual({ outcome: 'retry', error: 'no answer within 300 ms' });
    // The connection is not left behind.
    await hangUp.promise;
  });

  test('whose headers come in drops, each in time, is still late', async () => {
    const target = await receiver((response) => {
      const { socket } = response;
      socket?.write('HTTP/1.1 200 OK\r\n');
      const timer = setInterval(() => socket?.write('x-more: 1\r\n'), 20);
      socket?.on('close', () => clearInterval(timer));
    });
    expect(await send(target.url, { timeoutMs: 300 })).toEqual({ outcome: 'retry', error: 'no answer within 300 ms' });
  });

  test('that is no HTTP, or a connection that is refused or reset', async () => {
    const garbage = await receiver((response) => response.socket?.end('what do you mean\r\n\r\n'));
    expect(await send(garbage.url)).toEqual({
      outcome: 'retry',
      error: expect.stringMatching(/^the connection failed \(HPE_/),
    });
    const reset = await receiver((response) => response.socket?.destroy());
    expect(await send(reset.url)).toEqual({ outcome: 'retry', error: 'the connection failed (ECONNRESET)' });
    await reset.close();
    receivers.splice(receivers.indexOf(reset), 1);
    expect(await send(reset.url)).toEqual({ outcome: 'retry', error: 'the connection failed (ECONNREFUSED)' });
    expect(await send(garbage.url.replace('http:', 'https:'))).toEqual({
      outcome: 'retry',
      error: expect.stringMatching(/^the connection failed \([A-Z_]+\)$/),
    });
    expect(await send('http://no-such-host.invalid/')).toEqual({
      outcome: 'retry',
      error: expect.stringMatching(/^the connection failed \((ENOTFOUND|EAI_AGAIN)\)$/),
    });
  });

  test('is not waited for when the drain stops', async () => {
    const stop = new AbortController();
    const target = await receiver(() => stop.abort());
    const handler = createWebhookHandler({ secret: SECRET, allowPrivate: true, timeoutMs: 20_000 });
    expect(await handler(deliveryTo(target.url), stop.signal)).toEqual({
      outcome: 'retry',
      error: 'the connection failed (ABORT_ERR)',
    });
  });
});

describe('a private address', () => {
  test('behind a name is refused when it is connected to', async () => {
    const target = await receiver();
    const { port } = new URL(target.url);
    expect(await send(`http://localhost:${port}/`)).toEqual({ outcome: 'delivered' });
    expect(await send(`http://localhost:${port}/`, { allowPrivate: false })).toEqual({
      outcome: 'dead',
      error: 'the host has a private address',
    });
    expect(target.received).toHaveLength(1);
  });

  test.each(['127.0.0.1', '127.1', '2130706433', '0x7f.1', '[::ffff:127.0.0.1]', '[::ffff:7f00:1]', '0.0.0.0'])(
    '%s is refused, though it was stored while it was allowed',
    async (host) => {
      const target = await receiver();
      const { port } = new URL(target.url);
      expect(await send(`http://${host}:${port}/`)).toEqual({ outcome: 'delivered' });
      expect(await send(`http://${host}:${port}/`, { allowPrivate: false })).toEqual({
        outcome: 'dead',
        error: 'the URL names a private address',
      });
      expect(target.received).toHaveLength(1);
    },
  );

  test('[::1] is refused', async () => {
    const target = await receiver(undefined, { host: '::1' });
    expect(await send(target.url)).toEqual({ outcome: 'delivered' });
    expect(await send(target.url, { allowPrivate: false })).toMatchObject({ outcome: 'dead' });
    expect(target.received).toHaveLength(1);
  });

  test('a URL with credentials is not sent to', async () => {
    const target = await receiver();
    expect(await send(target.url.replace('http://', 'http://user:pass@'))).toMatchObject({ outcome: 'dead' });
    await pause(0);
    expect(target.received).toEqual([]);
  });
});
