/** The door to what people read: threads, and the turns in them. Every call is scoped by owner. */
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

export interface ThreadService {
  create(
    owner: string,
    fields: { title?: string | undefined; graph_id?: string | undefined; metadata?: JsonObject | undefined },
  ): Promise<Thread>;
  /** @throws THREAD_NOT_FOUND */
  get(owner: string, threadId: string): Promise<Thread>;
  /** By recent activity, newest first. `cursor` is a former page's next_cursor. @throws INVALID_CURSOR */
  list(
    owner: string,
    page: { limit: number; cursor?: string | undefined; archived?: boolean | undefined },
  ): Promise<ThreadPage>;
  /** Only the given fields change. @throws THREAD_NOT_FOUND */
  update(
    owner: string,
    threadId: string,
    fields: {
      title?: string | null | undefined;
      metadata?: JsonObject | undefined;
      archived?: boolean | undefined;
      pinned?: boolean | undefined;
    },
  ): Promise<Thread>;
  /** Oldest first. @throws THREAD_NOT_FOUND */
  turns(owner: string, threadId: string): Promise<Turn[]>;
}
