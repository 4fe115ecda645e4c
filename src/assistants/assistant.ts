/** What an assistant is: a graph with a configuration of its own, in versions. */
import type { Json, JsonObject } from '#src/events/event.ts';

/** Times are Postgres' times, ISO 8601. */
export interface Assistant {
  id: string;
  /** null: made by the server for a configured graph; everybody sees it, nobody changes it. */
  owner: string | null;
  graph_id: string;
  /** The version in force. */
  version: number;
  name: string;
  description: string | null;
  config: JsonObject;
  context: Json;
  metadata: JsonObject;
  created_at: string;
  updated_at: string;
}

/** What a version holds. */
export interface AssistantContent {
  graph_id: string;
  name: string;
  description: string | null;
  config: JsonObject;
  context: Json;
  metadata: JsonObject;
}

export interface AssistantFilter {
  metadata?: JsonObject | undefined;
  graph_id?: string | undefined;
  /** Part of the name, in any case. */
  name?: string | undefined;
  /** What the metadata must hold besides: each of these. */
  within?: readonly JsonObject[] | undefined;
}

export const ASSISTANT_ORDERS = ['assistant_id', 'graph_id', 'created_at', 'updated_at', 'name'] as const;

export interface AssistantPage extends AssistantFilter {
  limit: number;
  offset: number;
  sort_by: (typeof ASSISTANT_ORDERS)[number];
  sort_order: 'asc' | 'desc';
}
