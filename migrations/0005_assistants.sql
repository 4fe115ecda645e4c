-- Up Migration

-- A graph with a configuration of its own. `owner` null: made by the server for each configured graph, seen by everybody
-- and changed by nobody.
create table assistants (
  id uuid primary key,
  owner text,
  graph_id text not null,
  -- the version in force; its content is repeated here
  version integer not null,
  name text not null,
  description text,
  config json not null,
  context json not null,
  metadata jsonb not null,
  created_at timestamptz not null default clock_timestamp(),
  updated_at timestamptz not null default clock_timestamp()
);
create index assistants_owner on assistants (owner, created_at desc);

create table assistant_versions (
  assistant_id uuid not null references assistants on delete cascade,
  version integer not null,
  graph_id text not null,
  name text not null,
  description text,
  config json not null,
  context json not null,
  metadata jsonb not null,
  created_at timestamptz not null default clock_timestamp(),
  primary key (assistant_id, version)
);

-- What its runs were configured with, merged; the graph is made from it when the state is read.
-- `temporary`: made for one run that named no thread; shown nowhere, and removed some time after the run's end.
alter table threads add column config json not null default '{}'::json, add column temporary boolean not null default false;
create index threads_temporary on threads (active_at) where temporary;

-- `wire`: what the dialect that admitted the run must know of its request to show it again. Nothing else reads it.
alter table runs add column assistant_id uuid, add column wire json;

-- Down Migration

alter table runs drop column assistant_id, drop column wire;
drop index threads_temporary;
alter table threads drop column config, drop column temporary;
drop table assistant_versions, assistants;
