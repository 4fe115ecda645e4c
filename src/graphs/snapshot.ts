/** LangGraph's state snapshots as JSON, in the form LangGraph's own HTTP API gives them. */
import type { Json, JsonObject } from '#src/events/event.ts';
import { partJson } from './message-fields.ts';

/** A checkpoint as clients name it. */
export interface CheckpointName {
  thread_id: string;
  checkpoint_ns: string;
  checkpoint_id: string | null;
  checkpoint_map: Json;
}

export interface TaskState {
  id: string;
  name: string;
  /** Our own words: what a node threw is for the server's log. */
  error: string | null;
  interrupts: Json[];
  path: Json;
  /** The nested graph's checkpoint; its state instead, when that was asked for. */
  checkpoint: Json;
  state: StateJson | null;
  result: Json;
}

export interface StateJson {
  values: Json;
  next: string[];
  tasks: TaskState[];
  metadata: JsonObject | null;
  created_at: string | null;
  checkpoint: CheckpointName | null;
  parent_checkpoint: CheckpointName | null;
}

/** The state of a lineage without a checkpoint. */
export const EMPTY_STATE: StateJson = Object.freeze({
  values: {},
  next: [],
  tasks: [],
  metadata: null,
  created_at: null,
  checkpoint: null,
  parent_checkpoint: null,
});

interface Snapshot {
  values?: unknown;
  next?: unknown[];
  tasks?: SnapshotTask[];
  metadata?: unknown;
  createdAt?: string;
  config?: unknown;
  parentConfig?: unknown;
}

interface SnapshotTask {
  id: string;
  name: string;
  path?: unknown;
  error?: unknown;
  interrupts?: unknown[];
  result?: unknown;
  state?: { configurable?: unknown } & Snapshot;
}

/** @param snapshot what `getState` or `getStateHistory` of a graph gives */
export function stateJson(snapshot: unknown): StateJson {
  const { values, next = [], tasks = [], metadata, createdAt, config, parentConfig } = snapshot as Snapshot;
  return {
    values: partJson(values ?? {}),
    next: next.map(String),
    tasks: tasks.map(taskJson),
    metadata: metadata == null ? null : (partJson(metadata) as JsonObject),
    created_at: createdAt ?? null,
    checkpoint: checkpointName(config),
    parent_checkpoint: checkpointName(parentConfig),
  };
}

function taskJson(task: SnapshotTask): TaskState {
  const { state } = task;
  const nested = state !== undefined && 'values' in state && 'next' in state;
  return {
    id: task.id,
    name: String(task.name),
    error: task.error == null ? null : 'The node failed.',
    interrupts: (task.interrupts ?? []).map((interrupt) => partJson(interrupt)),
    path: partJson(task.path ?? null),
    checkpoint: nested ? null : partJson(state?.configurable ?? null),
    state: nested ? stateJson(state) : null,
    result: partJson(task.result ?? null),
  };
}

/** The checkpoint a RunnableConfig points to; null when it names none. */
export function checkpointName(config: unknown): CheckpointName | null {
  const { configurable } = (config ?? {}) as { configurable?: JsonObject };
  const { thread_id, checkpoint_ns, checkpoint_id, checkpoint_map } = configurable ?? {};
  if (typeof thread_id !== 'string' || typeof checkpoint_id !== 'string') return null;
  return {
    thread_id,
    checkpoint_ns: typeof checkpoint_ns === 'string' ? checkpoint_ns : '',
    checkpoint_id,
    checkpoint_map: checkpoint_map ?? null,
  };
}
