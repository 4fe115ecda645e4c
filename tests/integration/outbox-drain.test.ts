/** Drains at work: several at once, crashed ones, slow and poisonous targets, and the end of a process. */
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import type { DeliveryHandler, DeliveryResult, Drain, DrainDeps } from '#src/outbox/drain.ts';
import { requeue } from '#src/outbox/entries.ts';
import { takeDue } from '#src/outbox/outbox.ts';
import { createWebhookHandler } from '#src/outbox/webhook.ts';
import type { Pool } from '#src/postgres/pool.ts';
import { createDatabase, type TestDatabase } from '#tests/support/database.ts';
import { testPool } from '#tests/support/pools.ts';
import { until } from '#tests/support/until.ts';
import {
  drainOf,
  effectOf,
  makeDue,
  memoryLogger,
  queue,
  queueWebhook,
  type Received,
  type Receiver,
  rowOf,
  SECRET,
  startReceiver,
} from './outbox-rig.ts';

let database: TestDatabase;
let pool: Pool;
const drains: Drain[] = [];
const receivers: Receiver[] = [];

beforeAll(async () => {
  database = await createDatabase();
  pool = testPool(database.url, 20);
});
afterAll(async () => {
  await pool.end();
  await database.drop();
});
beforeEach(async () => {
  await pool.query('delete from outbox');
});
afterEach(async () => {
  await Promise.all(drains.splice(0).map((drain) => drain.stop(0)));
  await Promise.all(receivers.splice(0).map((receiver) => receiver.close()));
});

function start(options: Parameters<typeof drainOf>[1] = {}): Drain {
  const drain = drainOf(pool, options);
  drains.push(drain);
  drain.start();
  return drain;
}
/** A drain that delivers effects of kind `note` with the given function. */
function startNotes(note: DeliveryHandler, options: Partial<DrainDeps> = {}): Drain {
  return start({ handlers: { note }, ...options });
}
async function receiver(...args: Parameters<typeof startReceiver>): Promise<Receiver> {
  const started = await startReceiver(...args);
  receivers.push(started);
  return started;
}
const becomes = (id: string, facts: Record<string, unknown>) =>
  until(
    async () => {
      const row = await rowOf(pool, id);
      return Object.entries(facts).every(([name, value]) => row[name] === value) ? row : null;
    },
    { message: `effect ${id} to become ${JSON.stringify(facts)}` },
  );

describe('drains', () => {
  test('three at once deliver each of sixty effects once', async () => {
    const target = await receiver();
    const queued = [];
    for (let n = 0; n < 60; n += 1) queued.push(await queueWebhook(pool, target.url));
    for (let n = 0; n < 3; n += 1) start();
    for (const { id } of queued) await becomes(id, { status: 'delivered', attempts: 1 });
    expect(target.received.map(({ id }) => id).sort()).toEqual(queued.map(({ id }) => id).sort());
  });

  test('a poke delivers at once what the next look would find', async () => {
    const target = await receiver();
    const drain = start({ intervalMs: 3_600_000 });
    const first = await queueWebhook(pool, target.url);
    drain.poke();
    await becomes(first.id, { status: 'delivered' });
    // Pokes during a look are not lost.
    const second = await queueWebhook(pool, target.url);
    for (let n = 0; n < 20; n += 1) drain.poke();
    await becomes(second.id, { status: 'delivered' });
  });

  test('more effects than fit at once follow each other without waiting for the next look', async () => {
    const target = await receiver();
    const queued = [];
    for (let n = 0; n < 12; n += 1) queued.push(await queueWebhook(pool, target.url));
    start({ intervalMs: 3_600_000, concurrency: 4, perLane: 2 });
    for (const { id } of queued) await becomes(id, { status: 'delivered' });
  });

  test('a failure inside this server is logged, hidden from the owner, and tried again', async () => {
    const { logger, text } = memoryLogger();
    const { id } = await queue(pool, effectOf());
    startNotes(() => Promise.reject(new Error('an inner secret')), { logger });
    const row = await becomes(id, { last_error: 'the server failed to deliver it' });
    expect(row.status).toBe('pending');
    expect(text()).toContain('an inner secret');
  });
});

