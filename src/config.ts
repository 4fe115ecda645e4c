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

const UNIT_MS = { ms: 1, s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000 } as const;
const UNIT_BYTES = { B: 1, KB: 1024, MB: 1024 ** 2, GB: 1024 ** 3 } as const;

const duration = z
  .string()
  .regex(/^\d+(ms|s|m|h|d)$/, 'must be a duration such as 250ms, 5s, 10m, 24h or 7d')
  .transform((text) => {
    const unit = text.replace(/^\d+/, '') as keyof typeof UNIT_MS;
    return Number.parseInt(text, 10) * UNIT_MS[unit];
  });
const size = z
  .string()
  .regex(/^\d+(B|KB|MB|GB)$/, 'must be a size such as 64KB or 8MB')
  .transform((text) => {
    const unit = text.replace(/^\d+/, '') as keyof typeof UNIT_BYTES;
    return Number.parseInt(text, 10) * UNIT_BYTES[unit];
  });
const count = z.number().int().min(1);

const graphEntry = z.union([
  z.string().regex(/^.+:[A-Za-z_$][\w$]*$/, 'must be path:export'),
  z.strictObject({
    path: z.string().regex(/^.+:[A-Za-z_$][\w$]*$/, 'must be path:export'),
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
      mode: z.enum(['none', 'dev', 'jwt']).default('none'),
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
  langgraph: z.strictObject({ graph_errors: z.enum(['hidden', 'shown']).default('hidden') }).prefault({}),
});

/** Stops the start. The message names every offending key by its path, and nothing of its value. */
export class ConfigError extends Error {
  override readonly name = 'ConfigError';
}

export interface GraphEntry {
  /** Absolute path of the module and the name of its export. */
  file: string;
  exportName: string;
  context: 'checkpoint' | 'transcript';
  description: string | null;
}

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
}) {
  const file = parsed(fileSchema, withoutEmptySections(readYaml(options.file, options.required)), options.file);
  const env = parsed(envSchema, withoutEmpty(options.env), 'environment');
  const base = dirname(resolve(options.file));
  const graphs = Object.fromEntries(Object.entries(file.graphs).map(([id, entry]) => [id, toGraphEntry(entry, base)]));
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
      cors: file.server.cors,
    },
    auth: {
      mode: file.auth.mode,
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
      timeoutMs: file.webhooks.timeout,
      maxAttempts: file.webhooks.max_attempts,
    },
    retention: {
      outboxDeliveredMs: file.retention.outbox.delivered,
      outboxDeadMs: file.retention.outbox.dead,
      threadsMs: file.retention.threads ?? null,
    },
    checkpoints: { keep: file.checkpoints.keep ?? null },
    langgraph: { showsGraphErrors: file.langgraph.graph_errors === 'shown', defaults: env.LANGGRAPH_CONFIG ?? {} },
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

function parsed<T extends z.ZodType>(schema: T, value: unknown, source: string): z.output<T> {
  const result = schema.safeParse(value);
  if (result.success) return result.data;
  const lines = result.error.issues.flatMap((issue) =>
    issue.code === 'unrecognized_keys'
      ? issue.keys.map((key) => `${[...issue.path, key].join('.')}: unknown key`)
      : [`${issue.path.join('.') || '(top)'}: ${issue.message}`],
  );
  throw new ConfigError(lines.map((line) => `${source}: ${line}`).join('\n'));
}

function toGraphEntry(entry: z.output<typeof graphEntry>, base: string): GraphEntry {
  const { path, context, description } =
    typeof entry === 'string' ? { path: entry, context: 'checkpoint' as const, description: undefined } : entry;
  const colon = path.lastIndexOf(':');
  return {
    file: resolve(base, path.slice(0, colon)),
    exportName: path.slice(colon + 1),
    context,
    description: description ?? null,
  };
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
