/**
 * One PostgreSQL cluster in a folder: made once, started, found running, stopped. No lock file of ours is needed: a
 * cluster appears under its name by one rename, complete, and PostgreSQL's own `postmaster.pid` lets one start win.
 */
import { randomBytes, randomUUID } from 'node:crypto';
import {
  chmod,
  chown,
  lstat,
  mkdir,
  readdir,
  readFile,
  readlink,
  realpath,
  rename,
  rm,
  stat,
  symlink,
  writeFile,
} from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import {
  EmbeddedPostgresError,
  type PostgresPrograms,
  type ProgramUser,
  postgresPrograms,
  runProgram,
  SYSTEM_HOME,
} from './embedded-binaries.ts';
import { freePort } from './free-port.ts';

/** Role and database of the cluster. */
export const NAME = 'runledger';
const STOP_TIMEOUT_MS = 60_000;
const SECRET_FILE = 'runledger.json';
const OPTIONS = [
  'listen_addresses=127.0.0.1',
  "unix_socket_directories=''",
  'max_connections=200',
  'log_checkpoints=off',
].map((option) => `-c ${option}`);

export interface Cluster {
  /** PostgreSQL's data directory, absolute, without symbolic links. */
  directory: string;
  password: string;
  /** The port chosen when the cluster was made. */
  port: number;
  programs: PostgresPrograms;
}

/**
 * The cluster of `dataDir`, made if there is none. It is `<dataDir>/cluster`; when this process is root and the `postgres`
 * user cannot enter `dataDir` (a clone in a closed folder), that is a symbolic link to a folder in `SYSTEM_HOME`.
 * @throws EmbeddedPostgresError
 */
export async function openCluster(dataDir: string): Promise<Cluster> {
  await mkdir(dataDir, { recursive: true }).catch((cause) => {
    throw new EmbeddedPostgresError(
      `${dataDir} cannot be made: set DATABASE_URL, or postgres.data_dir to another folder.`,
      {
        cause,
      },
    );
  });
  const name = join(dataDir, 'cluster');
  const existing = await lstat(name).catch(() => null);
  const programs = existing === null ? await makeCluster(dataDir, name) : await postgresPrograms(await ownerOf(name));
  const directory = await realpath(name);
  await refuseUnusable(directory, programs);
  const secret = JSON.parse(await readFile(join(directory, SECRET_FILE), 'utf8')) as { password: string; port: number };
  return { directory, ...secret, programs };
}

async function makeCluster(dataDir: string, name: string): Promise<PostgresPrograms> {
  const programs = await postgresPrograms();
  const inside = await canEnter(dataDir, programs.user);
  const parent = inside ? dataDir : join(SYSTEM_HOME, 'clusters');
  await mkdir(parent, { recursive: true, mode: 0o755 });
  await removeUnfinished(parent);
  const partial = join(parent, `partial-${process.pid}-${randomUUID()}`);
  try {
    await initialise(partial, programs);
    if (inside) await rename(partial, name);
    else {
      const place = join(parent, randomUUID());
      await rename(partial, place);
      await symlink(place, name).catch(async (error) => {
        await rm(place, { recursive: true, force: true });
        throw error;
      });
    }
  } catch (error) {
    await rm(partial, { recursive: true, force: true });
    // Another process made it first; then that one is the cluster.
    if (!['ENOTEMPTY', 'EEXIST'].includes((error as NodeJS.ErrnoException).code ?? '')) throw error;
  }
  return programs;
}

async function initialise(directory: string, programs: PostgresPrograms): Promise<void> {
  const password = randomBytes(24).toString('base64url');
  await mkdir(directory, { mode: 0o700 });
  await giveTo(directory, programs.user);
  // initdb wants an empty folder and reads the password from a file, as its own user.
  const passwordFile = `${directory}.password`;
  await writeFile(passwordFile, password, { mode: 0o600, flag: 'wx' });
  await giveTo(passwordFile, programs.user);
  const options = ['--encoding=UTF8', '--locale=C', '--auth=scram-sha-256', '--no-instructions', `--username=${NAME}`];
  const made = await runProgram(
    programs.initdb,
    ['-D', directory, ...options, `--pwfile=${passwordFile}`],
    programs.user,
  ).finally(() => rm(passwordFile, { force: true }));
  if (made.code !== 0) {
    throw new EmbeddedPostgresError('The embedded PostgreSQL could not be set up; its words are in the log.', {
      cause: new Error(made.stderr),
    });
  }
  const secret = join(directory, SECRET_FILE);
  await writeFile(secret, `${JSON.stringify({ password, port: await freePort() })}\n`, { mode: 0o600, flag: 'wx' });
  await giveTo(secret, programs.user);
}

/** A folder or link that is there already. As root the cluster runs as its owner, whoever that is. */
async function ownerOf(name: string): Promise<{ uid: number; gid: number } | undefined> {
  const found = await stat(name).catch(() => null);
  if (found === null) {
    throw new EmbeddedPostgresError(
      `${name} points to ${await readlink(name)}, which is gone: bring it back, or remove the link to begin with an empty database.`,
    );
  }
  const uid = process.getuid?.();
  if (uid === undefined || uid === found.uid) return undefined;
  if (uid === 0) return { uid: found.uid, gid: found.gid };
  throw new EmbeddedPostgresError(
    `The embedded PostgreSQL in ${name} belongs to another user: start the server as that user, or set postgres.data_dir to another folder.`,
  );
}

