/** Everything the bench runs on, started for it and gone with it: Postgres from npm, Redis if there is one, and processes. */
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { stringify } from 'yaml';
import { migrate } from '#src/postgres/migrate.ts';
import { query, startPostgres } from '#tests/support/postgres.ts';
import { redisProgram, startRedis } from '#tests/support/redis.ts';
import type { Client } from './client.ts';
import type { Ask } from './ipc.ts';
import { file, launch, launchServer, type Process, type ServerProcess } from './processes.ts';

export interface Bench {
  /** Which services it runs on, for the report. */
  readonly services: { postgres: string; log: string };
  /** A migrated database of its own, without a server on it. */
  readonly quietDatabaseUrl: string;
  /** The server: its API, and the probe inside it. */
  readonly client: Client;
  readonly server: Ask;
  /** The bare loop, and the probe inside it. */
  readonly bare: Ask;
  readonly eventPath: Ask;
  /** A server that has done nothing yet, on a database of its own or on that of another; to be stopped by the caller. */
  freshServer(beside?: ServerProcess): Promise<ServerProcess>;
  /** Bytes of WAL written so far. */
  walBytes(): Promise<number>;
  stop(): Promise<void>;
}

const GRAPHS = ['chat', 'trivial', 'notes', 'deltaNotes', 'burst'];

type Undo = (() => Promise<unknown>)[];

/** @param options.fsync whether a commit waits for the disk */
export async function startBench(options: { fsync: boolean }): Promise<Bench> {
  const undo: Undo = [];
  const stop = async (): Promise<void> => {
    for (const step of undo.splice(0).reverse()) await step();
  };
  try {
    return { ...(await start(options, undo)), stop };
  } catch (error) {
    await stop();
    throw error;
  }
}

async function start(options: { fsync: boolean }, undo: Undo): Promise<Omit<Bench, 'stop'>> {
  const directory = await mkdtemp(join(tmpdir(), 'runledger-bench-'));
  undo.push(() => rm(directory, { recursive: true, force: true }));
  const fsync = options.fsync ? 'on' : 'off';
  const postgres = await startPostgres([`fsync=${fsync}`]);
  undo.push(() => postgres.stop());
  const redis = redisProgram() === null ? null : await startRedis();
  undo.push(async () => redis?.stop());
  const redisEnv: Record<string, string> = redis === null ? {} : { REDIS_URL: redis.url };
  const started = <T extends Process>(child: T): T => {
    undo.push(() => child.stop());
    return child;
  };

  const model = started(launch('model.ts', { name: 'model', directory, env: {} }));
  const modelEnv = { OPENAI_BASE_URL: await model.ask<string>('url') };
  const bareEnv = { BARE_DATABASE_URL: await database(postgres.url, 'bare'), ...modelEnv };
  const bare = started(launch('bare.ts', { name: 'bare', directory, env: bareEnv }));
  await bare.ask('setup');
  const eventPath = started(launch('event-path.ts', { name: 'event-path', directory, env: redisEnv }));
  const quietDatabaseUrl = await database(postgres.url, 'quiet');
  await migrate({ databaseUrl: quietDatabaseUrl });

  const config = join(directory, 'config.yaml');
  const graphs = Object.fromEntries(GRAPHS.map((name) => [name, `${file('graphs.ts')}:${name}`]));
  // Comments in silence would make the bytes of two readers of one run differ.
  await writeFile(config, stringify({ graphs, server: { sse_keepalive_interval: '60s' } }));
  let servers = 0;
  const databases = new WeakMap<ServerProcess, string>();
  async function freshServer(beside?: ServerProcess): Promise<ServerProcess> {
    servers += 1;
    const name = `server_${servers}`;
    const url = (beside && databases.get(beside)) ?? (await database(postgres.url, name));
    const env = { DATABASE_URL: url, ...redisEnv, ...modelEnv };
    const fresh = await launchServer({ name, directory, config, env });
    databases.set(fresh, url);
    return fresh;
  }
  const server = started(await freshServer());

  return {
    services: {
      postgres: `embedded PostgreSQL, fsync ${fsync}`,
      log: redis === null ? 'in-process event log (no redis-server on the PATH)' : 'Redis',
    },
    quietDatabaseUrl,
    client: server.client,
    server: server.ask,
    bare: bare.ask,
    eventPath: eventPath.ask,
    freshServer,
    async walBytes() {
      const { rows } = await query(postgres.url, `select pg_current_wal_insert_lsn() - '0/0'::pg_lsn as bytes`);
      return Number(rows[0].bytes);
    },
  };
}

async function database(adminUrl: string, name: string): Promise<string> {
  await query(adminUrl, `create database ${name} template template0 encoding 'UTF8'`);
  const url = new URL(adminUrl);
  url.pathname = `/${name}`;
  return url.href;
}
