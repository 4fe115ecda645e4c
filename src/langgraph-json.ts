/**
 * langgraph.json, the file that projects for LangGraph's own server have. What it says is added to config.yaml; langgraph-merge.ts
 * puts the two together. docs/hosting.md lists the keys.
 */
import { readFileSync } from 'node:fs';
import { dirname, resolve } from 'node:path';
import { parseEnv } from 'node:util';
import { z } from 'zod';
import {
  ConfigError,
  type GraphEntry,
  type HeaderPatterns,
  headerPatterns,
  type ModuleExport,
  parsed,
  toModuleExport,
} from './config-parts.ts';
import type { DisabledRoutes } from './dialects/langgraph/route.ts';
import type { CorsOptions } from './http/cors.ts';
import type { ComponentPaths } from './http/user-components.ts';
import type { WebhookRules } from './outbox/webhook-url.ts';
import type { StoreTtl } from './store/service.ts';
import type { ThreadTtl } from './threads/service.ts';

export interface LangGraphJson {
  /** The file, for messages. */
  source: string;
  graphs: { [graphId: string]: GraphEntry };
  /** Variables it sets where the environment does not. */
  env: { [name: string]: string };
  auth: { module: ModuleExport; studio: boolean } | null;
  app: ModuleExport | null;
  components: ComponentPaths | null;
  disabled: DisabledRoutes;
  cors: CorsOptions | null;
  headers: HeaderPatterns | null;
  store: StoreTtl;
  /** For threads that are made without a ttl; null: they stay. */
  threadTtl: ThreadTtl | null;
  /** Further rules for the URLs of webhooks; `publicOnly`: never into this server's own network. */
  webhooks: WebhookRules & { publicOnly: boolean };
  /** Sentences about keys without effect, each with the key's path. */
  warnings: string[];
}

const path = z.string().min(1);
const minutes = z.number().positive();
const flag = z.boolean().default(false);
const strings = z.array(z.string());

const pattern = z.string().refine((text) => {
  try {
    return new RegExp(text) !== null;
  } catch {
    return false;
  }
}, 'must be a regular expression');

// Keys that are not here are left out, and said in a warning.
const schema = z.object({
  graphs: z
    .record(
      z.string().regex(/^[A-Za-z0-9_.-]{1,64}$/, 'must be 1 to 64 letters, digits, `_`, `.` or `-`'),
      z.union([path, z.object({ path, description: z.string().optional() })]),
    )
    .refine((graphs) => Object.keys(graphs).length > 0, 'must name a graph'),
  env: z.union([path, z.record(z.string(), z.string())]).optional(),
  auth: z.object({ path, disable_studio_auth: z.boolean().default(true) }).optional(),
  http: z
    .object({
      app: path.optional(),
      disable_assistants: flag,
      disable_threads: flag,
      disable_runs: flag,
      disable_store: flag,
      disable_meta: flag,
      // The platform's documents have both spellings.
      configurable_headers: z
        .object({ ...headerPatterns, include: headerPatterns.includes, exclude: headerPatterns.excludes })
        .optional(),
      cors: z
        .object({
          allow_origins: strings.optional(),
          allow_methods: strings.optional(),
          allow_headers: strings.optional(),
          allow_credentials: flag,
          allow_origin_regex: pattern.optional(),
          expose_headers: strings.optional(),
          max_age: z.number().int().min(0).optional(),
        })
        .optional(),
    })
    .prefault({}),
  // The names are parts of URLs and of names of folders.
  ui: z
    .record(z.string().regex(/^[A-Za-z0-9_-]{1,64}$/, 'must be 1 to 64 letters, digits, `_` or `-`'), path)
    .default({}),
  ui_config: z.object({ shared: strings.default([]) }).prefault({}),
  store: z
    .object({
      ttl: z
        .object({
          refresh_on_read: z.boolean().default(true),
          default_ttl: minutes.nullish(),
        })
        .optional(),
    })
    .prefault({}),
  checkpointer: z
    .object({
      ttl: z
        .object({
          strategy: z.enum(['delete', 'keep_latest']).default('delete'),
          default_ttl: minutes.nullish(),
        })
        .optional(),
    })
    .prefault({}),
  webhooks: z
    .object({
      url: z
        .object({
          require_https: flag,
          allowed_domains: strings.optional(),
          allowed_ports: z.array(z.number().int().min(1).max(65_535)).optional(),
          max_url_length: z.number().int().min(1).optional(),
          disable_loopback: flag,
        })
        .prefault({}),
    })
    .prefault({}),
});
type Parsed = z.output<typeof schema>;

