/** Closes a lineage after an abnormal end: pending results of finished tasks are taken in, and the history is repaired. */
import { type BaseMessage, isBaseMessage } from '@langchain/core/messages';
import type { RunnableConfig } from '@langchain/core/runnables';
import {
  type BaseCheckpointSaver,
  type CheckpointMetadata,
  type CheckpointTuple,
  copyCheckpoint,
  DeltaSnapshot,
  maxChannelVersion,
  uuid6,
} from '@langchain/langgraph-checkpoint';
import { isDelta } from './delta-snapshots.ts';
import type { DrivenGraph } from './graph.ts';
import { type PartialMessage, repairHistory } from './repair.ts';

const CHANNEL = 'messages';

/**
 * Makes the newest state of a lineage one that a new turn can start from. Repeatable: a second time changes nothing.
 * A lineage without a `messages` channel of messages has no history to repair.
 * @param graph    with the saver attached
 * @param lineage.partials text that people saw of messages no node returned
 * @param lineage.ended  the run whose nodes are still to run is over: they are forgotten, or clients would take them for a breakpoint
 * @returns whether a checkpoint was written
 * @throws what the saver throws (Fenced when the run was lost)
 */
export async function closeLineage(
  graph: DrivenGraph,
  saver: BaseCheckpointSaver,
  lineage: { id: string; runId: string; partials: PartialMessage[]; ended: boolean },
): Promise<boolean> {
  const config: RunnableConfig = { configurable: { thread_id: lineage.id, checkpoint_ns: '' } };
  const before = await saver.getTuple(config);
  if (before === undefined) return false;
  const snapshot = await graph.getState(config);
  const unfinished = (before.pendingWrites ?? []).length > 0 || (lineage.ended && isToGoOn(snapshot));
  // LangGraph's own way to take in the writes of finished tasks and forget the unfinished ones.
  if (unfinished) await graph.updateState(config, null, '__end__');
  const messages = messagesOf(unfinished ? await graph.getState(config) : snapshot);
  const repaired = messages === null ? null : repairHistory(messages, lineage.partials, lineage.runId);
  if (repaired === null) return unfinished;
  const tip = await saver.getTuple(config);
  if (tip === undefined) throw new Error(`lineage ${lineage.id} lost its tip while it was closed`);
  await putMessages(graph, saver, tip, repaired);
  return true;
}

function isToGoOn(snapshot: unknown): boolean {
  return ((snapshot as { next?: unknown[] }).next ?? []).length > 0;
}

function messagesOf(snapshot: unknown): BaseMessage[] | null {
  const value = (snapshot as { values?: Record<string, unknown> }).values?.[CHANNEL];
  return Array.isArray(value) && value.every((item) => isBaseMessage(item)) ? value : null;
}

/**
 * Puts a checkpoint after the tip whose `messages` are these. Written past the graph, so that none of its edges or nodes
 * runs; no node is triggered, because each is told that it has seen the new version.
 */
async function putMessages(
  graph: DrivenGraph,
  saver: BaseCheckpointSaver,
  tip: CheckpointTuple,
  messages: BaseMessage[],
): Promise<void> {
  const checkpoint = copyCheckpoint(tip.checkpoint);
  const step = (tip.metadata?.step ?? -1) + 1;
  const version = saver.getNextVersion(maxChannelVersion(...Object.values(checkpoint.channel_versions)) as number);
  checkpoint.id = uuid6(Math.max(step, 0));
  checkpoint.ts = new Date().toISOString();
  checkpoint.channel_values[CHANNEL] = isDelta(graph.channels?.[CHANNEL]) ? new DeltaSnapshot(messages) : messages;
  checkpoint.channel_versions[CHANNEL] = version;
  for (const seen of Object.values(checkpoint.versions_seen)) if (CHANNEL in seen) seen[CHANNEL] = version;
  const metadata: CheckpointMetadata & { counters_since_delta_snapshot?: Record<string, unknown> } = {
    ...tip.metadata,
    source: 'update',
    step,
    parents: tip.metadata?.parents ?? {},
  };
  const { [CHANNEL]: _snapshotted, ...counters } = metadata.counters_since_delta_snapshot ?? {};
  if (metadata.counters_since_delta_snapshot !== undefined) metadata.counters_since_delta_snapshot = counters;
  await saver.put(tip.config, checkpoint, metadata, { [CHANNEL]: version });
}
