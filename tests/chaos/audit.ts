/**
 * What the database itself saw, beside the server's tables: every change of a run's status or epoch, and every write of a
 * checkpoint with the epoch the run had at that moment and the process that wrote. Nothing of it is read by the server.
 */
import { query } from '#tests/support/postgres.ts';

const AUDIT = `
  create schema chaos;
  create table chaos.status (
    seq bigint generated always as identity, at timestamptz not null default clock_timestamp(), run_id uuid not null,
    from_status text, to_status text not null, from_epoch integer, to_epoch integer not null, worker_id uuid, writer text);
  create table chaos.write (
    seq bigint generated always as identity, at timestamptz not null default clock_timestamp(), run_id uuid not null,
    kind text not null, checkpoint_id text not null, parent_id text, ns text not null, step integer, source text,
    epoch integer, worker_id uuid, writer text);
  create table chaos.worker (id uuid primary key, pid integer not null);

  create function chaos.writer() returns text language sql stable as
    $$ select substring(current_setting('application_name') from 'pid=(\\d+)') $$;

  create function chaos.note_status() returns trigger language plpgsql as $$
  begin
    if tg_op = 'INSERT' then
      insert into chaos.status (run_id, to_status, to_epoch, worker_id, writer)
      values (new.id, new.status, new.epoch, new.worker_id, chaos.writer());
    elsif new.status <> old.status or new.epoch <> old.epoch then
      insert into chaos.status (run_id, from_status, to_status, from_epoch, to_epoch, worker_id, writer)
      values (new.id, old.status, new.status, old.epoch, new.epoch, coalesce(new.worker_id, old.worker_id), chaos.writer());
    end if;
    return null;
  end $$;
  create trigger chaos_status after insert or update on runs for each row execute function chaos.note_status();

  create function chaos.note_checkpoint() returns trigger language plpgsql as $$
  begin
    insert into chaos.write (run_id, kind, checkpoint_id, parent_id, ns, step, source, epoch, worker_id, writer)
    select new.run_id, 'checkpoint', new.checkpoint_id, new.parent_checkpoint_id, new.checkpoint_ns, (new.metadata ->> 'step')::integer,
           new.metadata ->> 'source', r.epoch, r.worker_id, chaos.writer()
    from (select 1) as one left join runs r on r.id = new.run_id;
    return null;
  end $$;
  create trigger chaos_checkpoint after insert or update on checkpoints
    for each row when (new.run_id is not null) execute function chaos.note_checkpoint();

  create function chaos.note_write() returns trigger language plpgsql as $$
  begin
    insert into chaos.write (run_id, kind, checkpoint_id, ns, epoch, worker_id, writer)
    select new.run_id, 'write', new.checkpoint_id, new.checkpoint_ns, r.epoch, r.worker_id, chaos.writer()
    from (select 1) as one left join runs r on r.id = new.run_id;
    return null;
  end $$;
  create trigger chaos_write after insert or update on checkpoint_writes
    for each row when (new.run_id is not null) execute function chaos.note_write();

  create function chaos.note_worker() returns trigger language plpgsql as $$
  begin
    insert into chaos.worker (id, pid) values (new.id, new.pid) on conflict do nothing;
    return null;
  end $$;
  create trigger chaos_worker after insert on workers for each row execute function chaos.note_worker();
`;

/** Adds the audit to a migrated database. */
export async function addAudit(databaseUrl: string): Promise<void> {
  await query(databaseUrl, AUDIT);
}
