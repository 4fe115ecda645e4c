/** The door to the store: what graphs and clients keep beyond a thread. Every call is scoped by owner. */
import { RunledgerError } from '#src/errors.ts';
import type { JsonObject } from '#src/events/event.ts';
import type { Pool } from '#src/postgres/pool.ts';
import type { NamespaceSearch, StoreItem, StoreSearch } from './item.ts';
import { deleteItem, getItem, listNamespaces, putItem, searchItems } from './queries.ts';

export type { StoreItem } from './item.ts';

/** What holds for items and reads that say nothing of it. */
export interface StoreTtl {
  readonly defaultTtlMinutes: number | null;
  /** Whether reading an item begins its time to live anew. */
  readonly refreshOnRead: boolean;
}

const FOR_EVER: StoreTtl = { defaultTtlMinutes: null, refreshOnRead: true };

export interface StoreService {
  /**
   * Writes an item, in place of one with the same key.
   * @param item.ttlMinutes how long it lives without being read or written; null for the server's default
   * @throws INVALID_REQUEST for a namespace that is none
   */
  put(
    owner: string,
    item: { namespace: string[]; key: string; value: JsonObject; ttlMinutes: number | null },
  ): Promise<void>;
  /** `refresh`: its time to live, if it has one, begins anew. */
  get(
    owner: string,
    at: { namespace: string[]; key: string; refresh?: boolean | undefined },
  ): Promise<StoreItem | null>;
  /** Does nothing when there is none. */
  remove(owner: string, at: { namespace: string[]; key: string }): Promise<void>;
  /** The most recently written first. @throws INVALID_REQUEST for a filter that is none */
  search(owner: string, search: Omit<StoreSearch, 'refresh'> & { refresh?: boolean | undefined }): Promise<StoreItem[]>;
  namespaces(owner: string, search: NamespaceSearch): Promise<string[][]>;
}

export function createStoreService({ pool, ttl = FOR_EVER }: { pool: Pool; ttl?: StoreTtl | undefined }): StoreService {
  return {
    async put(owner, item) {
      assertNamespace(item.namespace);
      await putItem(pool, owner, { ...item, ttlMinutes: item.ttlMinutes ?? ttl.defaultTtlMinutes });
    },
    get: (owner, { refresh = ttl.refreshOnRead, ...at }) => getItem(pool, owner, { ...at, refresh }),
    remove: (owner, at) => deleteItem(pool, owner, at),
    search: (owner, { refresh = ttl.refreshOnRead, ...search }) => searchItems(pool, owner, { ...search, refresh }),
    namespaces: (owner, search) => listNamespaces(pool, owner, search),
  };
}

/** Clients write a namespace with dots between its labels. */
function assertNamespace(namespace: string[]): void {
  if (namespace.length > 0 && namespace.every((label) => label !== '' && !label.includes('.'))) return;
  throw new RunledgerError('INVALID_REQUEST', 'A namespace needs labels, none of them empty or with a dot in it.', {
    path: 'namespace',
  });
}
