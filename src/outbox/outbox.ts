/**
 * Effects that must follow the end of a run, as rows. They are inserted in the transaction that ends the run, so they
 * exist exactly when the end does; they are delivered at least once, under one id; and the outcome of a delivery is stored
 * by the process that still owns it, or by nobody. All time is Postgres' time.
 */
import { randomInt, randomUUID } from 'node:crypto';
import type { Json } from '#src/events/event.ts';
import type { Pool, Tx } from '#src/postgres/pool.ts';

/** What is to happen once the surrounding transaction is committed. */
export interface Effect {
  /** Names the handler that delivers it. A run has at most one effect of a kind. */
  kind: string;
  owner: string;
  runId: string;
  payload: Json;
  target: Json;
  /** Effects of one lane share a limit of deliveries at a time: name the target, as far as its slowness is shared. */
  lane: string;
}

const ENQUEUE = `
  insert into outbox (id, kind, owner, run_id, payload, target, lane)
  values ($1::uuid, $2, $3, $4::uuid, $5::json, $6::json, $7)
  on conflict (run_id, kind) do nothing`;

/** Adds an effect to a transaction. The first of a run and kind stays; a repetition changes nothing. */
export async function enqueue(tx: Tx, effect: Effect): Promise<void> {
  await tx.query(ENQUEUE, [
    randomUUID(),
    effect.kind,
    effect.owner,
    effect.runId,
    JSON.stringify(effect.payload),
    JSON.stringify(effect.target),
    effect.lane,
  ]);
}

/** An effect in the hands of this process, until its lease runs out. */
export interface Delivery {
  /** The same at every delivery of this effect. */
  id: string;
  kind: string;
  run_id: string;
  lane: string;
  /** The payload as stored, byte for byte. */
  body: string;
  target: Json;
  /** With the id: the fence of its settlement. */
  attempts: number;
  /** This attempt's number among those that count, from 1. */
  attempt: number;
  /** When it was taken, in whole seconds since 1970. */
  taken_at: number;
}

// The lanes with something to do are found by one index probe each, however long the queue of a lane is. Of each lane
// only as many rows are looked at as it has room for: a lane that is full or long leaves the others their share.
const TAKE = `
  with recursive lanes as (
    (select lane from outbox where status = 'pending' order by lane limit 1)
    union all
    select (select o.lane from outbox o where o.status = 'pending' and o.lane > lanes.lane order by o.lane limit 1)
    from lanes where lanes.lane is not null),
  due as materialized (
    select first.id
    from lanes
    left join unnest($3::text[], $4::int[]) as busy(lane, deliveries) on busy.lane = lanes.lane
    cross join lateral (
      select o.id, o.available_at from outbox o
      where o.status = 'pending' and o.lane = lanes.lane and o.kind = any($1::text[])
        and o.available_at <= (select clock_timestamp())
        -- guard: nobody has it, or whoever had it let its lease run out
        and (o.leased_until is null or o.leased_until <= (select clock_timestamp()))
      order by o.available_at
      limit greatest($5 - coalesce(busy.deliveries, 0), 0)
      for no key update skip locked) first
    order by first.available_at
    limit $2)
  update outbox o
  set attempts = o.attempts + 1, leased_until = clock_timestamp() + $6 * interval '1 ms'
  from due
  where o.id = due.id
  returning o.id, o.kind, o.run_id, o.lane, o.payload::text as body, o.target, o.attempts,
            o.attempts - o.forgiven as attempt, floor(extract(epoch from clock_timestamp()))::float8 as taken_at`;

export interface TakeLimits {
  /** Kinds this process can deliver; others are left to processes that can. */
  kinds: string[];
  limit: number;
  /** Deliveries at a time of one lane in this process; `busy` is how many each has now. */
  perLane: number;
  busy: ReadonlyMap<string, number>;
  leaseMs: number;
}

/** Takes up to `limit` effects that are due, each for `leaseMs`. Two processes at once never take the same. */
export async function takeDue(pool: Pool, limits: TakeLimits): Promise<Delivery[]> {
  const { rows } = await pool.query<Delivery>({
    name: 'outbox_take',
    text: TAKE,
    values: [
      limits.kinds,
      limits.limit,
      [...limits.busy.keys()],
      [...limits.busy.values()],
      limits.perLane,
      limits.leaseMs,
    ],
  });
  return rows;
}

/**
 * How a delivery went. retry: not this time; dead: never again, until a person asks for it; released: it was cut short
 * for a reason of ours and does not count. `error` is shown to the owner, so it is in our own words.
 */
export type Settlement =
  | { outcome: 'delivered' }
  | { outcome: 'retry'; error: string; delayMs: number }
  | { outcome: 'dead'; error: string }
  | { outcome: 'released' };

const SETTLE = `
  update outbox
  set status = case $3 when 'delivered' then 'delivered' when 'dead' then 'dead' else 'pending' end,
      ended_at = case when $3 in ('delivered', 'dead') then clock_timestamp() end,
      last_error = case $3 when 'delivered' then null when 'released' then last_error else $4 end,
      available_at = case $3 when 'retry' then clock_timestamp() + $5 * interval '1 ms' else available_at end,
      forgiven = case $3 when 'released' then forgiven + 1 else forgiven end,
      leased_until = null
  where id = $1::uuid
    -- guard: still this delivery's; not taken again since, and not settled before
    and attempts = $2 and status = 'pending' and leased_until is not null`;

/**
 * Stores how a delivery went, once. Guard: `(id, attempts)`. Lost race (the lease ran out and another process took the
 * effect, or this delivery was settled before): nothing is written.
 * @returns whether it was stored
 */
export async function settle(
  pool: Pool,
  delivery: Pick<Delivery, 'id' | 'attempts'>,
  settlement: Settlement,
): Promise<boolean> {
  const { rowCount } = await pool.query({
    name: 'outbox_settle',
    text: SETTLE,
    values: [
      delivery.id,
      delivery.attempts,
      settlement.outcome,
      'error' in settlement ? settlement.error : null,
      settlement.outcome === 'retry' ? Math.round(settlement.delayMs) : 0,
    ],
  });
  return rowCount === 1;
}

const FIRST_CEILING_MS = 5_000;
const GROWTH = 3;
const LAST_CEILING_MS = 6 * 3_600_000;

/** The longest pause after a failed attempt (from 1), in ms: 5 s, three times as long each time, at most 6 hours. */
export function backoffCeilingMs(attempt: number): number {
  return Math.min(LAST_CEILING_MS, FIRST_CEILING_MS * GROWTH ** (attempt - 1));
}

/** A pause after a failed attempt, in ms: anything up to the ceiling, so that many failures do not come back at once. */
export function backoffMs(attempt: number): number {
  return randomInt(backoffCeilingMs(attempt) + 1);
}
