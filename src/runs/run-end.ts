/** The end of a run as readers and the recovery need it: a few columns, however large what the run was started with. */
import type { Queryable } from '#src/postgres/pool.ts';
import type { RunRow } from './queries.ts';
import type { Run } from './run.ts';

export type RunEnd = Pick<Run, 'id' | 'epoch' | 'status' | 'error' | 'reason' | 'usage' | 'interrupts' | 'log_end'>;

type EndRow = Pick<RunRow, keyof RunEnd>;

const COLUMNS = 'id, epoch, status, error, reason, usage, interrupts, log_end';

function toRunEnd(row: EndRow): RunEnd {
  return { ...row, log_end: row.log_end === null ? null : Number(row.log_end) };
}

// Hidden ones too: who followed a run before it was rolled back is told its end.
const BY_IDS = `select ${COLUMNS} from runs where id = any($1::uuid[])`;

/** What can be said of the end of these runs, by id; those that are gone are missing. */
export async function findEnds(db: Queryable, runIds: string[]): Promise<Map<string, RunEnd>> {
  const { rows } = await db.query<EndRow>({ name: 'run_ends', text: BY_IDS, values: [runIds] });
  return new Map(rows.map((row) => [row.id, toRunEnd(row)]));
}

// Seen from the worker's last sign of life: while the log is away its row stays, however long that takes.
const ENDED_BY = `
  select ${COLUMNS} from runs
  where worker_id = $1::uuid and kind <> 'edit'
    and ended_at > coalesce((select w.renewed_at from workers w where w.id = $1::uuid), clock_timestamp()) - interval '5 minutes'`;

/** Runs that this worker had in hand and that ended a short time before it was last heard of. */
export async function endedBy(db: Queryable, workerId: string): Promise<RunEnd[]> {
  const { rows } = await db.query<EndRow>(ENDED_BY, [workerId]);
  return rows.map(toRunEnd);
}

const ENDED_WITHIN = `
  select 1 from runs where id = $1::uuid and ended_at > clock_timestamp() - $2 * interval '1 ms'`;

/** Whether the run ended less than this long ago, by Postgres' clock. */
export async function endedWithin(db: Queryable, runId: string, ms: number): Promise<boolean> {
  const { rows } = await db.query(ENDED_WITHIN, [runId, ms]);
  return rows.length > 0;
}
