/**
 * config.yaml (behaviour) + environment (addresses, secrets) -> one frozen object. Unknown or ill-typed keys stop the
 * start with the key's path. Durations in the file are `250ms`, `5s`, `10m`, `24h`, `7d`; sizes `64KB`, `8MB`; inside the
 * program they are milliseconds (`...Ms`) and bytes (`...Bytes`).
 */
import { readFileSync } from 'node:fs';
import { dirname, resolve } from 'node:path';
import { parse } from 'yaml';
import { z } from 'zod';
import { envSchema } from './config-env.ts';
import {
  ConfigError,
  duration,
  type GraphEntry,
  headerPatterns,
  parsed,
  size,
  toModuleExport,
} from './config-parts.ts';
import type { LangGraphJson } from './langgraph-json.ts';
import {
  mergedAuth,
  mergedCors,
  mergedGraphs,
  mergedHeaderRules,
  mergedThreadTtl,
  mergedWebhooks,
} from './langgraph-merge.ts';

export { ConfigError, type GraphEntry } from './config-parts.ts';

const count = z.number().int().min(1);

const modulePath = z.string().regex(/^.+:[A-Za-z_$][\w$]*$/, 'must be path:export');
const graphEntry = z.union([
  modulePath,
  z.strictObject({
    path: modulePath,
    context: z.enum(['checkpoint', 'transcript']).default('checkpoint'),
    description: z.string().optional(),
  }),
]);

export const fileSchema = z.strictObject({
  roles: z
    .array(z.enum(['http', 'worker']))
    .min(1)
    .default(['http', 'worker']),
  server: z
    .strictObject({
      host: z.string().default('127.0.0.1'),
      port: z.number().int().min(0).max(65535).default(8123),
      allow_public: z.boolean().default(false),
      body_limit: size.prefault('10MB'),
      sse_keepalive_interval: duration.prefault('5s'),
      stream_write_timeout: duration.prefault('2m'),
      cors: z
        .strictObject({
          origins: z.array(z.string()).default([]),
          credentials: z.boolean().default(false),
        })
        .prefault({}),
    })
    .prefault({}),
  auth: z
    .strictObject({
      mode: z.enum(['none', 'dev', 'jwt', 'module']).default('none'),
      module: modulePath.optional(),
      studio: z.boolean().default(false),
      jwt: z
        .strictObject({
          jwks_url: z.url().optional(),
          issuer: z.string().optional(),
          audience: z.string().optional(),
          algorithms: z.array(z.string()).optional(),
          owner_claim: z.string().default('sub'),
        })
        .prefault({}),
    })
    .prefault({}),
  graphs: z
    .record(z.string().regex(/^[A-Za-z0-9_.-]{1,64}$/), graphEntry)
    .default({ chat: './src/graphs/chat.ts:graph' }),
  default_graph: z.string().optional(),
  model: z
    .strictObject({
      name: z.string().default('gpt-4o-mini'),
      chunk_timeout: duration.prefault('60s'),
      call_timeout: duration.prefault('600s'),
    })
    .prefault({}),
  runs: z
    .strictObject({
      concurrency: count.default(50),
      timeout: duration.prefault('6h'),
      recursion_limit: count.default(100),
      max_retries: z.number().int().min(0).default(3),
      max_takeovers: z.number().int().min(0).default(3),
      prepared_ttl: duration.prefault('1h'),
      drain_timeout: duration.prefault('30s'),
    })
    .prefault({}),
  events: z
    .strictObject({
      stream_ttl: duration.prefault('24h'),
      max_events: count.max(900_000).default(150_000),
      max_bytes: size.prefault('64MB'),
      unacknowledged_bytes: size.prefault('16MB'),
      memory_limit: size.prefault('512MB'),
    })
    .prefault({}),
  postgres: z
    .strictObject({
      pool: count.default(10),
      checkpoint_pool: count.default(10),
      statement_timeout: duration.prefault('30s'),
      lock_timeout: duration.prefault('10s'),
      idle_in_transaction_timeout: duration.prefault('15s'),
      data_dir: z.string().default('.data/postgres'),
    })
    .prefault({}),
  webhooks: z
    .strictObject({
      allow_private: z.boolean().default(false),
      timeout: duration.prefault('10s'),
      max_attempts: count.default(12),
    })
    .prefault({}),
  retention: z
    .strictObject({
      outbox: z.strictObject({ delivered: duration.prefault('7d'), dead: duration.prefault('30d') }).prefault({}),
      threads: duration.optional(),
    })
    .prefault({}),
  checkpoints: z.strictObject({ keep: count.optional() }).prefault({}),
  langgraph: z
    .strictObject({
      graph_errors: z.enum(['hidden', 'shown']).default('hidden'),
      thread_ttl: z
        .strictObject({ default: duration.optional(), strategy: z.enum(['delete', 'keep_latest']).default('delete') })
        .prefault({}),
      configurable_headers: z.strictObject(headerPatterns).optional(),
    })
    .prefault({}),
});

