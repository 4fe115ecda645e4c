-- Up Migration

-- LangGraph's checkpoint tables in the shape its Postgres saver knows, so that a database that already holds
-- checkpoints of that saver keeps them. `thread_id` here is a lineage's id.

create table if not exists checkpoint_migrations (v integer primary key);
create table if not exists checkpoints (
  thread_id text not null,
  checkpoint_ns text not null default '',
  checkpoint_id text not null,
  parent_checkpoint_id text,
  type text,
  checkpoint jsonb not null,
  metadata jsonb not null default '{}',
  primary key (thread_id, checkpoint_ns, checkpoint_id)
);
create table if not exists checkpoint_blobs (
  thread_id text not null,
  checkpoint_ns text not null default '',
  channel text not null,
  version text not null,
  type text not null,
  blob bytea,
  primary key (thread_id, checkpoint_ns, channel, version)
);
create table if not exists checkpoint_writes (
  thread_id text not null,
  checkpoint_ns text not null default '',
  checkpoint_id text not null,
  task_id text not null,
  idx integer not null,
  channel text not null,
  type text,
  blob bytea not null,
  primary key (thread_id, checkpoint_ns, checkpoint_id, task_id, idx)
);
alter table checkpoint_blobs alter column blob drop not null;
insert into checkpoint_migrations (v) select generate_series(0, 4) on conflict do nothing;

-- Down Migration

drop table checkpoint_writes, checkpoint_blobs, checkpoints, checkpoint_migrations;
