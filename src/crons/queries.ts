/** The statements of crons. */
import type { JsonObject } from '#src/events/event.ts';
import type { Queryable, Tx } from '#src/postgres/pool.ts';
import type { Cron, CronFilter, CronPage } from './cron.ts';

interface CronRow extends Omit<Cron, 'end_time' | 'next_run_date' | 'created_at' | 'updated_at'> {
  end_time: Date | null;
  next_run_date: Date | null;
  created_at: Date;
  updated_at: Date;
}

const COLUMNS = `
  id, owner, assistant_id, thread_id, schedule, timezone, end_time, enabled, on_run_completed, payload, metadata,
  next_run_date, created_at, updated_at`;

function toCron(row: CronRow): Cron {
  return {
    id: row.id,
    owner: row.owner,
    assistant_id: row.assistant_id,
    thread_id: row.thread_id,
    schedule: row.schedule,
    timezone: row.timezone,
    end_time: row.end_time?.toISOString() ?? null,
    enabled: row.enabled,
    on_run_completed: row.on_run_completed,
    payload: row.payload,
    metadata: row.metadata,
    next_run_date: row.next_run_date?.toISOString() ?? null,
    created_at: row.created_at.toISOString(),
    updated_at: row.updated_at.toISOString(),
  };
}

export async function postgresNow(db: Queryable): Promise<Date> {
  const { rows } = await db.query<{ now: Date }>('select clock_timestamp() as now');
  if (rows[0] === undefined) throw new Error('Postgres did not say what time it is');
  return rows[0].now;
}

const INSERT = `
  insert into crons (id, owner, assistant_id, thread_id, schedule, timezone, end_time, enabled, on_run_completed, payload,
                     metadata, next_run_date)
  values ($1::uuid, $2, $3::uuid, $4::uuid, $5, $6, $7::timestamptz, $8, $9, $10::json, $11::jsonb, $12::timestamptz)
  returning ${COLUMNS}`;

export async function insertCron(
  db: Queryable,
  cron: Omit<Cron, 'created_at' | 'updated_at' | 'next_run_date'> & { next: Date | null },
): Promise<Cron> {
  const { rows } = await db.query<CronRow>(INSERT, [
    cron.id,
    cron.owner,
    cron.assistant_id,
    cron.thread_id,
    cron.schedule,
    cron.timezone,
    cron.end_time,
    cron.enabled,
    cron.on_run_completed,
    JSON.stringify(cron.payload),
    JSON.stringify(cron.metadata),
    cron.next,
  ]);
  if (rows[0] === undefined) throw new Error('a cron was not inserted');
  return toCron(rows[0]);
}

const ONE = `select ${COLUMNS} from crons where id = $1::uuid and owner = $2`;

/** The owner's cron; null when there is none. */
export async function selectCron(db: Queryable, owner: string, id: string): Promise<Cron | null> {
  const { rows } = await db.query<CronRow>(ONE, [id, owner]);
  return rows[0] === undefined ? null : toCron(rows[0]);
}

const LOCK = `select ${COLUMNS} from crons where id = $1::uuid and owner = $2 for no key update`;

/** The owner's cron, locked for the rest of the transaction; null when there is none. */
export async function lockCron(tx: Tx, owner: string, id: string): Promise<Cron | null> {
  const { rows } = await tx.query<CronRow>(LOCK, [id, owner]);
  return rows[0] === undefined ? null : toCron(rows[0]);
}

const CHANGE = `
  update crons
  set schedule = $2, timezone = $3, end_time = $4::timestamptz, enabled = $5, on_run_completed = $6, payload = $7::json,
      metadata = $8::jsonb, next_run_date = $9::timestamptz, updated_at = clock_timestamp()
  where id = $1::uuid
  returning ${COLUMNS}`;

/** Stores what may change of a cron. The caller holds its row. */
export async function changeCron(tx: Tx, cron: Cron, next: Date | null): Promise<Cron> {
  const { rows } = await tx.query<CronRow>(CHANGE, [
    cron.id,
    cron.schedule,
    cron.timezone,
    cron.end_time,
    cron.enabled,
    cron.on_run_completed,
    JSON.stringify(cron.payload),
    JSON.stringify(cron.metadata),
    next,
  ]);
  if (rows[0] === undefined) throw new Error(`cron ${cron.id} slipped away under its lock`);
  return toCron(rows[0]);
}

