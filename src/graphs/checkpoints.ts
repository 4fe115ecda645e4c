/**
 * The only file that knows the saver package. A run gets a handle of its own: closing it refuses every later call and
 * waits for those in flight, so that nothing is written for a run whose end is being stored.
 */
import type { RunnableConfig } from '@langchain/core/runnables';
import type {
  BaseCheckpointSaver,
  Checkpoint,
  CheckpointListOptions,
  CheckpointMetadata,
  CheckpointTuple,
  PendingWrite,
} from '@langchain/langgraph-checkpoint';
import { PostgresSaver } from '@langchain/langgraph-checkpoint-postgres';
import type { Pool, Tx } from '#src/postgres/pool.ts';

export interface RunSaver {
  readonly saver: BaseCheckpointSaver;
  /** True once a checkpoint was put through this handle. */
  readonly wrote: boolean;
  /** Refuses new calls (`SaverClosed`) and resolves when those in flight have ended. */
  close(): Promise<void>;
}

/** The run's end has begun; whatever still runs in the graph may not write any more. */
export class SaverClosed extends Error {
  override readonly name = 'SaverClosed';
}

/** A saver for one execution of one run. */
export function openSaver(pool: Pool, run: { id: string; graphId: string }): RunSaver {
  return new HandleSaver(pool, run);
}

class HandleSaver extends PostgresSaver implements RunSaver {
  wrote = false;
  readonly #facts: { run_id: string; graph_id: string };
  readonly #inFlight = new Set<Promise<unknown>>();
  #closed = false;

  constructor(pool: Pool, run: { id: string; graphId: string }) {
    super(pool);
    this.#facts = { run_id: run.id, graph_id: run.graphId };
  }

  get saver(): BaseCheckpointSaver {
    return this;
  }

  async close(): Promise<void> {
    this.#closed = true;
    await Promise.allSettled(this.#inFlight);
  }

  override getTuple(config: RunnableConfig): Promise<CheckpointTuple | undefined> {
    return this.#call(() => super.getTuple(config));
  }

  override put(
    config: RunnableConfig,
    checkpoint: Checkpoint,
    metadata: CheckpointMetadata,
    newVersions: Record<string, number | string>,
  ): Promise<RunnableConfig> {
    return this.#call(async () => {
      const written = await super.put(config, checkpoint, { ...metadata, ...this.#facts }, newVersions);
      this.wrote = true;
      return written;
    });
  }

  override putWrites(config: RunnableConfig, writes: PendingWrite[], taskId: string): Promise<void> {
    return this.#call(() => super.putWrites(config, writes, taskId));
  }

  override async *list(config: RunnableConfig, options?: CheckpointListOptions): AsyncGenerator<CheckpointTuple> {
    if (this.#closed) throw new SaverClosed('the run has ended');
    yield* super.list(config, options);
  }

  async #call<T>(work: () => Promise<T>): Promise<T> {
    if (this.#closed) throw new SaverClosed('the run has ended');
    const call = work();
    this.#inFlight.add(call);
    try {
      return await call;
    } finally {
      this.#inFlight.delete(call);
    }
  }
}

const DELETE = ['checkpoint_writes', 'checkpoint_blobs', 'checkpoints'].map(
  (table) => `delete from ${table} where thread_id = any($1::text[])`,
);

/** Removes every checkpoint of these lineages, in the caller's transaction. */
export async function deleteCheckpoints(tx: Tx, lineageIds: string[]): Promise<void> {
  for (const statement of DELETE) await tx.query(statement, [lineageIds]);
}
