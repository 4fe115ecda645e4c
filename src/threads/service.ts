/** The door to what people read: threads, and the turns in them. Every call is scoped by owner. */
import { randomUUID } from 'node:crypto';
import { RunledgerError } from '#src/errors.ts';
import type { JsonObject } from '#src/events/event.ts';
import type { Pool } from '#src/postgres/pool.ts';
import { insertThread, insertThreadIfNew } from './open.ts';
import { type ListPosition, selectThread, selectThreads, selectTurns, updateThread } from './queries.ts';
import { countListed, mergeMetadata, searchListed, selectListed, setTtl } from './search.ts';
import type { ListedThread, Thread, ThreadFilter, ThreadPage, ThreadSearch, ThreadTtl, Turn } from './thread.ts';

export {
  type ListedThread,
  THREAD_ORDERS,
  type Thread,
  type ThreadPage,
  type ThreadTtl,
  type Turn,
} from './thread.ts';

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
    page: {
      limit: number;
      cursor?: string | undefined;
      archived?: boolean | undefined;
      /** What the metadata must hold: each of these. */
      within?: readonly JsonObject[] | undefined;
    },
  ): Promise<ThreadPage>;
  /** Only the given fields change; metadata are replaced whole, unless they are to be added. @throws THREAD_NOT_FOUND */
  update(
    owner: string,
    threadId: string,
    fields: {
      title?: string | null | undefined;
      metadata?: JsonObject | undefined;
      adds_metadata?: boolean | undefined;
      archived?: boolean | undefined;
      pinned?: boolean | undefined;
    },
  ): Promise<Thread>;
  /**
   * A thread with this id, or a new one. Metadata that name a configured graph make it the thread's.
   * @throws THREAD_EXISTS when it is there, unless `if_exists` is do_nothing and it is the owner's: then that is given
   */
  open(
    owner: string,
    fields: {
      id?: string | undefined;
      metadata: JsonObject;
      graph_id?: string | undefined;
      if_exists: 'raise' | 'do_nothing';
      /** For a new one. */
      ttl?: ThreadTtl | null | undefined;
    },
  ): Promise<ListedThread>;
  /** @throws THREAD_NOT_FOUND */
  listed(owner: string, threadId: string): Promise<ListedThread>;
  search(owner: string, search: ThreadSearch): Promise<{ threads: ListedThread[]; total: number }>;
  count(owner: string, filter: ThreadFilter): Promise<number>;
  /** Adds to the metadata; what has the same name is replaced. @throws THREAD_NOT_FOUND */
  addMetadata(owner: string, threadId: string, metadata: JsonObject): Promise<ListedThread>;
  /** From now on, or for ever when it is null. @throws THREAD_NOT_FOUND */
  setTtl(owner: string, threadId: string, ttl: ThreadTtl | null): Promise<ListedThread>;
  /** Oldest first. @throws THREAD_NOT_FOUND */
  turns(owner: string, threadId: string): Promise<Turn[]>;
}

export function createThreadService({ pool }: { pool: Pool }): ThreadService {
  async function get(owner: string, threadId: string): Promise<Thread> {
    const thread = await selectThread(pool, owner, threadId);
    if (thread === null) throw threadNotFound();
    return thread;
  }

  async function listed(owner: string, threadId: string): Promise<ListedThread> {
    const thread = await selectListed(pool, owner, threadId);
    if (thread === null) throw threadNotFound();
    return thread;
  }

  return {
    get,
    listed,
    async open(owner, { id = randomUUID(), metadata, graph_id, if_exists, ttl }) {
      const made = await insertThreadIfNew(pool, { id, owner, metadata, graphId: graph_id, ttl });
      const thread = made || if_exists === 'do_nothing' ? await selectListed(pool, owner, id) : null;
      if (thread === null) throw new RunledgerError('THREAD_EXISTS', 'Thread already exists');
      return thread;
    },
    search: (owner, search) => searchListed(pool, owner, search),
    count: (owner, filter) => countListed(pool, owner, filter),
    async addMetadata(owner, threadId, metadata) {
      if (!(await mergeMetadata(pool, owner, threadId, metadata))) throw threadNotFound();
      return listed(owner, threadId);
    },
    async setTtl(owner, threadId, ttl) {
      if (!(await setTtl(pool, owner, threadId, ttl))) throw threadNotFound();
      return listed(owner, threadId);
    },
    async create(owner, fields) {
      const id = randomUUID();
      await insertThread(pool, { id, owner, title: fields.title, graphId: fields.graph_id, metadata: fields.metadata });
      return get(owner, id);
    },
    async list(owner, page) {
      const from = page.cursor === undefined ? null : decodePosition(page.cursor);
      // One more than asked tells whether there is a next page.
      const found = await selectThreads(pool, owner, {
        archived: page.archived ?? null,
        within: page.within ?? [],
        from,
        limit: page.limit + 1,
      });
      const shown = found.slice(0, page.limit);
      const last = shown.at(-1);
      const more = found.length > shown.length && last !== undefined;
      return {
        threads: shown.map((entry) => entry.thread),
        next_cursor: more ? encodePosition(last.position) : null,
      };
    },
    async update(owner, threadId, fields) {
      if (!(await updateThread(pool, owner, threadId, fields))) throw threadNotFound();
      return get(owner, threadId);
    },
    async turns(owner, threadId) {
      await get(owner, threadId);
      return selectTurns(pool, threadId);
    },
  };
}

function threadNotFound(): RunledgerError {
  return new RunledgerError('THREAD_NOT_FOUND', 'There is no such thread.');
}

const POSITION = /^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z) ([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})$/;

function encodePosition(position: ListPosition): string {
  return Buffer.from(`${position.active_at} ${position.id}`).toString('base64url');
}

function decodePosition(cursor: string): ListPosition {
  const [, activeAt, id] = POSITION.exec(Buffer.from(cursor, 'base64url').toString()) ?? [];
  if (activeAt === undefined || id === undefined || Number.isNaN(Date.parse(activeAt))) {
    throw new RunledgerError('INVALID_CURSOR', 'This is not a cursor of the thread list.', { path: 'cursor' });
  }
  return { active_at: activeAt, id };
}
