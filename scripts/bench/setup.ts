/** Everything the bench runs on, started for it and gone with it: Postgres from npm, Redis if there is one, and processes. */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { closeSync, openSync, readFileSync } from 'node:fs';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { stringify } from 'yaml';
import { freePort } from '#src/postgres/free-port.ts';
import { migrate } from '#src/postgres/migrate.ts';
import { query, startPostgres } from '#tests/support/postgres.ts';
import { redisProgram, startRedis } from '#tests/support/redis.ts';
import { type Client, createClient } from './client.ts';
import { type Ask, askChild } from './ipc.ts';

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
  /** Bytes of WAL written so far. */
  walBytes(): Promise<number>;
  stop(): Promise<void>;
}

const SERVER = file('../../src/main.ts');
const GRAPHS = ['chat', 'trivial', 'notes', 'deltaNotes', 'burst'];
const READY_MS = 60_000;

function file(path: string): string {
  return fileURLToPath(new URL(path, import.meta.url));
}

/** @param options.fsync whether a commit waits for the disk */
export async function startBench(options: { fsync: boolean }): Promise<Bench> {
  const undo: (() => Promise<unknown>)[] = [];
  const stop = async (): Promise<void> => {
    for (const step of undo.splice(0).reverse()) await step();
  };
  try {
    return await start(options, undo, stop);
  } catch (error) {
    await stop();
    throw error;
  }
}

async function start(
  options: { fsync: boolean },
  undo: (() => Promise<unknown>)[],
  stop: () => Promise<void>,
): Promise<Bench> {
  const directory = await mkdtemp(join(tmpdir(), 'runledger-bench-'));
  undo.push(() => rm(directory, { recursive: true, force: true }));
  const postgres = await startPostgres([`fsync=${options.fsync ? 'on' : 'off'}`]);
  undo.push(() => postgres.stop());
  const redis = redisProgram() === null ? null : await startRedis();
  undo.push(async () => redis?.stop());
  const redisUrl = redis?.url ?? null;

  const launch = (script: string, env: Record<string, string>, args: string[] = []): ChildProcess => {
    const log = join(directory, `${script.split('/').at(-1)}.log`);
    const child = launchChild(script, env, args, log, directory);
    undo.push(() => stopChild(child, log));
    return child;
  };
  const model = await askChild(launch(file('model.ts'), {}))<string>('url');
  const databaseUrl = await database(postgres.url, 'ours');
  const bareUrl = await database(postgres.url, 'bare');
  const quietDatabaseUrl = await database(postgres.url, 'quiet');
  await migrate({ databaseUrl: quietDatabaseUrl });

  const bare = askChild(launch(file('bare.ts'), { BARE_DATABASE_URL: bareUrl, OPENAI_BASE_URL: model }));
  await bare('setup');
  const eventPath = askChild(launch(file('event-path.ts'), redisUrl === null ? {} : { REDIS_URL: redisUrl }));

  const config = join(directory, 'config.yaml');
  const graphs = Object.fromEntries(GRAPHS.map((name) => [name, `${file('graphs.ts')}:${name}`]));
  await writeFile(config, stringify({ graphs }));
  const port = await freePort();
  const serverProcess = launch(
    SERVER,
    { DATABASE_URL: databaseUrl, ...(redisUrl === null ? {} : { REDIS_URL: redisUrl }), OPENAI_BASE_URL: model },
    ['--config', config, '--port', String(port), '--migrate'],
  );
  await ready(`http://127.0.0.1:${port}`, serverProcess);
  const client = createClient(`http://127.0.0.1:${port}`);
  undo.push(async () => client.close());

  return {
    services: {
      postgres: `embedded PostgreSQL, fsync ${options.fsync ? 'on' : 'off'}`,
      log: redis === null ? 'in-process event log (no redis-server on the PATH)' : 'Redis',
    },
    quietDatabaseUrl,
    client,
    server: askChild(serverProcess),
    bare,
    eventPath,
    async walBytes() {
      const { rows } = await query(postgres.url, `select pg_current_wal_insert_lsn() - '0/0'::pg_lsn as bytes`);
      return Number(rows[0].bytes);
    },
    stop,
  };
}

async function database(adminUrl: string, name: string): Promise<string> {
  await query(adminUrl, `create database ${name} template template0 encoding 'UTF8'`);
  const url = new URL(adminUrl);
  url.pathname = `/${name}`;
  return url.href;
}

function launchChild(
  script: string,
  env: Record<string, string>,
  args: string[],
  log: string,
  cwd: string,
): ChildProcess {
  const output = openSync(log, 'a');
  const { PATH, HOME } = process.env;
  const child = spawn(process.execPath, ['--import', file('probe.ts'), script, ...args], {
    cwd,
    env: { PATH, HOME, NODE_ENV: 'production', ...env },
    stdio: ['ignore', output, output, 'ipc'],
  });
  closeSync(output);
  return child;
}

async function stopChild(child: ChildProcess, log: string): Promise<void> {
  if (child.exitCode !== null) {
    if (child.exitCode !== 0) process.stderr.write(readFileSync(log, 'utf8').slice(-4_000));
    return;
  }
  const gone = once(child, 'exit');
  child.kill('SIGTERM');
  const patience = setTimeout(() => child.kill('SIGKILL'), 10_000);
  await gone;
  clearTimeout(patience);
}

async function ready(url: string, server: ChildProcess): Promise<void> {
  const untilMs = performance.now() + READY_MS;
  while (server.exitCode === null && performance.now() < untilMs) {
    const answer = await fetch(`${url}/readyz`).catch(() => null);
    if (answer?.ok === true) return;
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
  throw new Error('the server did not become ready');
}
