/** The store, as clients and as graphs use it. */
import { randomUUID } from 'node:crypto';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { Json, JsonObject } from '#src/events/event.ts';
import type { Pool } from '#src/postgres/pool.ts';
import { createGraphStore } from '#src/store/graph-store.ts';
import { deleteExpired } from '#src/store/queries.ts';
import { createStoreService, type StoreService } from '#src/store/service.ts';
import { createDatabase, type TestDatabase } from '#tests/support/database.ts';
import { testPool } from '#tests/support/pools.ts';

let database: TestDatabase;
let pool: Pool;
let store: StoreService;

beforeAll(async () => {
  database = await createDatabase();
  pool = testPool(database.url, 4);
  store = createStoreService({ pool });
});
afterAll(async () => {
  await pool.end();
  await database.drop();
});

const put = (owner: string, namespace: string[], key: string, value: JsonObject, ttlMinutes: number | null = null) =>
  store.put(owner, { namespace, key, value, ttlMinutes });
const get = (owner: string, namespace: string[], key: string, refresh = false) =>
  store.get(owner, { namespace, key, refresh });
const page = { limit: 10, offset: 0 };

describe('items', () => {
  test('are written, read, written again and removed; they are their owner’s', async () => {
    const [anna, bob] = [randomUUID(), randomUUID()];
    await put(anna, ['a', 'b'], 'k', { n: 1 });
    const first = await get(anna, ['a', 'b'], 'k');
    expect(first).toMatchObject({ namespace: ['a', 'b'], key: 'k', value: { n: 1 } });
    // guard: scoped by owner
    expect(await get(bob, ['a', 'b'], 'k')).toBeNull();
    await store.remove(bob, { namespace: ['a', 'b'], key: 'k' });
    await put(anna, ['a', 'b'], 'k', { n: 2 });
    const second = await get(anna, ['a', 'b'], 'k');
    expect(second).toMatchObject({ value: { n: 2 }, created_at: first?.created_at });
    await store.remove(anna, { namespace: ['a', 'b'], key: 'k' });
    expect(await get(anna, ['a', 'b'], 'k')).toBeNull();
  });

  test.each([[[]], [['a', '']], [['a.b']]])('namespace %o is none', async (namespace) => {
    await expect(put(randomUUID(), namespace, 'k', {})).rejects.toMatchObject({ code: 'INVALID_REQUEST' });
  });

  test('characters that jsonb refuses are replaced', async () => {
    const owner = randomUUID();
    await put(owner, ['a'], 'k', { text: 'a\0b\ud800' });
    expect(await get(owner, ['a'], 'k')).toMatchObject({ value: { text: 'a\ufffdb\ufffd' } });
  });
});

describe('a time to live', () => {
  test('is the server’s own when nothing is said, for clients and graphs; and so is what reading does to it', async () => {
    const owner = randomUUID();
    const kept = createStoreService({ pool, ttl: { defaultTtlMinutes: 60, refreshOnRead: false } });
    await kept.put(owner, { namespace: ['a'], key: 'client', value: {}, ttlMinutes: null });
    await createGraphStore(kept, owner).put(['a'], 'graph', {});
    await kept.put(owner, { namespace: ['a'], key: 'said', value: {}, ttlMinutes: 1 });
    const ttls = async () => {
      const { rows } = await pool.query(
        `select key, extract(epoch from ttl)::int / 60 as minutes, expires_at from store_items where owner = $1 order by key`,
        [owner],
      );
      return rows as { key: string; minutes: number; expires_at: Date }[];
    };
    const before = await ttls();
    expect(before.map(({ key, minutes }) => [key, minutes])).toEqual([
      ['client', 60],
      ['graph', 60],
      ['said', 1],
    ]);
    await kept.get(owner, { namespace: ['a'], key: 'client' });
    await kept.search(owner, { prefix: [], limit: 10, offset: 0 });
    expect(await ttls()).toEqual(before);
    await kept.get(owner, { namespace: ['a'], key: 'client', refresh: true });
    expect((await ttls())[0]?.expires_at.getTime()).toBeGreaterThan(before[0]?.expires_at.getTime() ?? 0);
  });

  const age = (owner: string, minutes: number) =>
    pool.query(`update store_items set expires_at = expires_at - $2 * interval '1 minute' where owner = $1`, [
      owner,
      minutes,
    ]);

  test('ends an item, also before a sweep', async () => {
    const owner = randomUUID();
    await put(owner, ['a'], 'k', { n: 1 }, 10);
    await put(owner, ['a'], 'stays', { n: 1 });
    await age(owner, 9);
    expect(await get(owner, ['a'], 'k')).not.toBeNull();
    await age(owner, 2);
    expect(await get(owner, ['a'], 'k')).toBeNull();
    expect((await store.search(owner, { prefix: [], refresh: false, ...page })).map(({ key }) => key)).toEqual([
      'stays',
    ]);
    expect(await deleteExpired(pool, 100)).toBe(1);
    const { rows } = await pool.query('select key from store_items where owner = $1', [owner]);
    expect(rows).toEqual([{ key: 'stays' }]);
  });

  test('begins anew when the item is read or found, unless the client says not', async () => {
    const owner = randomUUID();
    await put(owner, ['a'], 'k', { n: 1 }, 10);
    for (const read of [
      () => get(owner, ['a'], 'k', true),
      () => store.search(owner, { prefix: ['a'], refresh: true, ...page }),
    ]) {
      await age(owner, 9);
      await read();
    }
    await age(owner, 9);
    await get(owner, ['a'], 'k', false);
    await age(owner, 2);
    expect(await get(owner, ['a'], 'k')).toBeNull();
  });
});

