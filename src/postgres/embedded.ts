/**
 * PostgreSQL without an installation: a real server from npm, with its data in a folder of ours.
 *
 * Any number of server processes share the cluster of one folder. Each holds a shared advisory lock on a connection of
 * its own while it uses it; who leaves tries to take the lock alone, and only who gets it (the last one) stops the
 * cluster. The lock dies with its holder, so nothing is stale after a kill -9: the cluster then stays up and the next
 * start adopts it. Ctrl-C does not reach the cluster (it has a session of its own); only `stop()` ends it.
 */
import { realpath } from 'node:fs/promises';
import { setTimeout as delay } from 'node:timers/promises';
import pg from 'pg';
import type { Logger } from 'pino';
import { EmbeddedPostgresError } from './embedded-binaries.ts';
import {
  type Cluster,
  logFile,
  NAME,
  openCluster,
  runningPostmaster,
  startCluster,
  stopCluster,
} from './embedded-cluster.ts';
import { freePort } from './free-port.ts';

export interface EmbeddedPostgres {
  /** Connection URL with the password: for pools, not for the log. */
  url: string;
  /** PostgreSQL's data directory. Below `dataDir`, unless `dataDir` is closed to the user that PostgreSQL runs as. */
  directory: string;
  /** True when the cluster was running already: a former process was killed, or another one uses it now. */
  reused: boolean;
  /** Stops using the cluster, and stops it when no other process uses it. Safe to repeat. */
  stop(): Promise<void>;
}

/** The advisory lock, in the database `postgres`. */
const USE_LOCK = 7_303_140_551;
const START_TIMEOUT_MS = 60_000;
const DUPLICATE_DATABASE = ['42P04', '23505'];

/**
 * Starts the cluster in `dataDir`, made at the first start, or adopts it when it runs. While in use it is started again,
 * on the same port, if it goes down.
 * @param options.dataDir absolute, or relative to the working directory
 * @throws EmbeddedPostgresError with one sentence that says what to do
 */
export async function startEmbeddedPostgres(options: { dataDir: string; logger: Logger }): Promise<EmbeddedPostgres> {
  const { logger } = options;
  const cluster = await openCluster(options.dataDir).catch((error) => {
    logger.error({ err: error }, 'embedded postgres could not be set up');
    throw error;
  });
  if (!cluster.directory.startsWith(await realpath(options.dataDir))) {
    const facts = { directory: cluster.directory, dataDir: options.dataDir };
    logger.warn(facts, 'the data of the embedded postgres is kept elsewhere: its user cannot enter the data dir');
  }
  const first = await use(cluster, logger, null, () => false);
  const { port } = first;
  let current: Promise<Use | null> = Promise.resolve(first);
  let stopped: Promise<void> | null = null;

  function watch(using: Use): Use {
    using.client.once('end', () => {
      if (stopped === null) current = recover();
    });
    return using;
  }
  async function recover(): Promise<Use | null> {
    logger.error('embedded postgres went down; starting it again');
    for (let pauseMs = 100; stopped === null; pauseMs = Math.min(pauseMs * 2, 5000)) {
      try {
        const using = watch(await use(cluster, logger, port, () => stopped !== null));
        logger.info('embedded postgres is up again');
        return using;
      } catch (error) {
        if (stopped !== null) return null;
        logger.error({ err: error }, 'embedded postgres does not start');
        await delay(pauseMs);
      }
    }
    return null;
  }

  watch(first);
  const password = encodeURIComponent(cluster.password);
  return {
    url: `postgresql://${NAME}:${password}@127.0.0.1:${port}/${NAME}`,
    directory: cluster.directory,
    reused: first.reused,
    stop() {
      stopped ??= current.then((using) => (using === null ? undefined : leave(cluster, using)));
      return stopped;
    },
  };
}

interface Use {
  /** Holds the lock; ends when the cluster does. */
  client: pg.Client;
  port: number;
  reused: boolean;
}

/**
 * Finds the cluster running or starts it. `fixedPort`: the port that URLs given out name; null at the first start.
 * `givenUp`: it is not started any more, but one that runs is still joined, so that it can be stopped.
 */
async function use(cluster: Cluster, logger: Logger, fixedPort: number | null, givenUp: () => boolean): Promise<Use> {
  const deadline = performance.now() + START_TIMEOUT_MS;
  let startedHere = false;
  let refusals = 0;
  let lastError: unknown;
  while (refusals < 5 && performance.now() < deadline) {
    const running = await runningPostmaster(cluster);
    if (running === null) {
      if (givenUp()) break;
      const port = fixedPort ?? (await freePort(cluster.port));
      if (port !== cluster.port) logger.warn({ port }, 'the port of the embedded postgres is taken; using another');
      startedHere = await startCluster(cluster, port);
      if (startedHere) continue;
      refusals += 1;
    } else {
      try {
        const client = await join(cluster, running.port);
        return { client, port: running.port, reused: !startedHere };
      } catch (error) {
        lastError = error;
      }
    }
    // It is starting up or shutting down, or its backends outlive it for a moment.
    await delay(100);
  }
  const sentence = `The embedded PostgreSQL does not start; its own log is ${logFile(cluster)}.`;
  throw new EmbeddedPostgresError(sentence, { cause: lastError });
}

/** A connection that holds the shared lock. @throws what pg throws when the cluster does not (or no longer) accept one */
async function join(cluster: Cluster, port: number): Promise<pg.Client> {
  const client = new pg.Client({
    host: '127.0.0.1',
    port,
    user: NAME,
    password: cluster.password,
    database: 'postgres',
    application_name: 'runledger embedded',
    connectionTimeoutMillis: 5000,
    keepAlive: true,
  });
  // Its end is what counts, and 'end' follows.
  client.on('error', () => undefined);
  try {
    await client.connect();
    // Waits only for a process that is stopping the cluster; the stop then ends this connection.
    await client.query('select pg_advisory_lock_shared($1)', [USE_LOCK]);
    await createDatabase(client);
    return client;
  } catch (error) {
    await client.end().catch(() => undefined);
    throw error;
  }
}

async function createDatabase(client: pg.Client): Promise<void> {
  const found = await client.query('select 1 from pg_database where datname = $1', [NAME]);
  if (found.rows.length > 0) return;
  try {
    await client.query(`create database ${NAME}`);
  } catch (error) {
    if (!DUPLICATE_DATABASE.includes((error as pg.DatabaseError).code ?? '')) throw error;
  }
}

async function leave(cluster: Cluster, { client }: Use): Promise<void> {
  try {
    await client.query('select pg_advisory_unlock_shared($1)', [USE_LOCK]);
    const { rows } = await client.query('select pg_try_advisory_lock($1) as last', [USE_LOCK]);
    if (rows[0].last) await stopCluster(cluster);
  } finally {
    await client.end().catch(() => undefined);
  }
}
