/** The outbox as its owner sees it: what became of each effect, and another try for one that was given up. */
import { RunledgerError } from '#src/errors.ts';
import type { Json } from '#src/events/event.ts';
import type { Pool } from '#src/postgres/pool.ts';

export type OutboxStatus = 'pending' | 'delivered' | 'dead';

/** Times are ISO 8601, by Postgres' clock. */
export interface OutboxEntry {
  /** What the receiver gets as the delivery's id, at every attempt. */
  id: string;
  kind: string;
  run_id: string;
  target: Json;
  status: OutboxStatus;
  /** Tries so far, those before a requeue included. */
  attempts: number;
  /** Why the last try failed, in our own words; null after none or a good one. */
  last_error: string | null;
  created_at: string;
  /** When it is tried next; null when it is not pending. */
  next_attempt_at: string | null;
  /** When it was delivered or given up; null while it is pending. */
  ended_at: string | null;
}

interface EntryRow extends Omit<OutboxEntry, 'created_at' | 'next_attempt_at' | 'ended_at'> {
  created_at: Date;
  next_attempt_at: Date | null;
  ended_at: Date | null;
}

const FIELDS = `
  id, kind, run_id, target, status, attempts, last_error, created_at, ended_at,
  case status when 'pending' then greatest(available_at, leased_until) end as next_attempt_at`;

function toEntry(row: EntryRow): OutboxEntry {
  return {
    id: row.id,
    kind: row.kind,
    run_id: row.run_id,
    target: row.target,
    status: row.status,
    attempts: row.attempts,
    last_error: row.last_error,
    created_at: row.created_at.toISOString(),
    next_attempt_at: row.next_attempt_at?.toISOString() ?? null,
    ended_at: row.ended_at?.toISOString() ?? null,
  };
}

const LIST = `
  select ${FIELDS}, to_char(created_at at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') as position
  from outbox
  where owner = $1 and ($2::text is null or status = $2)
    and ($3::timestamptz is null or (created_at, id) < ($3::timestamptz, $4::uuid))
  order by created_at desc, id desc
  limit $5`;

/**
 * The owner's effects, newest first.
 * @param page.cursor `next_cursor` of the page before
 * @throws INVALID_CURSOR
 */
export async function listOutbox(
  pool: Pool,
  owner: string,
  page: { status?: OutboxStatus | undefined; limit: number; cursor?: string | undefined },
): Promise<{ entries: OutboxEntry[]; next_cursor: string | null }> {
  const from = page.cursor === undefined ? null : decodePosition(page.cursor);
  // One more than asked tells whether there is a next page.
  const { rows } = await pool.query<EntryRow & { position: string }>(LIST, [
    owner,
    page.status ?? null,
    from?.createdAt ?? null,
    from?.id ?? null,
    page.limit + 1,
  ]);
  const shown = rows.slice(0, page.limit);
  const last = shown.at(-1);
  const more = rows.length > shown.length && last !== undefined;
  return { entries: shown.map(toEntry), next_cursor: more ? encodePosition(last.position, last.id) : null };
}

// Its tries start to count anew, but `attempts` goes on: an old delivery that comes back must not pass for a new one.
const REQUEUE = `
  update outbox
  set status = 'pending', ended_at = null, available_at = clock_timestamp(), forgiven = attempts
  where id = $1::uuid and owner = $2
    -- guard: given up
    and status = 'dead'
  returning ${FIELDS}`;
const ONE = `select ${FIELDS} from outbox where id = $1::uuid and owner = $2`;

/**
 * dead -> pending, due now, with all its attempts before it. An effect that is not dead is left as it is.
 * @returns the effect as it is now and whether it was queued again; null when the owner has no such effect
 */
export async function requeue(
  pool: Pool,
  owner: string,
  id: string,
): Promise<{ entry: OutboxEntry; requeued: boolean } | null> {
  const again = await pool.query<EntryRow>(REQUEUE, [id, owner]);
  if (again.rows[0] !== undefined) return { entry: toEntry(again.rows[0]), requeued: true };
  const as = await pool.query<EntryRow>(ONE, [id, owner]);
  return as.rows[0] === undefined ? null : { entry: toEntry(as.rows[0]), requeued: false };
}

const POSITION = /^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z) ([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})$/;

function encodePosition(createdAt: string, id: string): string {
  return Buffer.from(`${createdAt} ${id}`).toString('base64url');
}

function decodePosition(cursor: string): { createdAt: string; id: string } {
  const [, createdAt, id] = POSITION.exec(Buffer.from(cursor, 'base64url').toString()) ?? [];
  if (createdAt === undefined || id === undefined || Number.isNaN(Date.parse(createdAt))) {
    throw new RunledgerError('INVALID_CURSOR', 'This is not a cursor of the outbox.', { path: 'cursor' });
  }
  return { createdAt, id };
}

const FORGET = `
  delete from outbox
  where id in (
    select id from outbox
    where status = $1 and ended_at < clock_timestamp() - $2 * interval '1 ms'
    limit $3
    for update skip locked)`;
// They were still to be delivered when their run was deleted; what was settled by then went with the run.
const FORGET_GONE = `
  delete from outbox
  where id in (select id from outbox where run_gone and status <> 'pending' limit $1 for update skip locked)`;

/**
 * Deletes settled effects that were kept long enough, and those whose run is deleted. Safe on every process at once.
 * @param limit at most so many of each sort
 * @returns how many were deleted
 */
export async function forgetSettled(
  pool: Pool,
  keep: { deliveredMs: number; deadMs: number },
  limit: number,
): Promise<number> {
  const results = [
    await pool.query(FORGET, ['delivered', keep.deliveredMs, limit]),
    await pool.query(FORGET, ['dead', keep.deadMs, limit]),
    await pool.query(FORGET_GONE, [limit]),
  ];
  return results.reduce((sum, { rowCount }) => sum + (rowCount ?? 0), 0);
}

const UNSETTLED = `
  select count(*) filter (where status = 'pending')::int as pending, count(*) filter (where status = 'dead')::int as dead
  from outbox where status in ('pending', 'dead')`;

/** How many effects wait to be delivered, and how many were given up and wait for a person. For /metrics. */
export async function countUnsettled(pool: Pool): Promise<{ pending: number; dead: number }> {
  const { rows } = await pool.query<{ pending: number; dead: number }>(UNSETTLED);
  return rows[0] ?? { pending: 0, dead: 0 };
}
