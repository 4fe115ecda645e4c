/** Everything the server keeps about its threads, as JSON: written by one version, read by another. */
import { Redis } from 'ioredis';
import pg from 'pg';
import { logKey } from '#src/events/keys.ts';

/** In the order in which they can be filled. */
const TABLES = [
  'threads',
  'lineages',
  'turns',
  'runs',
  'messages',
  'interrupts',
  'checkpoints',
  'checkpoint_blobs',
  'checkpoint_writes',
  'outbox',
];

type Row = Record<string, unknown>;

export interface Snapshot {
  tables: Record<string, Row[]>;
  /** By Redis key: entries as [id, value in base64]. */
  streams: Record<string, [id: string, value: string][]>;
}

/** The rows of every table, and the logs of the runs. */
export async function takeSnapshot(databaseUrl: string, redisUrl: string): Promise<Snapshot> {
  const client = new pg.Client({ connectionString: databaseUrl });
  const redis = new Redis(redisUrl, { protocol: 2 });
  await client.connect();
  try {
    const tables: Snapshot['tables'] = {};
    for (const table of TABLES) {
      const { rows } = await client.query<{ row: Row }>(`select row_to_json(t) as row from ${table} t`);
      tables[table] = rows.map(({ row }) => row);
    }
    const streams: Snapshot['streams'] = {};
    for (const { id } of tables.runs ?? []) {
      const key = logKey(String(id));
      const entries = await redis.xrangeBuffer(key, '-', '+');
      streams[key] = entries.map(([entry, [, value]]) => [entry.toString(), value?.toString('base64') ?? '']);
    }
    return { tables, streams };
  } finally {
    await client.end();
    redis.disconnect();
  }
}

/** Puts a snapshot into an empty, migrated database, and its logs into Redis. Columns it does not know get their defaults. */
export async function loadSnapshot(snapshot: Snapshot, databaseUrl: string, redisUrl: string): Promise<void> {
  const client = new pg.Client({ connectionString: databaseUrl });
  const redis = new Redis(redisUrl, { protocol: 2 });
  await client.connect();
  try {
    // Lineages and turns name each other.
    await client.query(`begin; set local session_replication_role = replica`);
    for (const table of TABLES) await fill(client, table, snapshot.tables[table] ?? []);
    await client.query('commit');
    for (const [key, entries] of Object.entries(snapshot.streams)) {
      for (const [id, value] of entries) await redis.xadd(key, id, 'e', Buffer.from(value, 'base64'));
    }
  } finally {
    await client.end();
    redis.disconnect();
  }
}

async function fill(client: pg.Client, table: string, rows: Row[]): Promise<void> {
  const [first] = rows;
  if (first === undefined) return;
  const columns = Object.keys(first).join(', ');
  await client.query(
    `insert into ${table} (${columns}) overriding system value
     select ${columns} from json_populate_recordset(null::${table}, $1::json)`,
    [JSON.stringify(rows)],
  );
  if (!('seq' in first)) return;
  const sequence = `pg_get_serial_sequence('${table}', 'seq')`;
  await client.query(`select setval(${sequence}, (select max(seq) from ${table}))`);
}