export type Config = ReturnType<typeof loadConfig>;

/**
 * @param options.file path of config.yaml; a missing file is an error only when `required`
 * @param options.flags what the command line overrides
 * @throws ConfigError
 */
export function loadConfig(options: {
  file: string;
  required: boolean;
  env: NodeJS.ProcessEnv;
  flags: { port?: number | undefined; host?: string | undefined; testMode?: boolean | undefined };
  langgraphJson?: LangGraphJson | undefined;
}) {
  const json = options.langgraphJson ?? null;
  const yaml = readYaml(options.file, options.required);
  const file = parsed(fileSchema, withoutEmptySections(yaml), options.file);
  const env = parsed(envSchema, withoutEmpty(options.env), 'environment');
  const base = dirname(resolve(options.file));
  // Beside a langgraph.json our default graph is there only when somebody asked for it.
  const ownGraphs = json !== null && !hasGraphs(yaml) ? [] : Object.entries(file.graphs);
  const own = Object.fromEntries(ownGraphs.map(([id, entry]) => [id, toGraphEntry(entry, base)]));
  const graphs = mergedGraphs(own, json);
  const auth = authOf(options.file, file.auth, base, json);
  const defaultGraph = file.default_graph ?? Object.keys(graphs)[0];
  if (defaultGraph === undefined || graphs[defaultGraph] === undefined) {
    throw new ConfigError(`${options.file}: default_graph: names no graph of graphs`);
  }
  if (file.auth.mode === 'jwt' && env.JWT_SECRET === undefined && file.auth.jwt.jwks_url === undefined) {
    throw new ConfigError(`${options.file}: auth.mode: jwt needs JWT_SECRET in the environment or auth.jwt.jwks_url`);
  }
  return deepFreeze({
    roles: file.roles,
    http: {
      host: options.flags.host ?? env.HOST ?? file.server.host,
      port: options.flags.port ?? env.PORT ?? file.server.port,
      allowPublic: file.server.allow_public,
      bodyLimitBytes: file.server.body_limit,
      sseKeepaliveMs: file.server.sse_keepalive_interval,
      streamWriteTimeoutMs: file.server.stream_write_timeout,
      cors: mergedCors(file.server.cors, json),
      app: json?.app ?? null,
      components: json?.components ?? null,
      disabled: json?.disabled ?? null,
    },
    auth: {
      ...auth,
      jwt: {
        secret: env.JWT_SECRET ?? null,
        jwksUrl: file.auth.jwt.jwks_url ?? null,
        issuer: file.auth.jwt.issuer ?? null,
        audience: file.auth.jwt.audience ?? null,
        algorithms: file.auth.jwt.algorithms ?? null,
        ownerClaim: file.auth.jwt.owner_claim,
      },
    },
    graphs,
    defaultGraph,
    model: {
      apiKey: env.OPENAI_API_KEY ?? null,
      baseUrl: env.OPENAI_BASE_URL ?? null,
      name: env.OPENAI_MODEL ?? file.model.name,
      chunkTimeoutMs: file.model.chunk_timeout,
      callTimeoutMs: file.model.call_timeout,
    },
    runs: {
      concurrency: file.runs.concurrency,
      timeoutMs: file.runs.timeout,
      recursionLimit: file.runs.recursion_limit,
      maxRetries: file.runs.max_retries,
      maxTakeovers: file.runs.max_takeovers,
      preparedTtlMs: file.runs.prepared_ttl,
      drainTimeoutMs: file.runs.drain_timeout,
    },
    events: {
      streamTtlMs: file.events.stream_ttl,
      maxEvents: file.events.max_events,
      maxBytes: file.events.max_bytes,
      unacknowledgedBytes: file.events.unacknowledged_bytes,
      memoryLimitBytes: file.events.memory_limit,
    },
    postgres: {
      url: env.DATABASE_URL ?? null,
      directUrl: env.DATABASE_DIRECT_URL ?? env.DATABASE_URL ?? null,
      poolSize: file.postgres.pool,
      checkpointPoolSize: file.postgres.checkpoint_pool,
      statementTimeoutMs: file.postgres.statement_timeout,
      lockTimeoutMs: file.postgres.lock_timeout,
      idleInTransactionTimeoutMs: file.postgres.idle_in_transaction_timeout,
      dataDir: resolve(base, file.postgres.data_dir),
    },
    webhooks: {
      secret: env.WEBHOOK_SECRET ?? null,
      allowPrivate: file.webhooks.allow_private,
      // A delivery has no credentials: where somebody is asked for, no route would take it.
      allowOwnRoutes: json !== null && json.app !== null && auth.mode === 'none',
      rules: mergedWebhooks({ allowPrivate: file.webhooks.allow_private }, json),
      timeoutMs: file.webhooks.timeout,
      maxAttempts: file.webhooks.max_attempts,
    },
    retention: {
      outboxDeliveredMs: file.retention.outbox.delivered,
      outboxDeadMs: file.retention.outbox.dead,
      threadsMs: file.retention.threads ?? null,
    },
    checkpoints: { keep: file.checkpoints.keep ?? null },
    langgraph: {
      showsGraphErrors: file.langgraph.graph_errors === 'shown',
      defaults: env.LANGGRAPH_CONFIG ?? {},
      threadTtl: mergedThreadTtl(file.langgraph.thread_ttl, json),
      headerRules: mergedHeaderRules(file.langgraph.configurable_headers, json),
    },
    store: json?.store ?? { defaultTtlMinutes: null, refreshOnRead: true },
    testMode: options.flags.testMode ?? false,
    redisUrl: env.REDIS_URL ?? null,
    logLevel: env.LOG_LEVEL ?? 'info',
  });
}

