/** What clients get: rows of the core in this protocol's form. */
import { type Assistant, systemAssistantId } from '#src/assistants/service.ts';
import type { Cron } from '#src/crons/service.ts';
import type { Json, JsonObject } from '#src/events/event.ts';
import type { Run, RunStatus } from '#src/runs/run.ts';
import { withoutUserFacts } from '#src/runs/service.ts';
import type { StateJson, TaskState } from '#src/runs/state.ts';
import type { ListedThread } from '#src/threads/service.ts';
import { filled } from './frames.ts';

export function assistantOf(assistant: Assistant): JsonObject {
  const { id, graph_id, version, name, description, config, context, metadata, created_at, updated_at } = assistant;
  return {
    assistant_id: id,
    graph_id,
    version,
    name,
    description,
    config,
    context,
    metadata,
    created_at,
    updated_at,
  };
}

export function threadOf(thread: ListedThread, state: StateJson | null): JsonObject {
  const { id, metadata, config, activity, created_at, updated_at, active_at } = thread;
  return {
    thread_id: id,
    created_at,
    updated_at,
    state_updated_at: active_at,
    metadata,
    status: activity,
    config,
    values: state === null || state.checkpoint === null ? null : filled(state.values),
    interrupts: state === null ? {} : interruptsOf(state.tasks),
  };
}

/** What each task asks, by its id. */
function interruptsOf(tasks: TaskState[]): JsonObject {
  return Object.fromEntries(
    tasks.flatMap((task) => (task.interrupts.length === 0 ? [] : [[task.id, filled(task.interrupts)]])),
  );
}

export function stateOf(state: StateJson): JsonObject {
  return {
    values: filled(state.values),
    next: state.next,
    tasks: state.tasks.map(taskOf),
    metadata: state.metadata,
    created_at: state.created_at,
    checkpoint: state.checkpoint as JsonObject | null,
    parent_checkpoint: state.parent_checkpoint as JsonObject | null,
  };
}

function taskOf(task: TaskState): JsonObject {
  return {
    id: task.id,
    name: task.name,
    error: task.error,
    interrupts: filled(task.interrupts),
    path: task.path,
    checkpoint: task.checkpoint,
    state: task.state === null ? null : stateOf(task.state),
    result: filled(task.result),
  };
}

export type WireStatus = 'pending' | 'running' | 'error' | 'success' | 'timeout' | 'interrupted';

/** A graph that stops to ask has run well: what waits is its thread. */
export function statusOf(run: Pick<Run, 'status' | 'error'>): WireStatus {
  switch (run.status) {
    case 'prepared':
    case 'queued':
      return 'pending';
    case 'running':
      return 'running';
    case 'succeeded':
    case 'interrupted':
      return 'success';
    case 'cancelled':
      return 'interrupted';
    case 'failed':
      return run.error?.code === 'RUN_TIMEOUT' ? 'timeout' : 'error';
  }
}

/** The statuses of the core that a client means by one of its own. */
export const STATUSES: Record<WireStatus, { statuses: readonly RunStatus[]; timedOut?: boolean }> = {
  pending: { statuses: ['prepared', 'queued'] },
  running: { statuses: ['running'] },
  success: { statuses: ['succeeded', 'interrupted'] },
  error: { statuses: ['failed'], timedOut: false },
  timeout: { statuses: ['failed'], timedOut: true },
  interrupted: { statuses: ['cancelled'] },
};

export function runOf(run: Run): JsonObject {
  const { metadata = {}, context, interrupt_before, interrupt_after, ...rest } = run.config;
  const { checkpoint: _start, keeps_chunks: _chunks, ...config } = rest;
  const wire = run.wire ?? {};
  return {
    run_id: run.id,
    thread_id: run.thread_id,
    assistant_id: run.assistant_id ?? systemAssistantId(run.graph_id),
    created_at: run.created_at,
    updated_at: run.ended_at ?? run.started_at ?? run.created_at,
    status: statusOf(run),
    metadata,
    multitask_strategy: wire.multitask_strategy ?? 'reject',
    kwargs: {
      input: run.input,
      command: run.command,
      config: { ...config, configurable: withoutUserFacts(config.configurable) } as JsonObject,
      context: context ?? null,
      stream_mode: wire.stream_mode ?? [],
      interrupt_before: interrupt_before ?? null,
      interrupt_after: interrupt_after ?? null,
      webhook: run.webhook,
      feedback_keys: wire.feedback_keys ?? null,
      temporary: wire.temporary ?? false,
      subgraphs: wire.stream_subgraphs ?? false,
      resumable: wire.stream_resumable ?? false,
    },
  };
}

export function cronOf({ id, owner, ...cron }: Cron): JsonObject {
  return { cron_id: id, user_id: owner, ...cron };
}

/** Only the named fields, where a client names any; `values.<key>` picks from the values. */
export function selected(view: JsonObject, select: string | string[] | null | undefined): JsonObject {
  if (select == null || select.length === 0) return view;
  const names = Array.isArray(select) ? select : [select];
  const result: JsonObject = {};
  for (const name of names) {
    if (name in view) result[name] = view[name] ?? null;
    else if (name.startsWith('values.')) pick(result, view.values, name.slice('values.'.length));
    else if (name === 'interrupts') result.interrupts = interruptsIn(view.tasks);
  }
  return result;
}

function pick(result: JsonObject, values: Json | undefined, key: string): void {
  if (typeof values !== 'object' || values === null || Array.isArray(values) || !(key in values)) return;
  result.values = { ...(result.values as JsonObject | undefined), [key]: values[key] ?? null };
}

function interruptsIn(tasks: Json | undefined): Json {
  if (!Array.isArray(tasks)) return [];
  return tasks.flatMap((task) => {
    const asked = typeof task === 'object' && task !== null && !Array.isArray(task) ? task.interrupts : undefined;
    return Array.isArray(asked) ? asked : [];
  });
}
