/**
 * The checkpoint saver, and the only file that knows the saver package. A run writes through a handle of its own, which
 * carries the fence (run, epoch): a worker that lost the run is refused by Postgres. Closing the handle refuses every
 * later call and waits for those in flight, so that nothing is written for a run whose end is being stored.
 *
 * What differs from the stock saver, and why: versions are unique strings, so two writers or a fork never share a blob;
 * the tip is a column, so no worker's clock decides what is newest; one statement per write; a task path, so parallel
 * writes are replayed in the order they were applied; the history of a delta channel in one query.
 */
import { randomInt } from 'node:crypto';
import type { RunnableConfig } from '@langchain/core/runnables';
import {
  type BaseCheckpointSaver,
  type ChannelVersions,
  type Checkpoint,
  type CheckpointListOptions,
  type CheckpointMetadata,
  type CheckpointPendingWrite,
  type CheckpointTuple,
  compareWritesSortKeys,
  type DeltaChannelHistory,
  type PendingWrite,
  WRITES_IDX_MAP,
  writesSortKey,
} from '@langchain/langgraph-checkpoint';
import { PostgresSaver } from '@langchain/langgraph-checkpoint-postgres';
import type { Cursor } from '#src/events/cursor.ts';
import type { JsonObject } from '#src/events/event.ts';
import type { Pool } from '#src/postgres/pool.ts';
import { againOnConflict } from '#src/postgres/transaction.ts';
import { createCallGate } from './call-gate.ts';
import { placeOf, uuidOrNull, withId } from './checkpoint-place.ts';
import {
  DELETE_THREAD,
  DELTA_HISTORY,
  FORGET_ANSWERS,
  GET_TUPLE,
  LIST_IDS,
  PUT,
  PUT_WRITES,
  STILL_ASKED,
  UPSERT_WRITES,
} from './checkpoint-sql.ts';
import { nextVersion, SALTS } from './checkpoint-versions.ts';
import { storableJson } from './json.ts';

/** Whose writes these are. */
export interface SaverOwner {
  runId: string;
  epoch: number;
  /** What every checkpoint's metadata says beside LangGraph's own: run, graph, the configurable. */
  metadata: JsonObject;
  /** Resolves with the greatest event id given out, once all that the graph has told so far has one; null: none yet. */
  logged?: () => Promise<Cursor | null>;
  /** The pool is one transaction: a conflict undoes all of it, so nothing is tried again here. */
  oneTransaction?: boolean;
  /** Called when a checkpoint is stored; the step that follows it begins when this resolves. */
  goOn?: () => Promise<void> | undefined;
}

export interface RunSaver {
  readonly saver: BaseCheckpointSaver;
  /** True once a checkpoint was put through this handle. */
  readonly wrote: boolean;
  /** Takes back the answers to interrupts that this run brought and the graph did not get on with. @throws Fenced */
  forgetAnswers(lineageId: string): Promise<void>;
  /** Ids of the interrupts at the lineage's tip whose task has taken no answer that this run brought. */
  stillAsked(lineageId: string): Promise<Set<string>>;
  /** Refuses new calls (`SaverClosed`) and resolves when those in flight have ended. */
  close(): Promise<void>;
}

/** The run's end has begun; whatever still runs in the graph may not write any more. */
export class SaverClosed extends Error {
  override readonly name = 'SaverClosed';
}

/** The run's row is not in the hands of this epoch: another worker owns it, it has ended, or it is deleted. */
export class Fenced extends Error {
  override readonly name = 'Fenced';
}

/** A saver for one execution of one run. `onFenced` is called when a write was refused because the run was lost. */
export function openSaver(pool: Pool, owner: SaverOwner, onFenced: () => void): RunSaver {
  return new FencedSaver(pool, owner, onFenced);
}

/** A saver that only reads: it owns no run, so Postgres refuses what it would write. */
export function openReader(pool: Pool): BaseCheckpointSaver {
  return new FencedSaver(pool, { runId: NO_RUN, epoch: 0, metadata: {} }, () => undefined);
}

const NO_RUN = '00000000-0000-0000-0000-000000000000';

interface TupleRow {
  kind: 'checkpoint' | 'value' | 'write';
  checkpoint_id: string;
  parent_id: string | null;
  checkpoint: Checkpoint;
  metadata: CheckpointMetadata;
  task_path: string;
  task_id: string;
  idx: number;
  channel: string;
  type: string;
  blob: Buffer;
}

interface HistoryRow extends Pick<TupleRow, 'task_id' | 'channel' | 'type' | 'blob'> {
  kind: 'write' | 'seed';
}