describe('a search', () => {
  const owner = randomUUID();
  const found = async (filter: { [key: string]: Json }, prefix = ['s']) =>
    (await store.search(owner, { prefix, filter, refresh: false, ...page })).map(({ key }) => key).sort();
  beforeAll(async () => {
    await put(owner, ['s', 'x'], 'one', { color: 'red', n: 1, deep: { a: [1] } });
    await put(owner, ['s', 'x', 'y'], 'two', { color: 'blue', n: 2 });
    await put(owner, ['s', 'xx'], 'three', { color: 'red', n: 'ten' });
    await put(owner, ['other'], 'four', { color: 'red', n: 1 });
  });

  test.each<[{ [key: string]: Json }, string[]]>([
    [{}, ['one', 'three', 'two']],
    [{ color: 'red' }, ['one', 'three']],
    [{ color: { $eq: 'red' }, n: 1 }, ['one']],
    [{ color: { $ne: 'red' } }, ['two']],
    [{ n: { $gte: 1, $lt: 2 } }, ['one']],
    [{ n: { $gt: 'a' } }, ['three']],
    [{ deep: { a: [1] } }, ['one']],
    [{ missing: { $ne: 1 } }, ['one', 'three', 'two']],
    [{ missing: 1 }, []],
    [{ "co'lor": 'red' }, []],
  ])('%j finds %j', async (filter, keys) => {
    expect(await found(filter)).toEqual(keys);
  });

  test('a prefix is of whole labels', async () => {
    expect(await found({}, ['s', 'x'])).toEqual(['one', 'two']);
  });

  test.each([{ n: { $like: 1 } }, { n: { $gt: [1] } }])('%j is no filter', async (filter) => {
    await expect(found(filter)).rejects.toMatchObject({ code: 'INVALID_REQUEST' });
  });

  test('namespaces, by what they begin and end with, cut to a depth', async () => {
    const list = (fields: object) => store.namespaces(owner, { prefix: [], suffix: [], ...page, ...fields });
    expect(await list({ prefix: ['s'] })).toEqual([
      ['s', 'x'],
      ['s', 'x', 'y'],
      ['s', 'xx'],
    ]);
    expect(await list({ suffix: ['y'] })).toEqual([['s', 'x', 'y']]);
    expect(await list({ prefix: ['*', 'x'] })).toEqual([
      ['s', 'x'],
      ['s', 'x', 'y'],
    ]);
    expect(await list({ max_depth: 1 })).toEqual([['other'], ['s']]);
    expect(await list({ limit: 1, offset: 1 })).toEqual([['s', 'x']]);
  });
});

test('graphs see it as LangGraph’s store', async () => {
  const owner = randomUUID();
  const graphs = createGraphStore(store, owner);
  await graphs.put(['memories', 'ada'], 'm1', { text: 'likes tea', weight: 2 });
  await graphs.put(['memories', 'bob'], 'm2', { text: 'likes coffee', weight: 1 });
  expect(await graphs.get(['memories', 'ada'], 'm1')).toMatchObject({
    key: 'm1',
    value: { text: 'likes tea' },
    createdAt: expect.any(Date),
  });
  expect(await graphs.get(['memories', 'ada'], 'nothing')).toBeNull();
  expect((await graphs.search(['memories'], { filter: { weight: { $gt: 1 } } })).map(({ key }) => key)).toEqual(['m1']);
  expect(await graphs.listNamespaces({ prefix: ['memories'] })).toEqual([
    ['memories', 'ada'],
    ['memories', 'bob'],
  ]);
  await graphs.delete(['memories', 'ada'], 'm1');
  expect(await get(owner, ['memories', 'ada'], 'm1')).toBeNull();
});
