-- Up Migration

-- The ledger: Postgres is the truth about every run. `json` (not jsonb) holds what models and tools produce and people
-- write, because jsonb refuses NUL and lone surrogates; jsonb only where a query looks inside.

create table threads (
  id uuid primary key,
  owner text not null,
  title text,
  graph_id text,
  metadata jsonb not null default '{}'::jsonb,
  archived boolean not null default false,
  pinned boolean not null default false,
  -- the ordinal of the newest run; counted here so that admission, which holds the thread row, needs no max()
  run_count integer not null default 0,
  turn_count integer not null default 0,
  created_at timestamptz not null default clock_timestamp(),
  updated_at timestamptz not null default clock_timestamp(),
  -- the newest message or end of a run; the order of the list
  active_at timestamptz not null default clock_timestamp()
);
create index threads_recent on threads (owner, active_at desc, id desc);

-- A chain of checkpoints = LangGraph's thread_id. `tip_checkpoint_id` is where it stands.
create table lineages (
  id uuid primary key,
  thread_id uuid not null references threads on delete cascade,
  -- set for a graph with context 'transcript' (a lineage per turn), null for the thread's own lineage
  turn_id uuid,
  -- null: never set (the newest counts); '': before the first checkpoint
  tip_checkpoint_id text,
  created_at timestamptz not null default clock_timestamp()
);
create index lineages_thread on lineages (thread_id);

create table turns (
  id uuid primary key,
  thread_id uuid not null references threads on delete cascade,
  ordinal integer not null,
  lineage_id uuid not null references lineages on delete cascade,
  created_at timestamptz not null default clock_timestamp(),
  unique (thread_id, ordinal)
);
alter table lineages add foreign key (turn_id) references turns on delete cascade;

create table workers (
  id uuid primary key,
  -- key of the session advisory lock the worker holds on its liveness connection
  lock_key bigint not null,
  host text not null,
  pid integer not null,
  log_kind text not null check (log_kind in ('redis', 'memory')),
  roles text[] not null,
  started_at timestamptz not null default clock_timestamp(),
  renewed_at timestamptz not null default clock_timestamp(),
  expires_at timestamptz not null,
  draining boolean not null default false
);

create table runs (
  id uuid primary key,
  owner text not null,
  thread_id uuid not null references threads on delete cascade,
  turn_id uuid references turns on delete cascade,
  lineage_id uuid not null references lineages on delete cascade,
  graph_id text not null,
  kind text not null check (kind in ('message', 'answer', 'rerun', 'plain', 'edit')),
  status text not null check (status in ('prepared', 'queued', 'running', 'succeeded', 'interrupted', 'failed', 'cancelled')),
  -- how often the run changed hands: the fencing token of every write made for it
  epoch integer not null default 0 check (epoch >= 0),
  -- admission order over all threads; kept when a run is put back
  seq bigint generated always as identity,
  ordinal integer not null,
  input json,
  command json,
  config json not null default '{}'::json,
  stream_modes text[] not null default '{}',
  durability text not null default 'sync' check (durability in ('sync', 'async', 'exit')),
  on_disconnect text not null default 'continue' check (on_disconnect in ('continue', 'cancel')),
  request_key text,
  request_hash text,
  -- the message that opened the run's turn, for the answer to a repeated request
  message_id uuid,
  available_at timestamptz not null default clock_timestamp(),
  worker_id uuid,
  takeovers integer not null default 0,
  -- where the lineage stood at the first claim ('' = before its first checkpoint); a rerun starts there
  base_checkpoint_id text,
  -- the run's checkpoint when it was last put back; progress since then forgives its takeovers
  progress_checkpoint_id text,
  retries integer not null default 0,
  cancel_requested_at timestamptz,
  cancel_action text check (cancel_action in ('interrupt', 'rollback')),
  -- {code, message, recovery} of a failed run
  error json,
  -- why a run was cancelled when it was not a person
  reason text,
  usage json,
  interrupts json not null default '[]'::json,
  -- cursor of the seal in the event log
  log_end bigint,
  hidden boolean not null default false,
  created_at timestamptz not null default clock_timestamp(),
  started_at timestamptz,
  ended_at timestamptz,
  unique (thread_id, ordinal),
  check ((status in ('succeeded', 'interrupted', 'failed', 'cancelled')) = (ended_at is not null)),
  check (kind = 'edit' or (log_end is not null) = (ended_at is not null)),
  check (status <> 'running' or worker_id is not null),
  check ((status = 'failed') = (error is not null)),
  check (request_key is null or request_hash is not null)
);
-- The last defence: two running runs never share a thread.
create unique index runs_one_running on runs (thread_id) where status = 'running';
create unique index runs_request_key on runs (owner, request_key) where request_key is not null;
create index runs_queue on runs (seq) where status = 'queued';
create index runs_owned on runs (worker_id) where status = 'running';
create index runs_live on runs (thread_id) where status in ('prepared', 'queued', 'running');
create index runs_ended on runs (ended_at) where ended_at is not null;
create index runs_lineage on runs (lineage_id);
create index runs_turn on runs (turn_id);

create table messages (
  id uuid primary key,
  thread_id uuid not null references threads on delete cascade,
  turn_id uuid not null references turns on delete cascade,
  run_id uuid not null references runs on delete cascade,
  seq bigint generated always as identity,
  role text not null check (role in ('user', 'assistant')),
  content json not null,
  -- the id the answer was streamed with
  stream_id text,
  partial boolean not null default false,
  replaced boolean not null default false,
  created_at timestamptz not null default clock_timestamp()
);
create index messages_turn on messages (turn_id, seq);
create index messages_thread on messages (thread_id, seq);

create table interrupts (
  lineage_id uuid not null references lineages on delete cascade,
  id text not null,
  thread_id uuid not null references threads on delete cascade,
  turn_id uuid references turns on delete cascade,
  -- the run that asked
  run_id uuid not null references runs on delete cascade,
  seq bigint generated always as identity,
  value json not null,
  status text not null default 'open' check (status in ('open', 'answered', 'closed')),
  -- the run that brings the answer
  answered_by uuid references runs on delete set null,
  created_at timestamptz not null default clock_timestamp(),
  primary key (lineage_id, id),
  check (status <> 'answered' or answered_by is not null)
);
create index interrupts_open on interrupts (thread_id) where status = 'open';

-- A terminal row never changes its status or its end; an epoch never goes down.
create function runs_guard() returns trigger language plpgsql as $$
begin
  if old.status in ('succeeded', 'interrupted', 'failed', 'cancelled')
     and (new.status <> old.status or new.epoch <> old.epoch or new.log_end is distinct from old.log_end) then
    raise exception 'run % is terminal (%)', old.id, old.status using errcode = 'check_violation';
  end if;
  if new.epoch < old.epoch then
    raise exception 'the epoch of run % would go down', old.id using errcode = 'check_violation';
  end if;
  return new;
end $$;
create trigger runs_guard before update on runs for each row execute function runs_guard();

-- Down Migration

drop table interrupts, messages, runs, workers, turns, lineages, threads cascade;
drop function runs_guard();
