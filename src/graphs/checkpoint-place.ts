/** Where a checkpoint call goes, read from LangGraph's config. */
import type { RunnableConfig } from '@langchain/core/runnables';

const UUID = /^[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i;

/** The lineage and namespace a call is about. @throws Error when its config names no lineage */
export function placeOf(config: RunnableConfig): { threadId: string; ns: string } {
  const threadId = config.configurable?.thread_id;
  if (threadId === undefined) throw new Error('the config of a checkpoint call has no thread_id');
  return { threadId: String(threadId), ns: config.configurable?.checkpoint_ns ?? '' };
}

/** The same config, for this checkpoint. */
export function withId(config: RunnableConfig, checkpointId: string): RunnableConfig {
  return { ...config, configurable: { ...config.configurable, checkpoint_id: checkpointId } };
}

/** Null for lineages that are none of ours: their ids may be any text. */
export function uuidOrNull(id: string): string | null {
  return UUID.test(id) ? id : null;
}
