/** The validation suite every LangGraph saver is measured by, on ours. */
import { deltaChannelHistoryTests, specTest } from '@langchain/langgraph-checkpoint-validation';
import { pino } from 'pino';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { openSaver, type RunSaver } from '#src/graphs/checkpoints.ts';
import { createPool, type Pool } from '#src/postgres/pool.ts';
import { createDatabase, type TestDatabase } from '#tests/support/database.ts';
import { insertRunningRun } from '#tests/support/ledger.ts';

const limits = { statementTimeoutMs: 10_000, lockTimeoutMs: 5_000, idleInTransactionTimeoutMs: 5_000 };
let database: TestDatabase;
let pool: Pool;

// The suite expects the test functions as globals.
Object.assign(globalThis, { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it });

const suite: Parameters<typeof specTest>[0] = {
  checkpointerName: 'fenced saver',
  async beforeAll() {
    database = await createDatabase();
    pool = createPool(database.url, 'test', 4, limits, pino({ level: 'silent' }));
  },
  beforeAllTimeout: 60_000,
  async afterAll() {
    await pool.end();
    await database.drop();
  },
  async createCheckpointer() {
    const run = await insertRunningRun(pool);
    const saver = openSaver(pool, { runId: run.runId, epoch: run.epoch, metadata: {} }, () => {});
    return saver.saver;
  },
  async destroyCheckpointer(saver) {
    await (saver as unknown as RunSaver).close();
    for (const table of ['checkpoints', 'checkpoint_blobs', 'checkpoint_writes'])
      await pool.query(`delete from ${table}`);
  },
};

specTest(suite);
deltaChannelHistoryTests(suite);
