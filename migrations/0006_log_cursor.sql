-- Up Migration

-- The greatest event id the run had given out when the checkpoint was written: everything its steps have told has an id up
-- to it. What of that is missing in the log of a run that is taken over never comes again. Null: not known.
alter table checkpoints add column log_cursor bigint;

-- Down Migration

alter table checkpoints drop column log_cursor;
