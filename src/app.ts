/** The one place that sees every room: builds each from the config, wires them, and takes them down in the right order. */
import type { AddressInfo } from 'node:net';
import type { Logger } from 'pino';
import { createAssistantService, ensureSystemAssistants } from './assistants/service.ts';
import type { Config } from './config.ts';
import { createCronClock, cronReading } from './crons/clock.ts';
import { createCronService } from './crons/service.ts';
import { langgraphDialect } from './dialects/langgraph/index.ts';
import { cronRequestOf } from './dialects/langgraph/start.ts';
import { renderRefusal } from './dialects/rest/errors.ts';
import { restDialect } from './dialects/rest/index.ts';
import { createHub } from './events/live-hub.ts';
import type { EventLog } from './events/log.ts';
import { createLogWriter } from './events/log-writer.ts';
import { createMemoryLog } from './events/memory-log.ts';
import { createRedisLog } from './events/redis-log.ts';
import { createGraphDescriber } from './graphs/describe.ts';
import { createGraphRegistry } from './graphs/registry.ts';
import { provideLogger, provideServer } from './graphs/sdk-globals.ts';
import { createStaticSchemas } from './graphs/static-schemas.ts';
import { type Authenticate, assertListenAllowed, createAuthenticate } from './http/auth.ts';
import { loadAuthModule } from './http/auth-module.ts';
import { registerHealth } from './http/health.ts';
import { createInProcessFetch } from './http/in-process.ts';
import { createMetrics, registerMetrics } from './http/metrics.ts';
import { registerOpenapi } from './http/openapi.ts';
import { registerUserApp } from './http/passage.ts';
import { createHttpServer } from './http/server.ts';
import { loadUserApp } from './http/user-app.ts';
import { bundleComponents } from './http/user-components.ts';
import { assertWebhookUrl } from './outbox/webhook-url.ts';
import { createPool } from './postgres/pool.ts';
import { isUnavailable } from './postgres/sqlstate.ts';
import { createRedis, type RedisClients } from './redis/clients.ts';
import { createEngine } from './runs/engine.ts';
import { createStateService } from './runs/state.ts';
import { truncate } from './runs/truncate.ts';
import { createStoreService } from './store/service.ts';
import { createThreadService } from './threads/service.ts';

/**
 * How long a graph's step waits for its turn to be stored. Nobody watches it do so, and a step that gives up is done again:
 * the model is asked, and paid, anew.
 */
const CHECKPOINT_WAIT_MS = 60_000;

export interface App {
  /** Where it listens, e.g. `http://127.0.0.1:8123`; null without the http role. */
  readonly url: string | null;
  /** The policy of Redis that could drop streams, when it has one. */
  readonly evictionPolicy: string | null;
  /**
   * Readiness off, streams end with a hint to come back or are cut, runs get `runs.drain_timeout` to finish, the rest is handed
   * back; then connections close. Can be called once.
   */
  close(): Promise<void>;
}

/**
 * Starts everything on a database that is migrated.
 * @param databaseUrl  the configured one, or the embedded server's
 * @throws GraphLoadError, LogKindConflict, RedisUnavailable, what Postgres throws: nothing is left running
 */
export async function startApp(config: Config, databaseUrl: string, logger: Logger, version: string): Promise<App> {
  const undo: (() => Promise<unknown>)[] = [];
  const takeDown = async (): Promise<void> => {
    for (const step of undo.splice(0).reverse()) {
      await step().catch((error: unknown) => logger.error({ err: error }, 'a part did not close'));
    }
  };
  try {
    return await build(config, databaseUrl, logger, version, undo, takeDown);
  } catch (error) {
    await takeDown();
    throw error;
  }
}

