import { Redis } from 'ioredis';
import { afterAll, beforeAll, describe, expect, inject, test } from 'vitest';
import { createDatabase, type TestDatabase } from '#tests/support/database.ts';
import { query } from '#tests/support/postgres.ts';

describe('the services of the test run', () => {
  let database: TestDatabase;
  beforeAll(async () => {
    database = await createDatabase();
  });
  afterAll(() => database.drop());

  test('a cloned database has the tables, in UTF-8, and is not another one’s', async () => {
    const other = await createDatabase();
    try {
      await query(
        database.url,
        "insert into workers (id, lock_key, host, pid, log_kind, roles, expires_at) values (gen_random_uuid(), 1, 'h', 1, 'memory', '{}', now())",
      );
      expect((await query(database.url, 'select * from workers')).rows).toHaveLength(1);
      expect((await query(other.url, 'select * from workers')).rows).toHaveLength(0);
      expect((await query(other.url, 'show server_encoding')).rows).toEqual([{ server_encoding: 'UTF8' }]);
    } finally {
      await other.drop();
    }
  });

  test('Redis answers', async () => {
    const redis = new Redis(inject('redisUrl'), { protocol: 2 });
    expect(await redis.ping()).toBe('PONG');
    redis.disconnect();
  });
});
