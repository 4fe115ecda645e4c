/** What a cron is: a schedule by which a run is asked for again and again. */
import type { JsonObject } from '#src/events/event.ts';

/** Times are Postgres' times, ISO 8601. */
export interface Cron {
  id: string;
  owner: string;
  assistant_id: string;
  /** null: each run gets a thread of its own. */
  thread_id: string | null;
  schedule: string;
  /** IANA; null is UTC. */
  timezone: string | null;
  /** No slot after it is fired. */
  end_time: string | null;
  enabled: boolean;
  /** What becomes of the thread a run was given; null when the cron names a thread. */
  on_run_completed: 'delete' | 'keep' | null;
  /** The request for a run, as the dialect that made it reads it again. Nothing here looks into it. */
  payload: JsonObject;
  /** Also those of its runs. */
  metadata: JsonObject;
  /** The slot that comes next, or was missed; null when none does: it is disabled, or over. */
  next_run_date: string | null;
  created_at: string;
  updated_at: string;
}

export type NewCron = Omit<Cron, 'id' | 'owner' | 'next_run_date' | 'created_at' | 'updated_at'>;

/** What a change may name; what it does not stays. Payload and metadata are merged by key. */
export type CronChange = {
  [key in 'schedule' | 'timezone' | 'end_time' | 'enabled' | 'on_run_completed' | 'payload' | 'metadata']?:
    | Cron[key]
    | undefined;
};

export interface CronFilter {
  assistant_id?: string | undefined;
  thread_id?: string | undefined;
  enabled?: boolean | undefined;
  /** What the metadata must hold. */
  metadata?: JsonObject | undefined;
  /** Each of these too, whoever asks for what: limits that are not the client's. */
  within?: readonly object[] | undefined;
}

export const CRON_ORDERS = [
  'cron_id',
  'assistant_id',
  'thread_id',
  'created_at',
  'updated_at',
  'next_run_date',
] as const;

export interface CronPage extends CronFilter {
  limit: number;
  offset: number;
  sort_by: (typeof CRON_ORDERS)[number];
  sort_order: 'asc' | 'desc';
}
