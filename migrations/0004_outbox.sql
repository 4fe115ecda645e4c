-- Up Migration

-- Effects that must follow the end of a run. A row is inserted in the transaction that ends the run, and delivered by any
-- process at least once; `id` is the same at every delivery. There is no foreign key to the run: what was promised when it
-- ended outlives its deletion, until it is delivered or given up.
create table outbox (
  id uuid primary key,
  kind text not null,
  owner text not null,
  run_id uuid not null,
  -- what is sent, byte for byte
  payload json not null,
  -- where it goes, in the words of its kind
  target json not null,
  -- rows of one lane share a limit of deliveries at a time, so that a slow target delays only itself
  lane text not null,
  status text not null default 'pending' check (status in ('pending', 'delivered', 'dead')),
  -- how often it was taken; with the id it is the fence of the settlement, so it never goes down
  attempts integer not null default 0,
  -- attempts that do not count: those before a requeue, and those that a shutdown cut short
  forgiven integer not null default 0 check (forgiven <= attempts),
  available_at timestamptz not null default clock_timestamp(),
  -- until when the delivery belongs to the process that took it; null while nobody has it
  leased_until timestamptz,
  -- our own words, never those of the target
  last_error text,
  -- the run is deleted: the row goes with it as soon as it is settled
  run_gone boolean not null default false,
  created_at timestamptz not null default clock_timestamp(),
  -- when it was delivered or given up
  ended_at timestamptz,
  unique (run_id, kind),
  check ((status = 'pending') = (ended_at is null)),
  check (status = 'pending' or leased_until is null)
);
create index outbox_due on outbox (lane, available_at) where status = 'pending';
create index outbox_settled on outbox (status, ended_at) where status <> 'pending';
create index outbox_gone on outbox (id) where run_gone;
create index outbox_owner on outbox (owner, created_at desc, id desc);

-- Whoever deletes a run (or its thread) deletes what was said about it, whichever way that happens.
create function outbox_forget() returns trigger language plpgsql as $$
begin
  delete from outbox o using gone where o.run_id = gone.id and o.status <> 'pending';
  update outbox o set run_gone = true from gone where o.run_id = gone.id;
  return null;
end $$;
create trigger runs_outbox after delete on runs referencing old table as gone
  for each statement execute function outbox_forget();

-- Where a run's end is told.
alter table runs add column webhook text;

-- Old checkpoints are removed up to here: nothing is looked at again before the lineage has grown. `kept_extra` is how
-- many more than the configured number had to stay, because newer ones are built from them.
alter table lineages add column pruned_seq bigint not null default 0, add column kept_extra integer not null default 0;

-- Down Migration

alter table lineages drop column pruned_seq, drop column kept_extra;
alter table runs drop column webhook;
drop trigger runs_outbox on runs;
drop function outbox_forget();
drop table outbox;
