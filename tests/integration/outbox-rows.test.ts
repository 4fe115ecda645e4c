/** The outbox as rows: what is stored, who gets what, and whose settlement counts. */
import { randomUUID } from 'node:crypto';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { forgetSettled, listOutbox, requeue } from '#src/outbox/entries.ts';
import { backoffCeilingMs, backoffMs, type Delivery, enqueue, settle, takeDue } from '#src/outbox/outbox.ts';
import type { Pool } from '#src/postgres/pool.ts';
import { inTransaction } from '#src/postgres/transaction.ts';
import { createDatabase, type TestDatabase } from '#tests/support/database.ts';
import { endRun, insertRunningRun } from '#tests/support/ledger.ts';
import { testPool } from '#tests/support/pools.ts';
import { effectOf, queue, rowOf } from './outbox-rig.ts';

let database: TestDatabase;
let pool: Pool;

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

const LONG_MS = 60_000;
function take(options: Partial<Parameters<typeof takeDue>[1]> = {}): Promise<Delivery[]> {
  return takeDue(pool, { kinds: ['note'], limit: 100, perLane: 100, busy: new Map(), leaseMs: LONG_MS, ...options });
}
async function takeOne(options: Parameters<typeof take>[0] = {}): Promise<Delivery> {
  const [delivery, ...others] = await take(options);
  expect(others).toEqual([]);
  if (delivery === undefined) throw new Error('nothing was due');
  return delivery;
}

describe('an effect', () => {
  test('exists exactly when its transaction is committed', async () => {
    const effect = effectOf();
    const failed = inTransaction(pool, async (tx) => {
      await enqueue(tx, effect);
      throw new Error('the run did not end after all');
    });
    await expect(failed).rejects.toThrow('the run did not end after all');
    expect(await take()).toEqual([]);
    await queue(pool, effect);
    expect((await takeOne()).run_id).toBe(effect.runId);
  });

  test('of one run and kind is one, however often it is added; the first stays', async () => {
    const effect = effectOf({ payload: 'first' });
    const first = await queue(pool, effect);
    const again = await queue(pool, { ...effect, payload: 'second' });
    expect(again.id).toBe(first.id);
    expect(await takeOne()).toMatchObject({ id: first.id, body: '"first"', attempts: 1, attempt: 1 });
    await queue(pool, { ...effect, kind: 'other' });
    expect(await take({ kinds: ['note', 'other'] })).toHaveLength(1);
  });

  test('is stored as it is, NUL and lone surrogates included', async () => {
    const payload = { text: 'a\u0000b\ud800c\u2028', 2: 'z', 1: 'a' };
    await queue(pool, effectOf({ payload }));
    const { body } = await takeOne();
    expect(body).toBe(JSON.stringify(payload));
  });
});

describe('taking', () => {
  test('twenty at once share a hundred effects, none gets the same', async () => {
    for (let n = 0; n < 100; n += 1) await queue(pool, effectOf({ lane: `lane ${n % 7}` }));
    const taken: string[] = [];
    while (taken.length < 100) {
      const batches = await Promise.all(Array.from({ length: 20 }, () => take({ limit: 4 })));
      taken.push(...batches.flat().map(({ id }) => id));
    }
    expect(new Set(taken).size).toBe(100);
    expect(await take()).toEqual([]);
  });

  test('leaves what is not due, what somebody has, and kinds it cannot deliver', async () => {
    const later = await queue(pool, effectOf());
    await pool.query(`update outbox set available_at = clock_timestamp() + interval '1 hour' where id = $1::uuid`, [
      later.id,
    ]);
    const mine = await queue(pool, effectOf());
    await queue(pool, effectOf({ kind: 'of a newer version' }));
    expect((await takeOne()).id).toBe(mine.id);
    expect(await take()).toEqual([]);
  });

  test('gives an effect again when its lease has run out', async () => {
    const { id } = await queue(pool, effectOf());
    expect((await takeOne({ leaseMs: 0 })).attempts).toBe(1);
    expect(await takeOne()).toMatchObject({ id, attempts: 2 });
    expect(await take()).toEqual([]);
  });

  test('gives each lane its share, oldest first, and none to a lane that is full', async () => {
    const slow = [];
    for (let n = 0; n < 10; n += 1) slow.push(await queue(pool, effectOf({ lane: 'slow' })));
    const quick = await queue(pool, effectOf({ lane: 'quick' }));
    const full = await queue(pool, effectOf({ lane: 'full' }));
    const busy = new Map([
      ['full', 2],
      ['slow', 1],
    ]);
    const first = await take({ perLane: 2, busy });
    expect(first.map(({ id }) => id).sort()).toEqual([quick.id, slow[0]?.id].sort());
    const second = await take({ perLane: 2, limit: 2 });
    expect(second.map(({ id }) => id)).not.toContain(full.id);
    expect((await take({ perLane: 2 })).map(({ id }) => id)).toContain(full.id);
  });

  test('tells the time by Postgres', async () => {
    await queue(pool, effectOf());
    const { taken_at } = await takeOne();
    const { rows } = await pool.query('select extract(epoch from clock_timestamp())::float8 as now');
    expect(Number.isInteger(taken_at)).toBe(true);
    expect(rows[0].now - taken_at).toBeGreaterThanOrEqual(0);
    expect(rows[0].now - taken_at).toBeLessThan(10);
  });
});

