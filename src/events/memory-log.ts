/** The event log in this process, for embedded mode: same fences, same answers as the one in Redis; gone with the process. */
import { type EntryOutcome, verdict } from './append-verdict.ts';
import type { Cursor } from './cursor.ts';
import { type AppendBatch, type AppendResult, type EventLog, type LogEntry, LogUnavailable } from './log.ts';

interface StoredLog {
  readonly entries: LogEntry[];
  bytes: number;
  /** Performance-clock time of its disappearance; null while the run lives. */
  expiresAtMs: number | null;
  timer: NodeJS.Timeout | null;
}

interface MemoryLogState {
  readonly memoryLimitBytes: number;
  readonly logs: Map<string, StoredLog>;
  /** Run ids in the order in which they were sealed. */
  readonly sealed: Set<string>;
  readonly listeners: Map<string, Set<(entry: LogEntry) => void>>;
  bytes: number;
}

/** What an entry costs beside its text, roughly. */
const ENTRY_BYTES = 64;
/** Node's timers cannot wait longer. */
const MAX_TIMER_MS = 2 ** 31 - 1;

/**
 * @param options.memoryLimitBytes what all logs together may hold. Beyond it the logs of ended runs are dropped, the one
 *   that ended first goes first; when none is left, appends are refused, as Redis does when it is out of memory.
 */
export function createMemoryLog(options: { memoryLimitBytes: number }): EventLog {
  const state: MemoryLogState = {
    memoryLimitBytes: options.memoryLimitBytes,
    logs: new Map(),
    sealed: new Set(),
    listeners: new Map(),
    bytes: 0,
  };
  return {
    kind: 'memory',
    async append(batches) {
      return batches.map((batch) => appendBatch(state, batch));
    },
    async read(runId, after, limit) {
      const log = state.logs.get(runId);
      if (log === undefined) return { exists: false, entries: [] };
      const from = firstAfter(log.entries, after);
      return { exists: true, entries: log.entries.slice(from, from + limit) };
    },
    async readOne(runId, cursor) {
      return entryAt(state.logs.get(runId), cursor) ?? null;
    },
    async last(runId) {
      return state.logs.get(runId)?.entries.at(-1) ?? null;
    },
    async subscribe(runId, onEntry) {
      return listen(state, runId, onEntry);
    },
    async expireAfter(runId, ttlMs) {
      expireAfter(state, runId, ttlMs);
    },
    async remove(runId) {
      drop(state, runId);
    },
    async ping() {},
    async close() {
      for (const runId of [...state.logs.keys()]) drop(state, runId);
      state.listeners.clear();
    },
  };
}

function appendBatch(state: MemoryLogState, { runId, entries }: AppendBatch): AppendResult {
  const outcomes = entries.map((entry): EntryOutcome => {
    const log = state.logs.get(runId);
    const top = log?.entries.at(-1)?.cursor;
    if (top === undefined || entry.cursor > top) {
      add(state, runId, entry);
      return 'held';
    }
    const there = entryAt(log, entry.cursor);
    if (there === undefined) return 'absent';
    return there.payload === entry.payload ? 'held' : 'other';
  });
  return verdict(outcomes);
}

function add(state: MemoryLogState, runId: string, { cursor, payload }: LogEntry): void {
  const bytes = Buffer.byteLength(payload) + ENTRY_BYTES;
  makeRoom(state, runId, bytes);
  let log = state.logs.get(runId);
  if (log === undefined) {
    log = { entries: [], bytes: 0, expiresAtMs: null, timer: null };
    state.logs.set(runId, log);
  }
  // The caller's object may carry more than the entry, and must not be kept alive.
  const entry = { cursor, payload };
  log.entries.push(entry);
  log.bytes += bytes;
  state.bytes += bytes;
  for (const listener of state.listeners.get(runId) ?? []) listener(entry);
}

function makeRoom(state: MemoryLogState, runId: string, bytes: number): void {
  for (const sealed of state.sealed) {
    if (state.bytes + bytes <= state.memoryLimitBytes) return;
    if (sealed !== runId) drop(state, sealed);
  }
  if (state.bytes + bytes > state.memoryLimitBytes) throw new LogUnavailable('the in-process event log is full');
}

function expireAfter(state: MemoryLogState, runId: string, ttlMs: number): void {
  const log = state.logs.get(runId);
  if (log === undefined) return;
  state.sealed.add(runId);
  log.expiresAtMs = performance.now() + ttlMs;
  arm(state, runId, log);
}

function arm(state: MemoryLogState, runId: string, log: StoredLog): void {
  if (log.timer !== null) clearTimeout(log.timer);
  const leftMs = (log.expiresAtMs ?? 0) - performance.now();
  if (leftMs <= 0) {
    drop(state, runId);
    return;
  }
  log.timer = setTimeout(() => arm(state, runId, log), Math.min(Math.ceil(leftMs), MAX_TIMER_MS));
  log.timer.unref();
}

function drop(state: MemoryLogState, runId: string): void {
  const log = state.logs.get(runId);
  if (log === undefined) return;
  if (log.timer !== null) clearTimeout(log.timer);
  state.bytes -= log.bytes;
  state.logs.delete(runId);
  state.sealed.delete(runId);
}

function listen(state: MemoryLogState, runId: string, onEntry: (entry: LogEntry) => void): () => void {
  const listeners = state.listeners.get(runId) ?? new Set();
  state.listeners.set(runId, listeners);
  listeners.add(onEntry);
  return () => {
    listeners.delete(onEntry);
    if (listeners.size === 0 && state.listeners.get(runId) === listeners) state.listeners.delete(runId);
  };
}

function entryAt(log: StoredLog | undefined, cursor: Cursor): LogEntry | undefined {
  const entry = log?.entries[firstAfter(log.entries, cursor - 1)];
  return entry?.cursor === cursor ? entry : undefined;
}

/** Index of the first entry with a greater cursor; entries are ascending. */
function firstAfter(entries: readonly LogEntry[], after: Cursor): number {
  let low = 0;
  let high = entries.length;
  while (low < high) {
    const middle = (low + high) >>> 1;
    if ((entries[middle]?.cursor ?? 0) > after) high = middle;
    else low = middle + 1;
  }
  return low;
}
