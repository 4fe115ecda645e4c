/** Which messages a lineage's checkpoints hold, whatever channels they are in. */
import { type BaseMessage, isBaseMessage } from '@langchain/core/messages';
import type { RunnableConfig } from '@langchain/core/runnables';
import { type BaseCheckpointSaver, isDeltaSnapshot } from '@langchain/langgraph-checkpoint';

export interface StoredMessage {
  message: BaseMessage;
  /** Only in the pending writes of a finished task: LangGraph repeats that task's update when it goes on. */
  pending: boolean;
}

/** Of messages that were shown, by id with their namespace: all that is stored where any of them was. */
export function storedBeside(
  saver: BaseCheckpointSaver,
  lineageId: string,
  shown: Map<string, string[]>,
): Promise<Map<string, StoredMessage>> {
  const namespaces = new Set(['', ...[...shown.values()].map((ns) => ns.join('|'))]);
  return storedMessages(saver, lineageId, [...namespaces]);
}

/**
 * By id, all messages in the newest checkpoint of each namespace ('' is the root) and in its pending writes, channels that
 * store only differences included.
 */
async function storedMessages(
  saver: BaseCheckpointSaver,
  lineageId: string,
  namespaces: string[],
): Promise<Map<string, StoredMessage>> {
  const stored = new Map<string, StoredMessage>();
  for (const ns of namespaces) {
    await collect(saver, { configurable: { thread_id: lineageId, checkpoint_ns: ns } }, stored);
  }
  return stored;
}

async function collect(
  saver: BaseCheckpointSaver,
  config: RunnableConfig,
  stored: Map<string, StoredMessage>,
): Promise<void> {
  const tuple = await saver.getTuple(config);
  if (tuple === undefined) return;
  const { channel_values, channel_versions } = tuple.checkpoint;
  for (const [, , value] of tuple.pendingWrites ?? []) add(value, true, stored);
  for (const value of Object.values(channel_values)) add(value, false, stored);
  const channels = Object.keys(channel_versions).filter((channel) => !(channel in channel_values));
  const history = await saver.getDeltaChannelHistory({ config: tuple.config, channels });
  for (const { seed, writes } of Object.values(history)) {
    add(seed, false, stored);
    for (const [, , value] of writes) add(value, false, stored);
  }
}

function add(value: unknown, pending: boolean, stored: Map<string, StoredMessage>): void {
  if (isBaseMessage(value)) {
    if (value.id !== undefined) stored.set(value.id, { message: value, pending });
  } else if (Array.isArray(value)) {
    for (const item of value) add(item, pending, stored);
  } else if (isDeltaSnapshot(value)) {
    add(value.value, pending, stored);
  }
}