describe('a crash between delivery and settlement', () => {
  test('ends in a second delivery under the same id', async () => {
    const target = await receiver();
    const { id } = await queueWebhook(pool, target.url);
    // What the crashed process did: it took the effect and sent it, and was gone.
    const limits = { kinds: ['webhook'], limit: 1, perLane: 1, busy: new Map(), leaseMs: 300 };
    const [taken] = await takeDue(pool, limits);
    if (taken === undefined) throw new Error('nothing was due');
    const handler = createWebhookHandler({ secret: SECRET, allowPrivate: true, timeoutMs: 5_000 });
    await handler(taken, new AbortController().signal);
    start();
    await becomes(id, { status: 'delivered', attempts: 2 });
    expect(target.received.map((entry) => entry.id)).toEqual([id, id]);
    expect(target.received[0]?.body).toBe(target.received[1]?.body);
  });
});

describe('a delivery that outlives its lease', () => {
  /** Two drains; the first delivery goes on until it is told how it ended, the second ends at once. */
  async function outlive(late: DeliveryResult, second: DeliveryResult | Promise<DeliveryResult>) {
    const begun = Promise.withResolvers<void>();
    const end = Promise.withResolvers<DeliveryResult>();
    const { logger, text } = memoryLogger();
    const { id } = await queue(pool, effectOf());
    const slow: DeliveryHandler = (delivery) => {
      if (delivery.attempts > 1) return Promise.resolve(second);
      begun.resolve();
      return end.promise;
    };
    startNotes(slow, { leaseMs: 100, logger, perLane: 1 });
    await begun.promise;
    startNotes(() => Promise.resolve(second));
    return {
      id,
      async endLate() {
        end.resolve(late);
        await until(() => text().includes('its lease had run out'), { message: 'the late settlement to be refused' });
        return rowOf(pool, id);
      },
    };
  }

  test('is not settled once another took the effect: neither as dead', async () => {
    const { id, endLate } = await outlive({ outcome: 'dead', error: 'the late one' }, { outcome: 'delivered' });
    await becomes(id, { status: 'delivered' });
    expect(await endLate()).toMatchObject({ status: 'delivered', last_error: null, attempts: 2 });
  });

  test('nor while the other still delivers it', async () => {
    const second = Promise.withResolvers<DeliveryResult>();
    const { id, endLate } = await outlive({ outcome: 'dead', error: 'the late one' }, second.promise);
    await becomes(id, { attempts: 2 });
    expect(await endLate()).toMatchObject({ status: 'pending', last_error: null });
    second.resolve({ outcome: 'delivered' });
    expect(await becomes(id, { status: 'delivered' })).toMatchObject({ attempts: 2 });
  });

  test('nor as delivered', async () => {
    const { id, endLate } = await outlive({ outcome: 'delivered' }, { outcome: 'dead', error: 'HTTP 410' });
    await becomes(id, { status: 'dead' });
    expect(await endLate()).toMatchObject({ status: 'dead', last_error: 'HTTP 410', attempts: 2 });
  });
});

describe('a target that fails', () => {
  test('is tried again after growing pauses, given up with its last error, and tried again when asked', async () => {
    let status = 500;
    const target = await receiver((response) => {
      response.writeHead(status++).end('some words of the receiver');
    });
    const { id, owner } = await queueWebhook(pool, target.url);
    start({ maxAttempts: 3 });
    for (const attempts of [1, 2]) {
      const row = await becomes(id, { attempts, leased_until: null, last_error: `HTTP ${499 + attempts}` });
      expect(row.status).toBe('pending');
      expect(row.available_at.getTime()).toBeGreaterThanOrEqual(row.created_at.getTime());
      await makeDue(pool, id);
    }
    expect(await becomes(id, { status: 'dead' })).toMatchObject({ attempts: 3, last_error: 'HTTP 502' });
    status = 204;
    expect(await requeue(pool, owner, id)).toMatchObject({ requeued: true });
    expect(await becomes(id, { status: 'delivered' })).toMatchObject({ attempts: 4, last_error: null });
    expect(new Set(target.received.map((entry) => entry.id))).toEqual(new Set([id]));
  });

  test('with 410 is given up at once', async () => {
    const target = await receiver((response) => response.writeHead(410).end());
    const { id } = await queueWebhook(pool, target.url);
    start();
    expect(await becomes(id, { status: 'dead' })).toMatchObject({ attempts: 1, last_error: 'HTTP 410' });
  });

  test('does not hold up the others, however much waits for it', async () => {
    const hanging: Received[] = [];
    const poison = await receiver((_response, received) => {
      hanging.push(received);
    });
    for (let n = 0; n < 30; n += 1) await queueWebhook(pool, poison.url);
    const healthy = await receiver();
    const others = [];
    for (let n = 0; n < 10; n += 1) others.push(await queueWebhook(pool, healthy.url));
    start({ concurrency: 6, perLane: 2, timeoutMs: 60_000 });
    await until(() => hanging.length > 0, { message: 'the poisonous target to be tried' });
    for (const { id } of others) await becomes(id, { status: 'delivered' });
    expect(hanging).toHaveLength(2);
    const { rows } = await pool.query(`select count(*)::int as count from outbox where status = 'pending'`);
    expect(rows[0].count).toBe(30);
  });
});

