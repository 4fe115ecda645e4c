-- Up Migration

-- What graphs and clients keep beyond a thread: items under a namespace, which is a path of labels. jsonb, because searches
-- look inside; characters that it refuses are replaced before.
create table store_items (
  owner text not null,
  namespace text[] not null check (cardinality(namespace) > 0),
  key text not null,
  value jsonb not null,
  created_at timestamptz not null default clock_timestamp(),
  updated_at timestamptz not null default clock_timestamp(),
  -- how long it lives without being read or written; null: for ever
  ttl interval,
  expires_at timestamptz,
  primary key (owner, namespace, key),
  check ((ttl is null) = (expires_at is null))
);
create index store_items_recent on store_items (owner, updated_at desc);
create index store_items_expiry on store_items (expires_at) where expires_at is not null;

-- Down Migration

drop table store_items;
