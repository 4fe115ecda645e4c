/** What people see of their conversations. */
import type { InterruptFacts, Json, JsonObject, RunFailure } from '#src/events/event.ts';

export interface Thread {
  id: string;
  owner: string;
  title: string | null;
  graph_id: string | null;
  metadata: JsonObject;
  archived: boolean;
  pinned: boolean;
  created_at: string;
  updated_at: string;
  /** Status of the latest run, `idle` when there is none. */
  status: 'idle' | 'prepared' | 'queued' | 'running' | 'succeeded' | 'interrupted' | 'failed' | 'cancelled';
  latest_run_id: string | null;
}

/** What a thread is doing, in one word. */
export type Activity = 'idle' | 'busy' | 'interrupted' | 'error';

/** How long a thread is kept without activity, in minutes, and what becomes of it then. */
export interface ThreadTtl {
  minutes: number;
  strategy: 'delete' | 'keep_latest';
}

/** A thread as LangGraph clients list it. */
export interface ListedThread {
  id: string;
  graph_id: string | null;
  metadata: JsonObject;
  /** What its runs were configured with, merged. */
  config: JsonObject;
  activity: Activity;
  created_at: string;
  updated_at: string;
  /** The newest message or end of a run. */
  active_at: string;
  /** null: it is kept. */
  ttl: (ThreadTtl & { expires_at: string }) | null;
}

export const THREAD_ORDERS = ['thread_id', 'status', 'created_at', 'updated_at', 'state_updated_at'] as const;

export interface ThreadFilter {
  ids?: string[] | undefined;
  /** What the metadata must hold; `graph_id` counts as a part of them. */
  metadata?: JsonObject | undefined;
  activity?: Activity | undefined;
  /** What the metadata must hold besides: each of these. */
  within?: readonly JsonObject[] | undefined;
}

export interface ThreadSearch extends ThreadFilter {
  limit: number;
  offset: number;
  sort_by: (typeof THREAD_ORDERS)[number];
  sort_order: 'asc' | 'desc';
}

export interface Turn {
  id: string;
  ordinal: number;
  question: { id: string; content: Json; created_at: string } | null;
  answer: { id: string; content: Json; partial: boolean; stream_id: string | null; created_at: string } | null;
  status: Thread['status'];
  /** The queued or running run of the turn. */
  active_run_id: string | null;
  latest_run_id: string | null;
  interrupts: InterruptFacts[];
  error: RunFailure | null;
  is_latest: boolean;
  can_rerun: boolean;
  created_at: string;
}

export interface ThreadPage {
  threads: Thread[];
  /** Opaque; null on the last page. */
  next_cursor: string | null;
}
