-- Up Migration

-- What our saver adds to the checkpoint tables. Rows of the stock saver keep working: no run, no task path.

alter table checkpoints add column seq bigint generated always as identity, add column run_id uuid;
alter table checkpoint_writes add column task_path text not null default '', add column run_id uuid;
-- the newest of a namespace, by the order of writing and not by anybody's clock
create index checkpoints_order on checkpoints (thread_id, checkpoint_ns, seq desc);

-- Down Migration

drop index checkpoints_order;
alter table checkpoint_writes drop column task_path, drop column run_id;
alter table checkpoints drop column seq, drop column run_id;
