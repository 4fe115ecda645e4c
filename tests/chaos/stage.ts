/** The services and servers that worlds play on. A stage is shared by the seeds of a scenario, and by scenarios that want the same. */
import { createHash } from 'node:crypto';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { inject } from 'vitest';
import { migrate } from '#src/postgres/migrate.ts';
import { createDatabase } from '#tests/support/database.ts';
import { type FakeModel, startFakeModel } from '#tests/support/fake-model.ts';
import { databaseName, query, startPostgres, type TestPostgres } from '#tests/support/postgres.ts';
import { startRedis, type TestRedis } from '#tests/support/redis.ts';
import { startServer, type TestServer } from '#tests/support/server.ts';
import type { TcpProxy } from '#tests/support/tcp-proxy.ts';
import { until } from '#tests/support/until.ts';
import { addAudit } from './audit.ts';
import { type Control, startControl } from './control.ts';
import { type Fault, reachedLine } from './fault-points.ts';
import { replyTo } from './questions.ts';
import { ledgerStatus, type Recorder, startRecorder } from './recorder.ts';

export interface StageOptions {
  /** own: a private server that scenarios may kill, stop and flush. Default: shared by the whole test run. */
  postgres?: 'shared' | 'own';
  redis?: 'shared' | 'own';
  /** For a private Postgres: `name=value` each. For a private Redis: command line arguments. */
  postgresSettings?: string[];
  redisSettings?: string[];
  /** Over the suite's own config.yaml, key by key of the first level. */
  config?: Record<string, unknown>;
}

export interface ChaosServer extends TestServer {
  readonly name: string;
  /** False from the moment it was killed, has exited, or is stopped (SIGSTOP). */
  readonly reachable: boolean;
  /** Arms these faults in place of those the group had; calls it held go on. */
  arm(faults: Fault[], group?: string): Promise<void>;
  /** Resolves when the fault's point was reached. */
  reached(fault: Pick<Fault, 'point' | 'when' | 'action'>, timeoutMs?: number): Promise<void>;
  /** Resolves when peers' deaths count for it: its lease and Postgres have been up for 10 s. */
  settled(): Promise<void>;
}

export interface ServerOptions {
  name?: string;
  /** Armed from the start. */
  faults?: Fault[];
  config?: Record<string, unknown>;
  env?: Record<string, string>;
  /** Proxies it reaches its services through. */
  postgres?: TcpProxy;
  redis?: TcpProxy;
}

export interface Stage {
  readonly databaseUrl: string;
  readonly redisUrl: string;
  /** null: the shared one. */
  readonly postgres: TestPostgres | null;
  readonly redis: TestRedis | null;
  readonly model: FakeModel;
  readonly recorder: Recorder;
  readonly servers: ReadonlySet<ChaosServer>;
  start(options?: ServerOptions): Promise<ChaosServer>;
  /** A settled server that lives as long as the stage; started again when it has died. */
  shared(name: string): Promise<ChaosServer>;
  /** The same for scenarios in which nobody dies: it need not be settled. */
  lasting(name: string): Promise<ChaosServer>;
  /** One at a time of all who ask on this stage. */
  exclusively<T>(work: () => Promise<T>): Promise<T>;
  close(): Promise<void>;
}

const PRELOAD = pathToFileURL(fileURLToPath(new URL('./preload.ts', import.meta.url))).href;
const CHAT = fileURLToPath(new URL('../../src/graphs/chat.ts', import.meta.url));
const graphFile = (name: string): string => fileURLToPath(new URL(`../support/graphs/${name}.ts`, import.meta.url));

/** `X-Dev-User` keeps worlds apart: each is a user of its own. */
const CONFIG = {
  auth: { mode: 'dev' },
  server: { sse_keepalive_interval: '2s' },
  webhooks: { allow_private: true, timeout: '2s' },
  graphs: {
    chat: `${CHAT}:graph`,
    counted: `${graphFile('counted')}:counted`,
    twoNodes: `${graphFile('approvals')}:twoNodes`,
    oneNode: `${graphFile('approvals')}:oneNode`,
    echo: `${graphFile('plain')}:compiled`,
    flood: `${graphFile('flood')}:flood`,
    rounds: `${graphFile('delta-rounds')}:rounds`,
    poison: `${graphFile('poison')}:poison`,
  },
};

/** Judges count a death only after this; a little more than the server's own 10 s. */
const SETTLE_MS = 10_500;
/** Several servers may start at once on a busy machine. */
const READY_MS = 90_000;

export async function createStage(options: StageOptions = {}): Promise<Stage> {
  const undo: (() => Promise<unknown>)[] = [];
  const close = async (): Promise<void> => {
    for (const step of undo.splice(0).reverse()) await step();
  };
  try {
    return await build(options, undo, close);
  } catch (error) {
    await close();
    throw error;
  }
}

