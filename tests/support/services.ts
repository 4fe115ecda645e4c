/**
 * vitest globalSetup: a Postgres with a migrated template database, and a Redis, for all projects of one run. Where they
 * come from, in this order: TEST_DATABASE_URL / TEST_REDIS_URL; a Docker engine; PostgreSQL from npm and the
 * `redis-server` on the PATH; on Debian as root, apt. They end with the run, also when it is killed.
 */
import { execFile } from 'node:child_process';
import { existsSync } from 'node:fs';
import { request } from 'node:http';
import { promisify } from 'node:util';
import type { TestProject } from 'vitest/node';
import { installPackage } from './apt.ts';
import { fillCompileCache } from './compile-cache.ts';
import { createTemplate } from './database.ts';
import { query, startPostgres } from './postgres.ts';
import { redisAnswers, redisProgram, startRedis } from './redis.ts';

declare module 'vitest' {
  interface ProvidedContext {
    /** Admin URL of the shared Postgres; test files use `createDatabase()`. */
    databaseUrl: string;
    /** Name of the migrated database that `createDatabase()` clones. */
    templateDatabase: string;
    /** The shared Redis. Other files use it at the same time: no flush, no CONFIG SET. */
    redisUrl: string;
  }
}

interface Service {
  url: string;
  from: string;
  stop(): Promise<void>;
}

interface Services {
  databaseUrl: string;
  templateDatabase: string;
  redisUrl: string;
  stop(): Promise<void>;
}

const POSTGRES_IMAGE = 'postgres:18';
const REDIS_IMAGE = 'redis:8';

/** Every project runs this file on its own, in the same process: the first starts the services, the last stops them. */
const SHARED = Symbol.for('runledger.test-services');
interface Shared {
  users: number;
  services: Promise<Services>;
}
const home = globalThis as { [SHARED]?: Shared | undefined };

export async function setup(project: TestProject): Promise<void> {
  const shared = home[SHARED] ?? { users: 0, services: startServices() };
  home[SHARED] = shared;
  shared.users += 1;
  const services = await shared.services;
  project.provide('databaseUrl', services.databaseUrl);
  project.provide('templateDatabase', services.templateDatabase);
  project.provide('redisUrl', services.redisUrl);
}

export async function teardown(): Promise<void> {
  const shared = home[SHARED];
  if (shared === undefined) return;
  shared.users -= 1;
  if (shared.users > 0) return;
  home[SHARED] = undefined;
  await shared.services.then(
    (services) => services.stop(),
    () => undefined,
  );
}

async function startServices(): Promise<Services> {
  const [docker] = await Promise.all([dockerAnswers().then((yes) => (yes ? containers() : null)), fillCompileCache()]);
  // Both must have come up or failed before anything is stopped.
  const [postgres, redis] = await Promise.allSettled([startDatabase(docker), startEventStore(docker)]);
  const stop = async () => {
    for (const service of [postgres, redis]) if (service.status === 'fulfilled') await service.value.stop();
  };
  try {
    if (postgres.status === 'rejected') throw postgres.reason;
    if (redis.status === 'rejected') throw redis.reason;
    const templateDatabase = await createTemplate(postgres.value.url);
    say(`Postgres ${postgres.value.from}, Redis ${redis.value.from}`);
    return {
      databaseUrl: postgres.value.url,
      templateDatabase,
      redisUrl: redis.value.url,
      async stop() {
        await query(postgres.value.url, `drop database if exists "${templateDatabase}" with (force)`);
        await stop();
      },
    };
  } catch (error) {
    await stop();
    throw error;
  }
}

async function startDatabase(docker: Containers | null): Promise<Service> {
  const given = process.env.TEST_DATABASE_URL;
  if (given !== undefined && given !== '') {
    await query(given, 'select 1').catch((error: Error) => {
      throw new Error(`The Postgres that TEST_DATABASE_URL names does not answer (${error.message}).`);
    });
    return { url: given, from: 'from TEST_DATABASE_URL', stop: async () => undefined };
  }
  const contained = await docker?.postgres();
  if (contained !== undefined && contained !== null) return contained;
  const server = await startPostgres();
  return { url: server.url, from: 'from npm', stop: () => server.stop() };
}

