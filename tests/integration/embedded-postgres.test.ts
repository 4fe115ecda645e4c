import { once } from 'node:events';
import { chmod, lstat, mkdir, mkdtemp, readFile, realpath, rm, stat, writeFile } from 'node:fs/promises';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { pino } from 'pino';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { startEmbeddedPostgres } from '#src/postgres/embedded.ts';
import { postgresPrograms } from '#src/postgres/embedded-binaries.ts';
import { leash } from '#tests/support/leash.ts';
import { query } from '#tests/support/postgres.ts';
import { until } from '#tests/support/until.ts';

const PROCESS = fileURLToPath(new URL('../support/embedded-process.ts', import.meta.url));
const isRoot = process.getuid?.() === 0;
const logger = pino({ level: 'silent' });

let dataDir: string;
const cleanUp: (() => Promise<unknown>)[] = [];

beforeEach(async () => {
  const folder = await mkdtemp(join(tmpdir(), 'runledger-embedded-'));
  // mkdtemp makes 0700, which the postgres user cannot enter; the closed folder has a test of its own.
  await chmod(folder, 0o755);
  dataDir = join(folder, 'data');
  cleanUp.push(() => rm(folder, { recursive: true, force: true }));
});
afterEach(async () => {
  for (const step of cleanUp.splice(0).reverse()) await step();
});

async function start() {
  const postgres = await startEmbeddedPostgres({ dataDir, logger });
  cleanUp.push(() => postgres.stop());
  return postgres;
}

/** Another process that uses the same folder. */
async function startProcess() {
  const child = await leash([process.execPath, PROCESS, dataDir], { stopSignal: 'TERM' });
  cleanUp.push(() => child.stop());
  let ended = false;
  void child.exited.then(() => {
    ended = true;
  });
  const ready = async () => {
    const line = await until(() => /^ready (.*)$/m.exec(child.output())?.[1] ?? (ended && '{}'), {
      timeoutMs: 60_000,
      message: 'the other process to be ready',
    });
    if (ended) throw new Error(child.output());
    return JSON.parse(line) as { url: string; reused: boolean };
  };
  return { child, ready };
}

async function postmasterPid(): Promise<number> {
  return Number((await readFile(join(dataDir, 'cluster', 'postmaster.pid'), 'utf8')).split('\n')[0]);
}

async function isUp(url: string): Promise<boolean> {
  return query(url, 'select 1').then(
    () => true,
    (error: NodeJS.ErrnoException) => {
      expect(error.code).toBe('ECONNREFUSED');
      return false;
    },
  );
}

function withoutPassword(url: string): string {
  const bare = new URL(url);
  bare.password = 'guess';
  return bare.href;
}