async function refuseUnusable(directory: string, programs: PostgresPrograms): Promise<void> {
  if (!(await canEnter(directory, programs.user))) {
    throw new EmbeddedPostgresError(
      `The system user that owns ${directory} cannot enter it: open the folders above it (chmod o+x), or set postgres.data_dir to another folder.`,
    );
  }
  const major = Number.parseInt(await readFile(join(directory, 'PG_VERSION'), 'utf8'), 10);
  if (major === programs.major) return;
  throw new EmbeddedPostgresError(
    `${directory} was made by PostgreSQL ${major} and this version brings ${programs.major}: dump it with the former version, or set postgres.data_dir to another folder.`,
  );
}

/** What `postmaster.pid` says, when the process it names is the postmaster of this cluster; otherwise null. */
export async function runningPostmaster(cluster: Cluster): Promise<{ pid: number; port: number } | null> {
  const file = join(cluster.directory, 'postmaster.pid');
  const lines = await readFile(file, 'utf8').then(
    (text) => text.split('\n'),
    () => [],
  );
  const pid = Number(lines[0]);
  // A standalone backend writes a negative pid; a file that is being written has fewer lines.
  if (!(pid > 0)) return null;
  if (!(await isPostmaster(pid, cluster))) return null;
  return { pid, port: Number(lines[3] ?? 0) };
}

/**
 * Starts the cluster and waits until it accepts connections.
 * @returns false when it did not start: another process was faster, the port was taken, or it is broken (see `logFile`)
 */
export async function startCluster(cluster: Cluster, port: number): Promise<boolean> {
  await removeForeignPidFile(cluster);
  const { pgCtl, user } = cluster.programs;
  const options = ['-w', '-t', '60', '-l', logFile(cluster), '-o', [`-p ${port}`, ...OPTIONS].join(' ')];
  const started = await runProgram(pgCtl, ['start', '-D', cluster.directory, ...options], user);
  return started.code === 0;
}

/** Ends every connection and stops the cluster; it need not have been started by this process. */
export async function stopCluster(cluster: Cluster): Promise<void> {
  const running = await runningPostmaster(cluster);
  if (running === null) return;
  const { pgCtl, user } = cluster.programs;
  // pg_ctl's own wait would go on if another process starts the cluster again in between.
  const asked = await runProgram(pgCtl, ['stop', '-D', cluster.directory, '-m', 'fast', '-W'], user);
  const deadline = performance.now() + STOP_TIMEOUT_MS;
  while ((await runningPostmaster(cluster))?.pid === running.pid) {
    if (performance.now() > deadline) {
      throw new EmbeddedPostgresError('The embedded PostgreSQL did not stop.', { cause: new Error(asked.stderr) });
    }
    await delay(20);
  }
}

export function logFile(cluster: Cluster): string {
  return join(cluster.directory, 'server.log');
}

/**
 * A crash leaves `postmaster.pid`, and its pid may since have gone to another program (after a reboot, in a container):
 * PostgreSQL would then refuse to start for ever. A dead pid it sees itself, and checks for surviving backends.
 */
async function removeForeignPidFile(cluster: Cluster): Promise<void> {
  const file = join(cluster.directory, 'postmaster.pid');
  const text = await readFile(file, 'utf8').catch(() => '');
  const pid = Number(text.split('\n')[0]);
  if (pid > 0 && isAlive(pid) && !(await isPostmaster(pid, cluster))) await rm(file, { force: true });
}

async function isPostmaster(pid: number, cluster: Cluster): Promise<boolean> {
  if (!isAlive(pid)) return false;
  // The postmaster's working directory is its data directory. A zombie has none any more.
  if (process.platform === 'linux') {
    return readlink(`/proc/${pid}/cwd`).then(
      (folder) => folder === cluster.directory,
      () => false,
    );
  }
  if (process.platform === 'win32') return true;
  const { stdout } = await runProgram('ps', ['-p', String(pid), '-o', 'comm=']);
  return stdout.includes('postgres');
}

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'EPERM';
  }
}

async function canEnter(directory: string, user: ProgramUser): Promise<boolean> {
  if (user.uid === undefined) return true;
  return (await runProgram('/bin/sh', ['-c', 'cd "$1"', 'sh', directory], user)).code === 0;
}

async function giveTo(path: string, user: ProgramUser): Promise<void> {
  await chmod(path, (await stat(path)).isDirectory() ? 0o700 : 0o600);
  if (user.uid !== undefined && user.gid !== undefined) await chown(path, user.uid, user.gid);
}

/** What a process left that was killed while it made a cluster. */
async function removeUnfinished(parent: string): Promise<void> {
  for (const entry of await readdir(parent)) {
    const pid = /^partial-(\d+)-/.exec(entry)?.[1];
    if (pid !== undefined && !isAlive(Number(pid))) await rm(join(parent, entry), { recursive: true, force: true });
  }
}