/** Returns whether there was such a cron. */
export async function deleteCron(db: Queryable, owner: string, id: string): Promise<boolean> {
  const { rowCount } = await db.query('delete from crons where id = $1::uuid and owner = $2', [id, owner]);
  return rowCount === 1;
}

const FILTER = `
  owner = $1 and ($2::uuid is null or assistant_id = $2::uuid) and ($3::uuid is null or thread_id = $3::uuid)
  and ($4::boolean is null or enabled = $4) and ($5::jsonb is null or metadata @> $5::jsonb)
  and metadata @> all($6::jsonb[])`;

function filterValues(owner: string, filter: CronFilter): unknown[] {
  const metadata: JsonObject | undefined = filter.metadata;
  return [
    owner,
    filter.assistant_id ?? null,
    filter.thread_id ?? null,
    filter.enabled ?? null,
    metadata === undefined ? null : JSON.stringify(metadata),
    (filter.within ?? []).map((wanted) => JSON.stringify(wanted)),
  ];
}

const ORDER: Record<CronPage['sort_by'], string> = {
  cron_id: 'id',
  assistant_id: 'assistant_id',
  thread_id: 'thread_id',
  created_at: 'created_at',
  updated_at: 'updated_at',
  next_run_date: 'next_run_date',
};

export async function selectCrons(db: Queryable, owner: string, page: CronPage): Promise<Cron[]> {
  const order = `${ORDER[page.sort_by]} ${page.sort_order === 'asc' ? 'asc' : 'desc'} nulls last, id`;
  const { rows } = await db.query<CronRow>(
    `select ${COLUMNS} from crons where ${FILTER} order by ${order} limit $7 offset $8`,
    [...filterValues(owner, page), page.limit, page.offset],
  );
  return rows.map(toCron);
}

const COUNT = `select count(*)::int as total from crons where ${FILTER}`;

export async function countCrons(db: Queryable, owner: string, filter: CronFilter): Promise<number> {
  const { rows } = await db.query<{ total: number }>(COUNT, filterValues(owner, filter));
  return rows[0]?.total ?? 0;
}

/** A cron whose time has come. */
export interface DueCron extends Cron {
  /** Its `next_run_date`, as it is stored. */
  due: Date;
  now: Date;
}

const DUE = `
  select ${COLUMNS}, clock_timestamp() as now from crons
  where next_run_date <= (select clock_timestamp())
  order by next_run_date
  limit $1`;

export async function selectDue(db: Queryable, limit: number): Promise<DueCron[]> {
  const { rows } = await db.query<CronRow & { now: Date }>({ name: 'crons_due', text: DUE, values: [limit] });
  return rows.flatMap((row) =>
    row.next_run_date === null ? [] : [{ ...toCron(row), due: row.next_run_date, now: row.now }],
  );
}

const MS_TO_NEXT = `
  select (extract(epoch from (min(next_run_date) - clock_timestamp())) * 1000)::float8 as ms from crons`;

/** How long until the next slot of any cron, in ms, below 0 when one is due; null when there is none. */
export async function msToNextSlot(db: Queryable): Promise<number | null> {
  const { rows } = await db.query<{ ms: number | null }>({ name: 'crons_next', text: MS_TO_NEXT, values: [] });
  return rows[0]?.ms ?? null;
}

const TAKE = `
  update crons set next_run_date = $3::timestamptz
  where id = (select c.id from crons c where c.id = $1::uuid for no key update skip locked)
    -- guard: nobody has fired or changed it since it was found due
    and next_run_date = $2::timestamptz`;

/**
 * Takes a slot that is due and sets the next date. Guard: the date is still the one that was seen; one that another process
 * holds is left to it.
 * @returns whether the slot is the caller's
 */
export async function takeSlot(tx: Queryable, id: string, due: Date, next: Date | null): Promise<boolean> {
  const { rowCount } = await tx.query({ name: 'crons_take', text: TAKE, values: [id, due, next] });
  return rowCount === 1;
}
