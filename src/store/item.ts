/** What the store holds: JSON objects under a path of labels. */
import type { Json, JsonObject } from '#src/events/event.ts';

/** Times are Postgres' times, ISO 8601. */
export interface StoreItem {
  namespace: string[];
  key: string;
  value: JsonObject;
  created_at: string;
  updated_at: string;
}

export interface StoreSearch {
  /** The labels a namespace begins with; [] for all. */
  prefix: string[];
  /** By key of the value: what it equals, or operators `$eq`, `$ne`, `$gt`, `$gte`, `$lt`, `$lte`. */
  filter?: { [key: string]: Json } | undefined;
  limit: number;
  offset: number;
  /** What an item must hold besides, each of these; its namespace and key are among what it holds. */
  within?: readonly JsonObject[] | undefined;
  /** Whether items that were given a time to live begin it anew. */
  refresh: boolean;
}

export interface NamespaceSearch {
  /** Labels it begins with, and ends with; `*` stands for any one. */
  prefix: string[];
  suffix: string[];
  /** Deeper ones are cut to so many labels. */
  max_depth?: number | undefined;
  /** As in a search. */
  within?: readonly JsonObject[] | undefined;
  limit: number;
  offset: number;
}