class FencedSaver extends PostgresSaver implements RunSaver {
  wrote = false;
  readonly #owner: SaverOwner;
  readonly #onFenced: () => void;
  readonly #gate = createCallGate(() => new SaverClosed('the run has ended'));

  constructor(pool: Pool, owner: SaverOwner, onFenced: () => void) {
    super(pool);
    this.#owner = owner;
    this.#onFenced = onFenced;
  }

  get saver(): BaseCheckpointSaver {
    return this;
  }

  forgetAnswers(lineageId: string): Promise<void> {
    return this.#gate.pass(() => this.#fenced('answers_forget', FORGET_ANSWERS, [lineageId]));
  }

  stillAsked(lineageId: string): Promise<Set<string>> {
    return this.#gate.pass(async () => {
      const { rows } = await this.#pool.query<TupleRow>(STILL_ASKED, [this.#owner.runId, lineageId]);
      const asked = (await Promise.all(rows.map((row) => this.#load(row)))) as { id?: string }[][];
      return new Set(asked.flat().flatMap(({ id }) => id ?? []));
    });
  }

  close(): Promise<void> {
    return this.#gate.close();
  }

  /** LangGraph's interface says number, its runtime takes strings; @see checkpoint-versions.ts */
  override getNextVersion(current: number | undefined): number {
    return nextVersion(current as number | string | undefined, randomInt(1, SALTS)) as number;
  }

  override getTuple(config: RunnableConfig): Promise<CheckpointTuple | undefined> {
    if (config.configurable?.thread_id === undefined) return Promise.resolve(undefined);
    return this.#gate.pass(() => this.#readTuple(config));
  }

  async #readTuple(config: RunnableConfig): Promise<CheckpointTuple | undefined> {
    const { threadId, ns } = placeOf(config);
    const values = [threadId, ns, config.configurable?.checkpoint_id ?? null, uuidOrNull(threadId)];
    const { rows } = await this.#pool.query<TupleRow>({ name: 'checkpoint_get', text: GET_TUPLE, values });
    const head = rows.find((row) => row.kind === 'checkpoint');
    if (head === undefined) return undefined;
    // Checkpoints of format 3 and older keep pending sends elsewhere; the stock saver knows how to move them.
    if (head.checkpoint.v < 4) return super.getTuple(withId(config, head.checkpoint_id));
    return this.#toTuple(threadId, ns, head, rows);
  }

  async #toTuple(threadId: string, ns: string, head: TupleRow, rows: TupleRow[]): Promise<CheckpointTuple> {
    const values = await Promise.all(
      rows.filter((row) => row.kind === 'value').map(async (row) => [row.channel, await this.#load(row)] as const),
    );
    const writes = rows
      .filter((row) => row.kind === 'write')
      .sort((a, b) =>
        compareWritesSortKeys(
          writesSortKey(a.task_path, a.task_id, a.idx),
          writesSortKey(b.task_path, b.task_id, b.idx),
        ),
      );
    const at = (checkpointId: string): RunnableConfig => ({
      configurable: { thread_id: threadId, checkpoint_ns: ns, checkpoint_id: checkpointId },
    });
    return {
      config: at(head.checkpoint_id),
      checkpoint: { ...head.checkpoint, channel_values: Object.fromEntries(values) },
      metadata: head.metadata,
      ...(head.parent_id === null ? {} : { parentConfig: at(head.parent_id) }),
      pendingWrites: await Promise.all(
        writes.map(async (row): Promise<CheckpointPendingWrite> => [row.task_id, row.channel, await this.#load(row)]),
      ),
    };
  }

  override async *list(config: RunnableConfig, options: CheckpointListOptions = {}): AsyncGenerator<CheckpointTuple> {
    const { thread_id, checkpoint_ns, checkpoint_id } = config.configurable ?? {};
    const filter = options.filter !== undefined && Object.keys(options.filter).length > 0 ? options.filter : null;
    const values = [
      thread_id ?? null,
      checkpoint_ns ?? null,
      checkpoint_id ?? null,
      filter === null ? null : storableJson(filter),
      options.before?.configurable?.checkpoint_id ?? null,
      options.limit ?? null,
    ];
    const { rows } = await this.#gate.pass(() => this.#pool.query(LIST_IDS, values));
    for (const row of rows) {
      const tuple = await this.getTuple({ configurable: row });
      if (tuple !== undefined) yield tuple;
    }
  }

  override put(
    config: RunnableConfig,
    checkpoint: Checkpoint,
    metadata: CheckpointMetadata,
    newVersions: ChannelVersions,
  ): Promise<RunnableConfig> {
    return this.#gate.pass(async () => {
      const { threadId, ns } = placeOf(config);
      const [blobs, logCursor] = await Promise.all([
        this.#dumpBlobs(checkpoint.channel_values, newVersions),
        this.#owner.logged?.() ?? null,
      ]);
      const { channel_values: _stored, ...bare } = checkpoint;
      const facts = { ...metadata, ...this.#owner.metadata };
      await this.#fenced('checkpoint_put', PUT, [
        threadId,
        ns,
        blobs.map((blob) => blob.channel),
        blobs.map((blob) => blob.version),
        blobs.map((blob) => blob.type),
        blobs.map((blob) => blob.bytes),
        checkpoint.id,
        config.configurable?.checkpoint_id ?? null,
        storableJson(bare),
        storableJson(facts),
        uuidOrNull(threadId),
        logCursor,
      ]);
      this.wrote = true;
      await this.#owner.goOn?.();
      return { configurable: { thread_id: threadId, checkpoint_ns: ns, checkpoint_id: checkpoint.id } };
    });
  }

