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