async function build(
  options: StageOptions,
  undo: (() => Promise<unknown>)[],
  close: () => Promise<void>,
): Promise<Stage> {
  const postgres = options.postgres === 'own' ? await startPostgres(options.postgresSettings) : null;
  if (postgres !== null) undo.push(() => postgres.stop());
  const redis = options.redis === 'own' ? await startRedis(options.redisSettings) : null;
  if (redis !== null) undo.push(() => redis.stop());
  const databaseUrl = postgres === null ? await sharedDatabase(undo) : await ownDatabase(postgres);
  await addAudit(databaseUrl);
  const redisUrl = redis?.url ?? inject('redisUrl');
  const model = await startFakeModel({ strict: true, script: replyTo });
  undo.push(() => model.close());
  const recorder = await startRecorder((runId) => ledgerStatus(databaseUrl, runId));
  undo.push(() => recorder.close());
  const control = await startControl();
  undo.push(() => control.close());

  const servers = new Set<ChaosServer>();
  undo.push(() => endAll(servers));
  const shared = new Map<string, Promise<ChaosServer>>();
  let last: Promise<unknown> = Promise.resolve();
  let started = 0;

  async function start(more: ServerOptions = {}): Promise<ChaosServer> {
    started += 1;
    const name = more.name ?? `server-${started}`;
    const config = { ...CONFIG, ...options.config, ...more.config };
    const env = {
      DATABASE_URL: more.postgres?.through(databaseUrl) ?? databaseUrl,
      REDIS_URL: more.redis?.through(redisUrl) ?? redisUrl,
      OPENAI_BASE_URL: model.url,
      OPENAI_MODEL: 'fake',
      WEBHOOK_SECRET: 'a secret of the chaos suite',
      NODE_OPTIONS: `--import=${PRELOAD}`,
      CHAOS_CONTROL_PORT: String(control.port),
      ...(more.faults === undefined ? {} : { CHAOS_FAULTS: JSON.stringify(more.faults) }),
      ...more.env,
    };
    const server = chaosServer(
      await startServer({ env, config, readyTimeoutMs: READY_MS }),
      name,
      control,
      databaseUrl,
    );
    servers.add(server);
    void server.exit.then(() => servers.delete(server));
    return server;
  }

  async function startShared(name: string): Promise<ChaosServer> {
    const server = await start({ name: `shared-${name}` });
    void server.exit.then(() => shared.delete(name));
    return server;
  }

  function lasting(name: string): Promise<ChaosServer> {
    const there = shared.get(name) ?? startShared(name);
    shared.set(name, there);
    return there;
  }

  return {
    databaseUrl,
    redisUrl,
    postgres,
    redis,
    model,
    recorder,
    servers,
    start,
    async shared(name) {
      const server = await lasting(name);
      await server.settled();
      return server;
    },
    lasting,
    exclusively(work) {
      const mine = last.then(work, work);
      last = mine.catch(() => undefined);
      return mine;
    },
    close,
  };
}

async function sharedDatabase(undo: (() => Promise<unknown>)[]): Promise<string> {
  const database = await createDatabase();
  undo.push(() => database.drop());
  return database.url;
}

async function ownDatabase(postgres: TestPostgres): Promise<string> {
  const url = new URL(postgres.url);
  url.pathname = `/${databaseName('chaos')}`;
  await query(postgres.url, `create database "${url.pathname.slice(1)}" template template0 encoding 'UTF8'`);
  await migrate({ databaseUrl: url.href });
  return url.href;
}

function chaosServer(server: TestServer, name: string, control: Control, databaseUrl: string): ChaosServer {
  let gone = false;
  let stopped = false;
  void server.exit.then(() => {
    gone = true;
  });
  return {
    ...server,
    name,
    get reachable() {
      return !gone && !stopped;
    },
    kill(signal) {
      if (signal === 'SIGKILL') gone = true;
      if (signal === 'SIGSTOP') stopped = true;
      if (signal === 'SIGCONT') stopped = false;
      server.kill(signal);
    },
    arm: (faults, group = 'main') => control.arm(server.pid, faults, group),
    async reached(fault, timeoutMs = 20_000) {
      const line = reachedLine(fault);
      await until(() => server.logs().includes(line), { timeoutMs, message: `${name}: ${line}` });
      // It stopped itself.
      if (fault.action === 'stop') stopped = true;
      if (fault.action === 'kill') gone = true;
    },
    async settled() {
      const text = `
        select 1 from workers
        where pid = $1 and started_at < clock_timestamp() - $2 * interval '1 ms'
          and pg_postmaster_start_time() < clock_timestamp() - $2 * interval '1 ms'`;
      await until(async () => (await query(databaseUrl, text, [server.pid, SETTLE_MS])).rowCount === 1, {
        timeoutMs: 60_000,
        message: `${name} to be a judge of others`,
      });
    },
  };
}

/** Kills them and waits. */
export async function endAll(servers: Iterable<ChaosServer>): Promise<void> {
  const ending = [...servers];
  for (const server of ending) {
    server.kill('SIGCONT');
    server.kill('SIGKILL');
  }
  await Promise.all(ending.map((server) => server.exit));
}

/** The same options give the same text. */
export function stageKey(options: StageOptions): string {
  return createHash('sha1').update(JSON.stringify(options)).digest('hex');
}
