/** The data of LangGraph's stream modes other than messages: what must wait, what must not leave the server. */
import type { GraphMode, Json, JsonObject } from '#src/events/event.ts';

const MODES: ReadonlySet<string> = new Set<GraphMode>([
  'updates',
  'values',
  'custom',
  'tasks',
  'debug',
  'checkpoints',
  'events',
  'tools',
]);

export function isGraphMode(mode: unknown): mode is GraphMode {
  return typeof mode === 'string' && MODES.has(mode);
}

/**
 * True when the part tells of an interrupt this run has just made: no client may see it before Postgres has it. Parts of
 * `checkpoints`, and a task's start, only repeat interrupts that an earlier run committed.
 */
export function tellsInterrupt(mode: GraphMode, data: Json): boolean {
  if (!isObject(data)) return false;
  if (mode === 'updates' || mode === 'values') return '__interrupt__' in data;
  if (mode === 'events') return isObject(data.data) && [data.data.output, data.data.chunk].some(holdsInterrupt);
  const task = mode === 'debug' && data.type === 'task_result' ? data.payload : mode === 'tasks' ? data : undefined;
  if (task === undefined || !isObject(task) || !('result' in task)) return false;
  return Array.isArray(task.interrupts) && task.interrupts.length > 0;
}

function holdsInterrupt(value: Json | undefined): boolean {
  // What a nested graph streams comes as [namespace, mode, data].
  const data = Array.isArray(value) ? value.at(-1) : value;
  return isObject(data) && '__interrupt__' in data;
}

/** True for an update that LangGraph repeats from its store instead of running the node. */
export function isCached(data: Json): boolean {
  if (!isObject(data)) return false;
  const metadata = data.__metadata__;
  return isObject(metadata) && metadata.cached === true;
}

/** Interrupts of an `updates` part: those that have an id. */
export function interruptsIn(data: Json): { id: string; value: Json }[] {
  const list = isObject(data) ? data.__interrupt__ : undefined;
  if (!Array.isArray(list)) return [];
  return list.flatMap((entry) =>
    isObject(entry) && typeof entry.id === 'string' ? [{ id: entry.id, value: entry.value ?? null }] : [],
  );
}

/**
 * Replaces, in place, what is for the server's log only: error texts of tasks and tools, and LangGraph's own objects
 * inside a checkpoint's config.
 */
export function withoutInternals(mode: GraphMode, data: Json): Json {
  if (!isObject(data)) return data;
  if (mode === 'tools') hideError(data);
  if (mode === 'tasks') hideError(data);
  const inner = mode === 'debug' ? data.payload : mode === 'checkpoints' ? data : undefined;
  if (inner === undefined || !isObject(inner)) return data;
  hideError(inner);
  if (Array.isArray(inner.tasks)) for (const task of inner.tasks) if (isObject(task)) hideError(task);
  for (const key of ['config', 'parentConfig']) {
    const config = inner[key];
    if (isObject(config)) stripConfig(config);
  }
  return data;
}

function hideError(record: JsonObject): void {
  if ('error' in record && record.error !== null) record.error = { name: 'Error', message: 'It failed.' };
}

/** LangGraph's own, and what an Auth module says of the user who asked: others may read the run. */
const NOT_TOLD = /^(?:__|langgraph_auth_)/;

function stripConfig(config: JsonObject): void {
  delete config.callbacks;
  if (!isObject(config.configurable)) return;
  for (const key of Object.keys(config.configurable)) if (NOT_TOLD.test(key)) delete config.configurable[key];
}

function isObject(value: Json | undefined): value is JsonObject {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}