describe('settling', () => {
  test('is refused for a delivery that was taken again since', async () => {
    const { id } = await queue(pool, effectOf());
    const zombie = await takeOne({ leaseMs: 0 });
    const owner = await takeOne();
    expect(await settle(pool, zombie, { outcome: 'dead', error: 'the zombie says so' })).toBe(false);
    expect(await rowOf(pool, id)).toMatchObject({ status: 'pending', last_error: null, attempts: 2 });
    expect(await settle(pool, owner, { outcome: 'delivered' })).toBe(true);
    expect(await settle(pool, zombie, { outcome: 'retry', error: 'the zombie says so', delayMs: 0 })).toBe(false);
    expect(await rowOf(pool, id)).toMatchObject({ status: 'delivered', last_error: null });
  });

  test('counts after the lease has run out, as long as nobody else took it', async () => {
    const { id } = await queue(pool, effectOf());
    const late = await takeOne({ leaseMs: 0 });
    expect(await settle(pool, late, { outcome: 'delivered' })).toBe(true);
    expect((await rowOf(pool, id)).status).toBe('delivered');
  });

  test('happens once', async () => {
    const { id } = await queue(pool, effectOf());
    const delivery = await takeOne();
    const outcomes = await Promise.all(
      Array.from({ length: 5 }, () => settle(pool, delivery, { outcome: 'retry', error: 'no luck', delayMs: 0 })),
    );
    expect(outcomes.filter(Boolean)).toHaveLength(1);
    expect(await settle(pool, delivery, { outcome: 'delivered' })).toBe(false);
    expect(await rowOf(pool, id)).toMatchObject({ status: 'pending', last_error: 'no luck', leased_until: null });
  });

  test('with a pause keeps the effect back until then', async () => {
    const { id } = await queue(pool, effectOf());
    await settle(pool, await takeOne(), { outcome: 'retry', error: 'HTTP 503', delayMs: 3_600_000 });
    expect(await take()).toEqual([]);
    const { rows } = await pool.query(
      `select extract(epoch from available_at - clock_timestamp())::float8 as seconds from outbox where id = $1::uuid`,
      [id],
    );
    expect(rows[0].seconds).toBeGreaterThan(3_590);
    expect(rows[0].seconds).toBeLessThanOrEqual(3_600);
  });

  test('an attempt that was cut short does not count, and the effect is due at once', async () => {
    await queue(pool, effectOf());
    await settle(pool, await takeOne(), { outcome: 'released' });
    expect(await takeOne()).toMatchObject({ attempts: 2, attempt: 1 });
  });

  test('the pauses grow to six hours and are spread over all that is below', () => {
    expect([1, 2, 3, 4].map(backoffCeilingMs)).toEqual([5_000, 15_000, 45_000, 135_000]);
    expect(backoffCeilingMs(50)).toBe(6 * 3_600_000);
    const pauses = Array.from({ length: 1_000 }, () => backoffMs(3));
    expect(Math.min(...pauses)).toBeGreaterThanOrEqual(0);
    expect(Math.min(...pauses)).toBeLessThan(4_500);
    expect(Math.max(...pauses)).toBeGreaterThan(40_500);
    expect(Math.max(...pauses)).toBeLessThanOrEqual(45_000);
  });
});

