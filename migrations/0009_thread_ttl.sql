-- Up Migration

-- How long a thread is kept without activity, where its client says so, and what becomes of it then. The time begins with the
-- last activity, or when it was set. `ttl_swept`: the `active_at` for which the checkpoints have been pruned.
alter table threads
  add column ttl_minutes double precision check (ttl_minutes > 0),
  add column ttl_strategy text check (ttl_strategy in ('delete', 'keep_latest')),
  add column ttl_set_at timestamptz,
  add column ttl_swept timestamptz,
  add constraint threads_ttl_whole check (num_nonnulls(ttl_minutes, ttl_strategy, ttl_set_at) in (0, 3));
create index threads_ttl on threads (active_at) where ttl_minutes is not null;

-- Down Migration

drop index threads_ttl;
alter table threads
  drop constraint threads_ttl_whole, drop column ttl_minutes, drop column ttl_strategy, drop column ttl_set_at,
  drop column ttl_swept;
