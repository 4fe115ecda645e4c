-- Up Migration

-- A schedule by which a run is asked for again and again. It outlives its thread and its assistant: what cannot be admitted
-- at one slot may be at the next, and only its owner ends it.
create table crons (
  id uuid primary key,
  owner text not null,
  assistant_id uuid not null,
  -- null: each run gets a thread of its own
  thread_id uuid,
  schedule text not null,
  -- IANA; null is UTC
  timezone text,
  -- no slot after it is fired
  end_time timestamptz,
  enabled boolean not null default true,
  on_run_completed text check (on_run_completed in ('delete', 'keep')),
  -- the request for a run, as the dialect that made it will read it again
  payload json not null,
  metadata jsonb not null default '{}'::jsonb,
  -- the slot that comes next, or was missed; null: none does
  next_run_date timestamptz,
  created_at timestamptz not null default clock_timestamp(),
  updated_at timestamptz not null default clock_timestamp(),
  check (enabled or next_run_date is null),
  check ((thread_id is null) = (on_run_completed is not null))
);
create index crons_owner on crons (owner, created_at desc);
create index crons_due on crons (next_run_date) where next_run_date is not null;

-- Down Migration

drop table crons;