async function build(
  config: Config,
  databaseUrl: string,
  logger: Logger,
  version: string,
  undo: (() => Promise<unknown>)[],
  takeDown: () => Promise<void>,
): Promise<App> {
  const pool = createPool(databaseUrl, 'app', config.postgres.poolSize, config.postgres, logger);
  undo.push(() => pool.end());
  const checkpointPool = createPool(
    databaseUrl,
    'checkpoints',
    config.postgres.checkpointPoolSize,
    config.postgres,
    logger,
    CHECKPOINT_WAIT_MS,
  );
  undo.push(() => checkpointPool.end());

  const { log, redis } = await openLog(config, logger);
  undo.push(() => log.close());
  const hub = createHub({ log, logger });
  undo.push(() => hub.close());
  const writer = createLogWriter({ log, deliver: hub.deliver, limits: config.events, logger });
  undo.push(() => writer.close());

  provideLogger(logger);
  const graphs = await createGraphRegistry({ graphs: config.graphs, model: config.model });
  let url: string | null = null;
  const metrics = createMetrics({ logger });
  const engine = await createEngine({
    config,
    databaseUrl: config.postgres.directUrl ?? databaseUrl,
    pool,
    checkpointPool,
    log,
    hub,
    writer,
    graphs,
    ownUrl: () => url,
    logger,
  });
  for (const reading of engine.readings) metrics.observe(reading);
  undo.push(() => engine.close());

  const staticSchemas = createStaticSchemas({ graphs: config.graphs, logger });
  const assistantDeps = { pool, graphIds: graphs.ids() };
  const assistants = createAssistantService({
    ...assistantDeps,
    describer: createGraphDescriber({
      pool: checkpointPool,
      graphs,
      fileOf: (graphId) => config.graphs[graphId]?.file,
      staticSchemas,
    }),
  });
  if (config.roles.includes('worker')) {
    const clock = createCronClock({
      pool,
      runs: engine.runs,
      requestOf: (cron) => cronRequestOf({ assistants, threadTtl: config.langgraph.threadTtl }, cron),
      logger,
    });
    metrics.observe(cronReading(clock));
    clock.start();
    undo.push(() => clock.stop());
  }

  url = config.roles.includes('http') ? await serve() : null;
  // Before the server, which waits for its requests.
  undo.push(() => staticSchemas.close());
  return { url, evictionPolicy: await evictionPolicy(redis), close: takeDown };

  async function serve(): Promise<string> {
    const { auth, http } = config;
    assertListenAllowed({ ...auth, host: http.host, allowPublic: http.allowPublic });
    const { app, sse, closing, errorHandler } = await createHttpServer({
      options: http,
      logger,
      metrics,
      renderRefusal,
      isUnavailable,
    });
    let origin = '';
    const ownFetch = createInProcessFetch(app, () => origin);
    const authenticate = await authenticateOf(auth, logger);
    if (http.app !== null) {
      const userApp = await loadUserApp(http.app);
      registerUserApp(app, { userApp, authenticate, bodyLimitBytes: http.bodyLimitBytes });
    }
    registerHealth(app, {
      checks: { postgres: () => pool.query('select 1'), log: () => log.ping() },
      isDraining: () => engine.draining || closing.aborted,
      logger,
    });
    registerMetrics(app, metrics);
    await registerOpenapi(app, { prefix: '/api/v1', version });
    const dialect = {
      runs: engine.runs,
      threads: createThreadService({ pool }),
      graphs,
      sse,
      authenticate,
      closing,
      errorHandler,
      logger,
    };
    await app.register(restDialect(dialect), { prefix: '/api/v1' });
    await ensureSystemAssistants({ ...assistantDeps, defaults: config.langgraph.defaults });
    await app.register(
      langgraphDialect({
        ...dialect,
        assistants,
        states: createStateService({ pool, checkpointPool, graphs, logger }),
        store: createStoreService({ pool, ttl: config.store }),
        crons: createCronService({ pool, assertWebhook: (target) => assertWebhookUrl(target, config.webhooks) }),
        threadTtl: config.langgraph.threadTtl,
        headerRules: config.langgraph.headerRules,
        version,
        disabled: http.disabled,
        components: http.components === null ? null : await bundleComponents(http.components),
        truncate: config.testMode ? (what) => truncate(pool, what) : null,
      }),
    );
    await app.listen({ host: http.host, port: http.port });
    // Streams end first, while runs go on: a client that reconnects elsewhere misses nothing.
    undo.push(() => app.close());
    undo.push(async () => engine.beginDraining());
    const { port } = app.server.address() as AddressInfo;
    origin = `http://${http.host.includes(':') ? `[${http.host}]` : http.host}:${port}`;
    provideServer(origin, ownFetch);
    return origin;
  }
}

async function authenticateOf({ mode, ...auth }: Config['auth'], logger: Logger): Promise<Authenticate> {
  if (mode !== 'module') return createAuthenticate({ mode, jwt: auth.jwt });
  if (auth.module === null) throw new Error('auth.mode module without a module');
  return loadAuthModule({ ...auth.module, studio: auth.studio }, logger);
}

async function openLog(config: Config, logger: Logger): Promise<{ log: EventLog; redis: RedisClients | null }> {
  if (config.redisUrl === null) {
    return { log: createMemoryLog({ memoryLimitBytes: config.events.memoryLimitBytes }), redis: null };
  }
  const redis = createRedis({ url: config.redisUrl, logger });
  return { log: createRedisLog({ redis, logger }), redis };
}

/** Only `noeviction` keeps streams safe; anything else is said at the start. */
async function evictionPolicy(redis: RedisClients | null): Promise<string | null> {
  if (redis === null) return null;
  const policy = await redis.checkEvictionPolicy();
  return policy === 'noeviction' ? null : policy;
}