  async #dumpBlobs(values: Record<string, unknown>, versions: ChannelVersions) {
    return Promise.all(
      Object.entries(versions).map(async ([channel, version]) => {
        if (!(channel in values)) return { channel, version: String(version), type: 'empty', bytes: null };
        const [type, bytes] = await this.serde.dumpsTyped(values[channel]);
        return { channel, version: String(version), type, bytes: Buffer.from(bytes) };
      }),
    );
  }

  override putWrites(config: RunnableConfig, writes: PendingWrite[], taskId: string, taskPath = ''): Promise<void> {
    return this.#gate.pass(async () => {
      const { threadId, ns } = placeOf(config);
      const dumped = await Promise.all(writes.map(([, value]) => this.serde.dumpsTyped(value)));
      const special = writes.every(([channel]) => channel in WRITES_IDX_MAP);
      await this.#fenced(special ? 'writes_upsert' : 'writes_put', special ? UPSERT_WRITES : PUT_WRITES, [
        threadId,
        ns,
        config.configurable?.checkpoint_id,
        taskId,
        taskPath,
        writes.map(([channel], index) => WRITES_IDX_MAP[channel] ?? index),
        writes.map(([channel]) => channel),
        dumped.map(([type]) => type),
        dumped.map(([, bytes]) => Buffer.from(bytes)),
      ]);
    });
  }

  override getDeltaChannelHistory(options: {
    config: RunnableConfig;
    channels: string[];
  }): Promise<Record<string, DeltaChannelHistory>> {
    return this.#gate.pass(async () => {
      const { threadId, ns } = placeOf(options.config);
      const target =
        options.config.configurable?.checkpoint_id ?? (await this.#readTuple(options.config))?.checkpoint.id;
      const history: Record<string, DeltaChannelHistory> = Object.fromEntries(
        options.channels.map((channel) => [channel, { writes: [] }]),
      );
      if (options.channels.length === 0 || target === undefined) return history;
      const values = [threadId, ns, target, options.channels];
      const { rows } = await this.#pool.query<HistoryRow>({ name: 'delta_history', text: DELTA_HISTORY, values });
      for (const row of rows) {
        const entry = history[row.channel];
        if (entry === undefined) continue;
        const value = await this.#load(row);
        if (row.kind === 'seed') entry.seed = value;
        else entry.writes.push([row.task_id, row.channel, value]);
      }
      return history;
    });
  }

  /** Removes the lineage's checkpoints while this run owns it. Deleting a thread is `deleteCheckpoints` (checkpoint-rows.ts). */
  override deleteThread(threadId: string): Promise<void> {
    return this.#gate.pass(() => this.#fenced('checkpoint_delete', DELETE_THREAD, [threadId, uuidOrNull(threadId)]));
  }

  get #pool(): Pool {
    // The stock saver keeps the pool private in its types only.
    return (this as unknown as { pool: Pool }).pool;
  }

  #load(row: Pick<TupleRow, 'type' | 'blob'>): Promise<unknown> {
    return this.serde.loadsTyped(row.type, row.blob);
  }

  async #fenced(name: string, text: string, values: unknown[]): Promise<void> {
    const { runId, epoch, oneTransaction = false } = this.#owner;
    const query = { name, text, values: [runId, epoch, ...values] };
    const send = () => this.#pool.query<{ owned: boolean }>(query);
    const { rows } = await (oneTransaction ? send() : againOnConflict(send));
    if (rows[0]?.owned === true) return;
    this.#onFenced();
    throw new Fenced(`epoch ${epoch} does not own run ${runId}`);
  }
}