async function startEventStore(docker: Containers | null): Promise<Service> {
  const given = process.env.TEST_REDIS_URL;
  if (given !== undefined && given !== '') {
    await redisAnswers(given, 5000).catch((error: Error) => {
      throw new Error(`The Redis that TEST_REDIS_URL names does not answer (${error.message}).`);
    });
    return { url: given, from: 'from TEST_REDIS_URL', stop: async () => undefined };
  }
  const contained = await docker?.redis();
  if (contained !== undefined && contained !== null) return contained;
  if (redisProgram() === null) await installRedis();
  const server = await startRedis();
  return { url: server.url, from: 'on the PATH', stop: () => server.stop() };
}

/** @throws one sentence when that is not possible */
async function installRedis(): Promise<void> {
  const sentence =
    'The tests need Redis: install redis-server (it must be on the PATH), start a Docker engine, or set TEST_REDIS_URL.';
  await installPackage('redis-server', sentence);
  // The package may have started the system's own server. We came to bring the program only.
  await promisify(execFile)('service', ['redis-server', 'stop']).catch(() => undefined);
  if (redisProgram() === null) throw new Error(sentence);
}

interface Containers {
  postgres(): Promise<Service | null>;
  redis(): Promise<Service | null>;
}

/** A real answer to Docker's ping within a second, on the socket or on a tcp:// DOCKER_HOST. */
function dockerAnswers(): Promise<boolean> {
  const host = process.env.DOCKER_HOST ?? 'unix:///var/run/docker.sock';
  const socketPath = host.startsWith('unix://') ? host.slice('unix://'.length) : null;
  if (socketPath !== null && !existsSync(socketPath)) return Promise.resolve(false);
  if (socketPath === null && !host.startsWith('tcp://')) return Promise.resolve(false);
  return new Promise((resolve) => {
    const target =
      socketPath === null ? new URL('/_ping', host.replace('tcp:', 'http:')) : { socketPath, path: '/_ping' };
    const ping = request(target, (response) => {
      response.resume();
      resolve(response.statusCode === 200);
    });
    ping.setTimeout(1000, () => ping.destroy(new Error('no answer')));
    ping.on('error', () => resolve(false));
    ping.end();
  });
}

/** testcontainers, loaded only now. Its own reaper removes the containers when this process is killed. */
async function containers(): Promise<Containers> {
  const { GenericContainer, Wait } = await import('testcontainers');
  const orNull = async (name: string, start: () => Promise<Service>) => {
    try {
      return await start();
    } catch (error) {
      say(`Docker answers but ${name} does not start (${String(error)}); going on without it`);
      return null;
    }
  };
  return {
    postgres: () =>
      orNull(POSTGRES_IMAGE, async () => {
        const container = await new GenericContainer(POSTGRES_IMAGE)
          .withEnvironment({ POSTGRES_HOST_AUTH_METHOD: 'trust' })
          .withCommand(['postgres', '-c', 'fsync=off', '-c', 'full_page_writes=off', '-c', 'max_connections=300'])
          .withExposedPorts(5432)
          .withWaitStrategy(Wait.forLogMessage('database system is ready to accept connections', 2))
          .start();
        const url = `postgresql://postgres@${container.getHost()}:${container.getMappedPort(5432)}/postgres`;
        return { url, from: `container ${POSTGRES_IMAGE}`, stop: async () => void (await container.stop()) };
      }),
    redis: () =>
      orNull(REDIS_IMAGE, async () => {
        const container = await new GenericContainer(REDIS_IMAGE)
          .withCommand(['redis-server', '--save', '', '--appendonly', 'no'])
          .withExposedPorts(6379)
          .withWaitStrategy(Wait.forLogMessage('Ready to accept connections'))
          .start();
        const url = `redis://${container.getHost()}:${container.getMappedPort(6379)}`;
        return { url, from: `container ${REDIS_IMAGE}`, stop: async () => void (await container.stop()) };
      }),
  };
}

function say(text: string): void {
  process.stderr.write(`test services: ${text}\n`);
}
