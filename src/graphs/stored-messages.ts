/** Which messages a lineage's checkpoints hold, whatever channels they are in. */
import { isBaseMessage } from '@langchain/core/messages';
import type { RunnableConfig } from '@langchain/core/runnables';
import { type BaseCheckpointSaver, isDeltaSnapshot } from '@langchain/langgraph-checkpoint';

/**
 * Ids of all messages in the newest checkpoint of each namespace ('' is the root) and in its pending writes, channels that
 * store only differences included.
 */
export async function storedMessageIds(
  saver: BaseCheckpointSaver,
  lineageId: string,
  namespaces: string[],
): Promise<Set<string>> {
  const ids = new Set<string>();
  for (const ns of namespaces) await collect(saver, { configurable: { thread_id: lineageId, checkpoint_ns: ns } }, ids);
  return ids;
}

async function collect(saver: BaseCheckpointSaver, config: RunnableConfig, ids: Set<string>): Promise<void> {
  const tuple = await saver.getTuple(config);
  if (tuple === undefined) return;
  const { channel_values, channel_versions } = tuple.checkpoint;
  for (const value of Object.values(channel_values)) addIds(value, ids);
  for (const [, , value] of tuple.pendingWrites ?? []) addIds(value, ids);
  const channels = Object.keys(channel_versions).filter((channel) => !(channel in channel_values));
  const history = await saver.getDeltaChannelHistory({ config: tuple.config, channels });
  for (const { seed, writes } of Object.values(history)) {
    addIds(seed, ids);
    for (const [, , value] of writes) addIds(value, ids);
  }
}

function addIds(value: unknown, ids: Set<string>): void {
  if (isBaseMessage(value)) {
    if (value.id !== undefined) ids.add(value.id);
  } else if (Array.isArray(value)) {
    for (const item of value) addIds(item, ids);
  } else if (isDeltaSnapshot(value)) {
    addIds(value.value, ids);
  }
}