/** Keys of other tools, and of how a project is built; nobody expects them to do anything here. */
const OF_OTHERS = new Set([
  '$schema',
  'node_version',
  'node_loader',
  'python_version',
  'pip_config_file',
  'pip_installer',
  'dependencies',
  'dockerfile_lines',
  'docker_compose_file',
  'base_image',
  'image_distro',
  'api_version',
  '_INTERNAL_docker_tag',
  'keep_pkg_tools',
]);

/**
 * @param file path of the langgraph.json; paths in it are relative to it
 * @throws ConfigError naming each offending key by its path
 */
export function readLangGraphJson(file: string): LangGraphJson {
  const raw = readJson(file);
  const json = parsed(schema, raw, file);
  const base = dirname(resolve(file));
  const graphs = Object.entries(json.graphs).map(([id, entry]): [string, GraphEntry] => {
    const { path: module, description = null } =
      typeof entry === 'string' ? { path: entry } : { path: entry.path, description: entry.description };
    return [id, { ...toModuleExport(module, base), context: 'checkpoint', description }];
  });
  const { auth, http, store, checkpointer, webhooks } = json;
  const ttl = checkpointer.ttl?.default_ttl;
  return {
    source: file,
    graphs: Object.fromEntries(graphs),
    env: typeof json.env === 'string' ? readEnv(resolve(base, json.env), file) : (json.env ?? {}),
    auth: auth === undefined ? null : { module: toModuleExport(auth.path, base), studio: !auth.disable_studio_auth },
    app: http.app === undefined ? null : toModuleExport(http.app, base),
    components:
      Object.keys(json.ui).length === 0
        ? null
        : { source: resolve(file), modules: json.ui, shared: json.ui_config.shared },
    disabled: {
      assistants: http.disable_assistants,
      threads: http.disable_threads,
      runs: http.disable_runs,
      store: http.disable_store,
      meta: http.disable_meta,
    },
    cors: http.cors === undefined ? null : corsOf(http.cors),
    headers: headersOf(http.configurable_headers),
    store: {
      defaultTtlMinutes: store.ttl?.default_ttl ?? null,
      refreshOnRead: store.ttl?.refresh_on_read ?? true,
    },
    threadTtl: ttl == null ? null : { minutes: ttl, strategy: checkpointer.ttl?.strategy ?? 'delete' },
    webhooks: {
      requireHttps: webhooks.url.require_https,
      domains: webhooks.url.allowed_domains ?? null,
      ports: webhooks.url.allowed_ports ?? null,
      maxLength: webhooks.url.max_url_length ?? null,
      publicOnly: webhooks.url.disable_loopback,
    },
    warnings: leftOut(raw, json).map((key) => `${file}: ${key}: has no effect on this server`),
  };
}

function corsOf(cors: NonNullable<Parsed['http']['cors']>): CorsOptions {
  // A pattern alone allows what it matches; neither allows every page, as LangGraph's own server does.
  const origins = cors.allow_origins ?? (cors.allow_origin_regex === undefined ? ['*'] : []);
  return {
    origins,
    credentials: cors.allow_credentials,
    originPattern: cors.allow_origin_regex,
    methods: cors.allow_methods,
    allowedHeaders: cors.allow_headers,
    exposedHeaders: cors.expose_headers,
    maxAgeSeconds: cors.max_age,
  };
}

function headersOf(asked: Parsed['http']['configurable_headers']): HeaderPatterns | null {
  if (asked === undefined) return null;
  return { includes: asked.includes ?? asked.include, excludes: asked.excludes ?? asked.exclude };
}

function readJson(file: string): unknown {
  const text = readText(file, file);
  try {
    return JSON.parse(text);
  } catch {
    throw new ConfigError(`${file}: is not valid JSON`);
  }
}

function readEnv(envFile: string, source: string): { [name: string]: string } {
  const variables = parseEnv(readText(envFile, `${source}: env: ${envFile}`));
  return Object.fromEntries(
    Object.entries(variables).flatMap(([name, value]) => (value == null ? [] : [[name, value]])),
  );
}

function readText(file: string, named: string): string {
  try {
    return readFileSync(file, 'utf8');
  } catch {
    throw new ConfigError(`${named}: cannot be read`);
  }
}

/** Paths of keys that were read and are not in what was made of them: nothing here acts on them. */
function leftOut(raw: unknown, read: unknown, within = ''): string[] {
  if (!isObject(raw) || !isObject(read)) return [];
  return Object.entries(raw).flatMap(([key, value]) => {
    if (key in read) return leftOut(value, read[key], `${within}${key}.`);
    return within === '' && OF_OTHERS.has(key) ? [] : [`${within}${key}`];
  });
}

function isObject(value: unknown): value is { [key: string]: unknown } {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}
