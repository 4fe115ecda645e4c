/**
 * Snapshots of delta channels: the whole value, stored with a checkpoint that is to outlive those it is built from. A delta
 * channel stores no value of its own; it is made of the writes of its ancestors, and only the graph knows how.
 */
import { type BaseCheckpointSaver, DeltaSnapshot } from '@langchain/langgraph-checkpoint';
import type { JsonObject } from '#src/events/event.ts';
import type { Pool, Tx } from '#src/postgres/pool.ts';
import { openReader } from './checkpoints.ts';
import type { DrivenGraph, GraphRegistry } from './graph.ts';

/** LangGraph's DeltaChannel, as far as its value is rebuilt here as LangGraph does it. */
interface DeltaChannel {
  fromCheckpoint(seed: unknown): DeltaChannel;
  replayWrites(writes: unknown[]): void;
  get(): unknown;
}

export type DeltaChannels = ReadonlyMap<string, DeltaChannel>;

/** A delta channel of a checkpoint, at the version it has there, that is to get a value of its own. */
interface SnapshotTarget {
  checkpointId: string;
  channel: string;
  version: string;
}

/**
 * The delta channels of a graph, by name; empty when it has none.
 * @throws GraphLoadError, or what a user's factory throws
 */
export async function deltaChannelsOf(
  graphs: GraphRegistry,
  pool: Pool,
  graphId: string,
  configurable: JsonObject,
): Promise<DeltaChannels> {
  const graph = await graphs.instantiate(graphId, openReader(pool), { configurable, access: 'threads.read' });
  return new Map(
    Object.entries(graph.channels ?? {}).filter((entry): entry is [string, DeltaChannel] => isDelta(entry[1])),
  );
}

/** Whether a channel of a graph stores differences. */
export function isDelta(channel: NonNullable<DrivenGraph['channels']>[string]): boolean {
  return (
    typeof channel === 'object' &&
    channel !== null &&
    'lc_graph_name' in channel &&
    channel.lc_graph_name === 'DeltaChannel'
  );
}

// A step that wrote to the channel has stored that it has no value of its own at this version.
const STORE = `
  insert into checkpoint_blobs (thread_id, checkpoint_ns, channel, version, type, blob)
  values ($1, '', $2, $3, $4, $5)
  on conflict (thread_id, checkpoint_ns, channel, version) do update
  set type = excluded.type, blob = excluded.blob
  where checkpoint_blobs.type = 'empty'`;

/**
 * Stores the value of each target, in the transaction that will remove what it is built from.
 * The caller holds the lineage's thread, and nothing on it is live.
 */
export async function storeSnapshots(
  tx: Tx,
  lineageId: string,
  targets: SnapshotTarget[],
  channels: DeltaChannels,
): Promise<void> {
  // The saver asks only for `query`; through it every statement is part of this transaction.
  const saver = openReader(tx as unknown as Pool);
  for (const { checkpointId, channel, version } of targets) {
    const spec = channels.get(channel);
    if (spec === undefined) throw new Error(`${channel} is no delta channel`);
    const value = await valueAt(saver, lineageId, checkpointId, channel, spec);
    const [type, bytes] = await saver.serde.dumpsTyped(new DeltaSnapshot(value));
    await tx.query(STORE, [lineageId, channel, version, type, Buffer.from(bytes)]);
  }
}

/** As LangGraph makes it when it loads the checkpoint. */
async function valueAt(
  saver: BaseCheckpointSaver,
  lineageId: string,
  checkpointId: string,
  channel: string,
  spec: DeltaChannel,
): Promise<unknown> {
  const config = { configurable: { thread_id: lineageId, checkpoint_ns: '', checkpoint_id: checkpointId } };
  const histories = await saver.getDeltaChannelHistory({ config, channels: [channel] });
  const history = histories[channel];
  const rebuilt = spec.fromCheckpoint(history?.seed);
  rebuilt.replayWrites(history?.writes ?? []);
  return rebuilt.get();
}