describe('the embedded Postgres', () => {
  test('is made at the first start, in UTF-8, on loopback with a password, and is there again at the next', async () => {
    const first = await start();
    expect(first.reused).toBe(false);
    expect(first.url).toMatch(/^postgresql:\/\/runledger:[\w-]{32}@127\.0\.0\.1:\d+\/runledger$/);
    const settings = await query(
      first.url,
      "select current_setting('server_encoding') as encoding, current_setting('listen_addresses') as addresses, current_setting('unix_socket_directories') as sockets, datcollate from pg_database where datname = current_database()",
    );
    expect(settings.rows).toEqual([{ encoding: 'UTF8', addresses: '127.0.0.1', sockets: '', datcollate: 'C' }]);
    await expect(query(withoutPassword(first.url), 'select 1')).rejects.toMatchObject({ code: '28P01' });
    expect((await stat(join(dataDir, 'cluster', 'runledger.json'))).mode & 0o777).toBe(0o600);
    await query(first.url, "create table kept as select 'ü' as word");

    await first.stop();
    expect(await isUp(first.url)).toBe(false);
    const second = await start();
    expect(second).toMatchObject({ url: first.url, reused: false });
    expect((await query(second.url, 'select word from kept')).rows).toEqual([{ word: 'ü' }]);
  });

  test('is adopted when its process was killed and left it running', async () => {
    const { child, ready } = await startProcess();
    const former = await ready();
    await query(former.url, 'create table kept as select 1 as n');
    const pid = await postmasterPid();
    child.signal('SIGKILL');
    await child.exited;
    expect(await isUp(former.url)).toBe(true);

    const next = await start();
    expect(next).toMatchObject({ url: former.url, reused: true });
    expect(await postmasterPid()).toBe(pid);
    expect((await query(next.url, 'select n from kept')).rows).toEqual([{ n: 1 }]);
    await next.stop();
    expect(await isUp(next.url)).toBe(false);
  });

  test('starts after a crash that left a stale pid file', async () => {
    const { child, ready } = await startProcess();
    const former = await ready();
    child.signal('SIGKILL');
    await child.exited;
    process.kill(await postmasterPid(), 'SIGKILL');
    await until(async () => !(await isUp(former.url)), { message: 'the cluster to be dead' });
    expect(await start()).toMatchObject({ url: former.url, reused: false });
  });

  test('starts when the pid in a stale pid file belongs to another program now', async () => {
    await (await start()).stop();
    // Of the same user: PostgreSQL takes a process it may signal for its own kind, and would refuse to start for ever.
    const { user } = await postgresPrograms();
    const other = await leash(['sleep', '100'], { stopSignal: 'KILL', user });
    cleanUp.push(() => other.stop());
    const file = join(dataDir, 'cluster', 'postmaster.pid');
    await writeFile(
      file,
      `${other.pid}\n${join(dataDir, 'cluster')}\n1700000000\n5432\n\n127.0.0.1\n  1 1\nready   \n`,
    );
    expect((await start()).reused).toBe(false);
  });

  test('is one for two processes that start at once, and ends with the last', async () => {
    const [a, b] = await Promise.all([startProcess(), startProcess()]);
    const [first, second] = await Promise.all([a.ready(), b.ready()]);
    expect(first.url).toBe(second.url);
    expect([first.reused, second.reused].sort()).toEqual([false, true]);
    const starter = first.reused ? b : a;
    const user = first.reused ? a : b;
    starter.child.signal('SIGTERM');
    await starter.child.exited;
    expect(await isUp(first.url)).toBe(true);
    user.child.signal('SIGTERM');
    await user.child.exited;
    expect(await isUp(first.url)).toBe(false);
  });

  test('ends when its users leave at the same moment', async () => {
    const users = await Promise.all([start(), start()]);
    await Promise.all(users.map((user) => user.stop()));
    expect(await isUp(users[0].url)).toBe(false);
  });

  test('works for a process that starts while the last ones leave', async () => {
    const [a, b] = await Promise.all([startProcess(), startProcess()]);
    const { url } = await a.ready();
    await b.ready();
    a.child.signal('SIGTERM');
    b.child.signal('SIGTERM');
    // They leave after 300 ms; this start falls into that moment in one place or another.
    await until(() => a.child.output().includes('SIGTERM'), { message: 'the signal' });
    const next = await start();
    expect(next.url).toBe(url);
    await Promise.all([a.child.exited, b.child.exited]);
    expect(await isUp(next.url)).toBe(true);
    await next.stop();
    expect(await isUp(url)).toBe(false);
  });

  test.each(['SIGTERM', 'SIGINT'] as const)('leaves %s to the process that uses it', async (signal) => {
    const { child, ready } = await startProcess();
    const { url } = await ready();
    // The whole process group, as Ctrl-C does.
    process.kill(-child.groupPid, signal);
    await until(() => child.output().includes(`${signal} 1`), { message: 'the signal' });
    expect(await isUp(url)).toBe(true);
    child.signal(signal);
    expect(await child.exited).toBe(7);
    expect(child.output()).toContain('stopped');
    expect(await isUp(url)).toBe(false);
  });

  test('takes another port when its own is taken', async () => {
    const first = await start();
    await first.stop();
    const squatter = createServer().listen(Number(new URL(first.url).port), '127.0.0.1');
    await once(squatter, 'listening');
    cleanUp.push(async () => squatter.close());
    const second = await start();
    expect(new URL(second.url).port).not.toBe(new URL(first.url).port);
    expect(await isUp(second.url)).toBe(true);
  });

  test('comes back on the same port when it goes down while in use', async () => {
    const postgres = await start();
    const before = await postmasterPid();
    process.kill(before, 'SIGKILL');
    await until(() => isUp(postgres.url), { timeoutMs: 20_000, message: 'it to be up again' });
    expect(await postmasterPid()).not.toBe(before);
    await postgres.stop();
    expect(await isUp(postgres.url)).toBe(false);
  });

  test('works in a folder that only its owner can enter', async () => {
    const closed = join(dataDir, '..', 'closed');
    await mkdir(closed, { mode: 0o700 });
    dataDir = join(closed, 'data');
    const postgres = await start();
    expect(await isUp(postgres.url)).toBe(true);
    const name = join(dataDir, 'cluster');
    const elsewhere = (await lstat(name)).isSymbolicLink();
    // Only root runs it as somebody else, who cannot enter.
    expect(elsewhere).toBe(isRoot);
    const place = await realpath(name);
    expect(postgres.directory).toBe(place);
    await postgres.stop();
    expect(await start()).toMatchObject({ url: postgres.url, reused: false });
    if (!elsewhere) return;
    expect(place).toMatch(/^\/var\/lib\/runledger\/clusters\//);
    await cleanUp.pop()?.();
    await rm(place, { recursive: true });
    await expect(start()).rejects.toThrow(/points to .*clusters.*, which is gone: bring it back/);
  });

  test('says so when its folder cannot be made', async () => {
    await writeFile(dataDir, 'a file is in the way');
    dataDir = join(dataDir, 'below');
    await expect(start()).rejects.toThrow(/below cannot be made: set DATABASE_URL, or postgres\.data_dir/);
  });

  test('refuses data of another major version, with the remedy', async () => {
    await (await start()).stop();
    await writeFile(join(dataDir, 'cluster', 'PG_VERSION'), '17\n');
    await expect(start()).rejects.toThrow(/was made by PostgreSQL 17 and this version brings 18: .*postgres\.data_dir/);
  });
});
