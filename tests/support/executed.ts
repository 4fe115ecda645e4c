/** One execution of a run as its worker does it, up to where its end would be stored. */
import type { BaseCheckpointSaver } from '@langchain/langgraph-checkpoint';
import type { RunEvent } from '#src/events/event.ts';
import type { LogEntry } from '#src/events/log.ts';
import { createLogWriter } from '#src/events/log-writer.ts';
import { createMemoryLog } from '#src/events/memory-log.ts';
import type { DrivenGraph } from '#src/graphs/graph.ts';
import type { Pool } from '#src/postgres/pool.ts';
import { type Execution, execute } from '#src/runs/execute.ts';
import { failure } from '#src/runs/failures.ts';
import type { Lease } from '#src/runs/lease-gate.ts';
import type { Outcome } from '#src/runs/outcome.ts';
import { findRun } from '#src/runs/queries.ts';
import type { Run } from '#src/runs/run.ts';
import type { LedgerRun } from './ledger.ts';
import { silent } from './pools.ts';

/** A graph that is not compiled yet. */
export interface Compilable {
  compile(options: { checkpointer: BaseCheckpointSaver }): unknown;
}

/** @param told gets what readers of the run are told. @throws when the run was lost */
export async function executed(pool: Pool, graph: Compilable, run: LedgerRun, told: RunEvent[] = []): Promise<Outcome> {
  const execution = await executedUnder(pool, graph, run, { told });
  if (execution === null) throw new Error('the run was lost');
  return execution.outcome;
}

/** The same under a lease that may lapse, and with what stops it; null when it was lost. */
export async function executedUnder(
  pool: Pool,
  graph: Compilable,
  run: LedgerRun,
  {
    lease = HELD,
    abort = new AbortController(),
    told = [],
  }: { lease?: Lease; abort?: AbortController; told?: RunEvent[] },
): Promise<Execution | null> {
  const log = createMemoryLog({ memoryLimitBytes: 1024 ** 2 });
  const deliver = (_runId: string, entries: LogEntry[]): void => {
    for (const { payload } of entries) told.push(JSON.parse(payload) as RunEvent);
  };
  const limits = { maxEvents: 1_000, maxBytes: 1_000_000, unacknowledgedBytes: 1_000_000 };
  const writer = createLogWriter({ log, deliver, limits, logger: silent });
  const deps = {
    pool,
    checkpointPool: pool,
    graphs: {
      ids: () => ['test'],
      has: () => true,
      contextOf: () => 'checkpoint' as const,
      instantiate: async (_id: string, saver: BaseCheckpointSaver) =>
        graph.compile({ checkpointer: saver }) as DrivenGraph,
    },
    log,
    writer,
    recursionLimit: 25,
    trustsUserId: false,
    failureOf: failure,
    maxRetries: 3,
    maxTakeovers: 3,
    lease,
    logger: silent,
  };
  try {
    return await execute(deps, (await findRun(pool, run.runId)) as Run, abort);
  } finally {
    await writer.close();
    await log.close();
  }
}

const HELD: Lease = { holds: () => true, renewed: async () => undefined };