describe('the owner', () => {
  test('sees the effects of its own, newest first, page by page', async () => {
    const owner = `owner ${randomUUID()}`;
    const ids: string[] = [];
    for (let n = 0; n < 5; n += 1) ids.unshift((await queue(pool, effectOf({ owner, lane: `${n}` }))).id);
    await queue(pool, effectOf({ owner: 'somebody else' }));
    const seen: string[] = [];
    let cursor: string | undefined;
    do {
      const page = await listOutbox(pool, owner, { limit: 2, cursor });
      seen.push(...page.entries.map(({ id }) => id));
      cursor = page.next_cursor ?? undefined;
    } while (cursor !== undefined);
    expect(seen).toEqual(ids);
    await expect(listOutbox(pool, owner, { limit: 2, cursor: 'nonsense' })).rejects.toMatchObject({
      code: 'INVALID_CURSOR',
    });
  });

  test('sees what became of them, and may ask for one status', async () => {
    const [waiting, given, told] = [
      await queue(pool, effectOf({ lane: 'a' })),
      await queue(pool, effectOf({ lane: 'b' })),
      await queue(pool, effectOf({ lane: 'c' })),
    ];
    for (const delivery of await take()) {
      if (delivery.id === given.id) await settle(pool, delivery, { outcome: 'dead', error: 'HTTP 410' });
      if (delivery.id === told.id) await settle(pool, delivery, { outcome: 'delivered' });
    }
    const statusOf = async (status?: 'pending' | 'dead' | 'delivered') =>
      (await listOutbox(pool, 'anna', { limit: 10, status })).entries.map(({ id }) => id);
    expect(await statusOf()).toEqual([told.id, given.id, waiting.id]);
    expect(await statusOf('pending')).toEqual([waiting.id]);
    expect(await statusOf('delivered')).toEqual([told.id]);
    const { entries } = await listOutbox(pool, 'anna', { limit: 10, status: 'dead' });
    expect(entries).toMatchObject([
      { id: given.id, run_id: given.runId, attempts: 1, last_error: 'HTTP 410', next_attempt_at: null },
    ]);
  });

  test('queues a dead one again, under its id, with all its attempts; a zombie of its first life stays out', async () => {
    const { id, owner } = await queue(pool, effectOf());
    const first = await takeOne();
    await settle(pool, first, { outcome: 'dead', error: 'HTTP 410' });
    expect(await requeue(pool, 'somebody else', id)).toBeNull();
    expect(await requeue(pool, owner, randomUUID())).toBeNull();
    const again = await requeue(pool, owner, id);
    expect(again).toMatchObject({ requeued: true, entry: { id, status: 'pending', attempts: 1, ended_at: null } });
    expect(await settle(pool, first, { outcome: 'delivered' })).toBe(false);
    const second = await takeOne();
    expect(second).toMatchObject({ id, attempts: 2, attempt: 1 });
    expect(await settle(pool, first, { outcome: 'delivered' })).toBe(false);
    expect(await requeue(pool, owner, id)).toMatchObject({ requeued: false, entry: { status: 'pending' } });
    expect(await settle(pool, second, { outcome: 'delivered' })).toBe(true);
    expect(await requeue(pool, owner, id)).toMatchObject({ requeued: false, entry: { status: 'delivered' } });
  });
});

describe('what is over', () => {
  const keep = { deliveredMs: 7 * 86_400_000, deadMs: 30 * 86_400_000 };
  const age = (id: string, days: number) =>
    pool.query(`update outbox set ended_at = clock_timestamp() - $2 * interval '1 day' where id = $1::uuid`, [
      id,
      days,
    ]);
  const left = async () => new Set((await listOutbox(pool, 'anna', { limit: 100 })).entries.map(({ id }) => id));

  test('is kept for its time, longer when it was given up; what waits is never deleted', async () => {
    const ids: Record<string, string> = {};
    for (const name of ['waits', 'told 6', 'told 8', 'dead 8', 'dead 31']) {
      const { id } = await queue(pool, effectOf({ lane: name }));
      ids[name] = id;
      if (name === 'waits') {
        await pool.query(`update outbox set created_at = clock_timestamp() - interval '1 year'`);
        await pool.query(`update outbox set available_at = clock_timestamp() + interval '1 hour'`);
        continue;
      }
      const [word = '', days] = name.split(' ');
      const end = word === 'told' ? ({ outcome: 'delivered' } as const) : ({ outcome: 'dead', error: 'e' } as const);
      await settle(pool, await takeOne(), end);
      await age(id, Number(days));
    }
    expect(await forgetSettled(pool, keep, 100)).toBe(2);
    expect(await left()).toEqual(new Set([ids.waits, ids['told 6'], ids['dead 8']]));
  });

  test('goes in batches', async () => {
    for (let n = 0; n < 5; n += 1) await queue(pool, effectOf());
    for (const delivery of await take()) await settle(pool, delivery, { outcome: 'delivered' });
    await pool.query(`update outbox set ended_at = clock_timestamp() - interval '8 days'`);
    expect(await forgetSettled(pool, keep, 3)).toBe(3);
    expect(await forgetSettled(pool, keep, 3)).toBe(2);
  });

  test('goes with its run, and what still waits goes once it is settled', async () => {
    const run = await insertRunningRun(pool);
    const told = await queue(pool, effectOf({ runId: run.runId }));
    await settle(pool, await takeOne(), { outcome: 'delivered' });
    const waits = await queue(pool, effectOf({ runId: run.runId, kind: 'late' }));
    await endRun(pool, run);
    await pool.query('delete from threads where id = $1::uuid', [run.threadId]);
    expect(await rowOf(pool, told.id)).toBeUndefined();
    expect(await forgetSettled(pool, keep, 100)).toBe(0);
    const delivery = await takeOne({ kinds: ['late'] });
    expect(delivery.id).toBe(waits.id);
    await settle(pool, delivery, { outcome: 'delivered' });
    expect(await forgetSettled(pool, keep, 100)).toBe(1);
    expect(await rowOf(pool, waits.id)).toBeUndefined();
  });
});