describe('the end of a process', () => {
  test('waits for the deliveries in flight and takes no more', async () => {
    const begun = Promise.withResolvers<AbortSignal>();
    const end = Promise.withResolvers<DeliveryResult>();
    const [first, second] = [await queue(pool, effectOf()), await queue(pool, effectOf())];
    const drain = startNotes(
      (_delivery, signal) => {
        begun.resolve(signal);
        return end.promise;
      },
      { concurrency: 1 },
    );
    const signal = await begun.promise;
    const stopped = drain.stop(10_000);
    drain.poke();
    // Time for a look, if there were one, and for the stop to get to its waiting.
    await pool.query('select 1');
    expect(signal.aborted).toBe(false);
    end.resolve({ outcome: 'delivered' });
    await stopped;
    const rows = [await rowOf(pool, first.id), await rowOf(pool, second.id)];
    expect(rows.map(({ status, attempts }) => `${status} ${attempts}`).sort()).toEqual(['delivered 1', 'pending 0']);
  });

  test('also waits for those that a look in progress was about to begin', async () => {
    const { id } = await queue(pool, effectOf());
    await startNotes(() => Promise.resolve({ outcome: 'delivered' })).stop(10_000);
    expect(await rowOf(pool, id)).toMatchObject({ status: 'delivered', attempts: 1 });
  });

  test('cuts short what takes too long, and leaves it to others at once without counting the attempt', async () => {
    const target = await receiver(() => undefined);
    const { id } = await queueWebhook(pool, target.url);
    const drain = start({ timeoutMs: 60_000, maxAttempts: 1 });
    await until(() => target.received.length > 0, { message: 'the target to be tried' });
    await drain.stop(50);
    expect(await rowOf(pool, id)).toMatchObject({ status: 'pending', attempts: 1, forgiven: 1, leased_until: null });
    const limits = { kinds: ['webhook'], limit: 1, perLane: 1, busy: new Map(), leaseMs: 1_000 };
    expect(await takeDue(pool, limits)).toMatchObject([{ id, attempts: 2, attempt: 1 }]);
  });
});

test('neither the secret nor the URL’s path and query get into the log', async () => {
  const { logger, text } = memoryLogger();
  const target = await receiver((response, { path }) => response.writeHead(path.startsWith('/gone') ? 410 : 500).end());
  const gone = await queueWebhook(pool, `${target.url}/gone/pathword?token=queryword`);
  const fails = await queueWebhook(pool, `${target.url}/fails/pathword?token=queryword`);
  const refused = await queueWebhook(pool, 'http://127.0.0.1:1/pathword?token=queryword');
  start({ logger });
  await becomes(gone.id, { status: 'dead' });
  await becomes(fails.id, { last_error: 'HTTP 500' });
  await becomes(refused.id, { last_error: 'the connection failed (ECONNREFUSED)' });
  await until(() => [gone, fails, refused].every(({ id }) => text().includes(id)), { message: 'the log lines' });
  const key = SECRET.replace('whsec_', '');
  for (const word of ['pathword', 'queryword', key, Buffer.from(key, 'base64').toString()]) {
    expect(text()).not.toContain(word);
  }
});
