/** What a reader sees of a whole thread: its runs one after the other, in the order they began, and those that come later. */
import { setTimeout as delay } from 'node:timers/promises';
import { RunledgerError } from '#src/errors.ts';
import { BEFORE_START } from '#src/events/cursor.ts';
import type { Pool, Queryable } from '#src/postgres/pool.ts';
import { assertReplayable, type FollowDeps, follow } from './follow.ts';
import { type RunRow, runColumns, toRun } from './queries.ts';
import type { Followed, Run } from './run.ts';

/** How often a thread on which nothing runs is looked at. Readers are many and threads are quiet: one query serves them all. */
const IDLE_MS = 400;
const GATHER_MS = 20;

/**
 * start: everything that is kept; live: what runs now, from its beginning, and all that comes; a run's ordinal: that run,
 * from its beginning, and all that began after it.
 */
export type ThreadFrom = 'start' | 'live' | { ordinal: number };

/**
 * begins: what follows is of this run. An edit has nothing to follow. expired: the run's events are no longer kept.
 * lost: the run that was named is gone, and what came between it and the next with it.
 */
export type ThreadFollowed =
  | { kind: 'begins' | 'expired'; run: Run }
  | { kind: 'item'; run: Run; item: Followed }
  | { kind: 'lost' };

/** Where a reader stands: after the run that began then. Text, because JavaScript's dates would round the time. */
interface Position {
  /** Whose thread it was at the beginning: another's of the same id is another thread. */
  owner: string;
  threadId: string;
  at: string;
  ordinal: number;
}

type Next = { run: Run; at: string } | 'none' | 'gone';

export interface ThreadWatch {
  /** The first run that began after the position; none; or gone: there is no such thread. */
  next(position: Position): Promise<Next>;
}

// Runs of a thread never overlap, so the order in which they began is that in which they ran. One that ended without
// having begun has its place where it ended; one that waits has none yet.
const BEGAN = `coalesce(r.started_at, r.ended_at)`;
const NEXT = `
  select w.n::int as n, found.began, ${runColumns('found')}
  from unnest($1::int[], $2::uuid[], $3::timestamptz[], $4::int[], $5::text[]) as w(n, thread_id, at, ordinal, owner)
  join threads t on t.id = w.thread_id and t.owner = w.owner
  left join lateral (
    select r.*, ${BEGAN}::text as began from runs r
    where r.thread_id = t.id and not r.hidden and ${BEGAN} is not null and (${BEGAN}, r.ordinal) > (w.at, w.ordinal)
    order by ${BEGAN}, r.ordinal
    limit 1) found on true`;

type NextRow = { n: number } & ((RunRow & { began: string }) | { id: null });

export function createThreadWatch(pool: Pool): ThreadWatch {
  let gathered: Position[] = [];
  let answer: Promise<Map<number, Next>> | null = null;

  async function look(positions: Position[]): Promise<Map<number, Next>> {
    const { rows } = await pool.query<NextRow>(NEXT, [
      positions.map((_position, n) => n),
      positions.map(({ threadId }) => threadId),
      positions.map(({ at }) => at),
      positions.map(({ ordinal }) => ordinal),
      positions.map(({ owner }) => owner),
    ]);
    return new Map(rows.map((row) => [row.n, row.id === null ? 'none' : { run: toRun(row), at: row.began }]));
  }

  return {
    async next(position) {
      const n = gathered.push(position) - 1;
      answer ??= delay(GATHER_MS).then(() => {
        const positions = gathered;
        gathered = [];
        answer = null;
        return look(positions);
      });
      return (await answer).get(n) ?? 'gone';
    },
  };
}

/** Ends when the thread is gone or `signal` aborts. While Postgres cannot tell what comes next, nothing does. */
export async function* followThread(
  deps: FollowDeps & { pool: Pool; threads: ThreadWatch },
  thread: { id: string; owner: string },
  from: ThreadFrom,
  signal: AbortSignal,
): AsyncGenerator<ThreadFollowed, void, void> {
  const { id: threadId, owner } = thread;
  const start = await positionOf(deps.pool, threadId, from);
  if (start.lost) yield { kind: 'lost' };
  let position: Position = { owner, threadId, ...start };
  while (!signal.aborted) {
    const next = await nextQuietly(deps, position);
    if (next === 'gone') return;
    if (next === 'none') {
      await delay(IDLE_MS, undefined, { signal }).catch(() => undefined);
      continue;
    }
    const { run } = next;
    position = { owner, threadId, at: next.at, ordinal: run.ordinal };
    yield { kind: 'begins', run };
    if (run.kind === 'edit') continue;
    if (!(await isKept(deps, run))) {
      yield { kind: 'expired', run };
      continue;
    }
    for await (const item of follow(deps, run, BEFORE_START, signal)) yield { kind: 'item', run, item };
  }
}

async function nextQuietly(deps: FollowDeps & { threads: ThreadWatch }, position: Position): Promise<Next> {
  try {
    return await deps.threads.next(position);
  } catch (error) {
    deps.logger.warn({ err: error, threadId: position.threadId }, 'runs of a thread not readable while following it');
    return 'none';
  }
}

/** When it cannot be said, the run is followed: that ends from the row. */
async function isKept(deps: FollowDeps, run: Run): Promise<boolean> {
  try {
    await assertReplayable(deps, run);
    return true;
  } catch (error) {
    if (error instanceof RunledgerError && error.code === 'STREAM_EXPIRED') return false;
    deps.logger.warn({ err: error, runId: run.id }, 'run of a followed thread: not known whether its events are kept');
    return true;
  }
}

const NAMED = `
  select ${BEGAN}::text as at, r.ordinal - 1 as ordinal from runs r
  where r.thread_id = $1::uuid and r.ordinal = $2 and ${BEGAN} is not null and not r.hidden`;
// What runs now, or is put back to run again, counts as live.
const LIVE = `
  select coalesce(
           (select min(r.started_at) from runs r where r.thread_id = $1::uuid and r.status in ('queued', 'running')),
           clock_timestamp())::text as at`;
const AFTER_THE_NAMED = `
  select max(${BEGAN})::text as at from runs r where r.thread_id = $1::uuid and r.ordinal < $2 and not r.hidden`;

/** Just before the first run that is to be told. */
async function positionOf(
  db: Queryable,
  threadId: string,
  from: ThreadFrom,
): Promise<{ at: string; ordinal: number; lost: boolean }> {
  const beginning = { at: '-infinity', ordinal: 0 };
  if (from === 'start') return { ...beginning, lost: false };
  if (from === 'live') {
    const { rows } = await db.query<{ at: string }>(LIVE, [threadId]);
    return { at: rows[0]?.at ?? beginning.at, ordinal: 0, lost: false };
  }
  const named = await db.query<{ at: string; ordinal: number }>(NAMED, [threadId, from.ordinal]);
  if (named.rows[0] !== undefined) return { ...named.rows[0], lost: false };
  const { rows } = await db.query<{ at: string | null }>(AFTER_THE_NAMED, [threadId, from.ordinal]);
  return { at: rows[0]?.at ?? beginning.at, ordinal: from.ordinal, lost: true };
}