function readYaml(file: string, required: boolean): unknown {
  let text: string;
  try {
    text = readFileSync(file, 'utf8');
  } catch {
    if (required) throw new ConfigError(`${file}: cannot be read`);
    return {};
  }
  try {
    return parse(text) ?? {};
  } catch {
    throw new ConfigError(`${file}: is not valid YAML`);
  }
}

/** A section whose keys are all commented out reads as null and means its defaults. */
function withoutEmptySections(file: unknown): unknown {
  if (typeof file !== 'object' || file === null || Array.isArray(file)) return file;
  return Object.fromEntries(Object.entries(file).filter(([, section]) => section !== null));
}

function toGraphEntry(entry: z.output<typeof graphEntry>, base: string): GraphEntry {
  const { path, context, description } =
    typeof entry === 'string' ? { path: entry, context: 'checkpoint' as const, description: undefined } : entry;
  return { ...toModuleExport(path, base), context, description: description ?? null };
}

function hasGraphs(yaml: unknown): boolean {
  return typeof yaml === 'object' && yaml !== null && 'graphs' in yaml && yaml.graphs !== null;
}

function authOf(source: string, own: z.output<typeof fileSchema>['auth'], base: string, json: LangGraphJson | null) {
  const module = own.module === undefined ? null : toModuleExport(own.module, base);
  if ((own.mode === 'module') !== (module !== null)) {
    throw new ConfigError(`${source}: auth.module: belongs to auth.mode module, which needs it`);
  }
  return mergedAuth({ mode: own.mode, module, studio: own.studio }, json);
}

/** An empty variable counts as not set, as in docker-compose's `KEY=`. */
function withoutEmpty(env: NodeJS.ProcessEnv): NodeJS.ProcessEnv {
  return Object.fromEntries(Object.entries(env).filter(([, value]) => value !== ''));
}

function deepFreeze<T>(value: T): T {
  if (typeof value === 'object' && value !== null) {
    for (const inner of Object.values(value)) deepFreeze(inner);
    Object.freeze(value);
  }
  return value;
}
