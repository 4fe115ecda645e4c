/**
 * config.yaml and langgraph.json put together. What only one of them says is done; what both say is refused, unless config.yaml says
 * no more than the default.
 */
import { ConfigError, type GraphEntry, type HeaderPatterns, type ModuleExport } from './config-parts.ts';
import type { HeaderRules } from './dialects/langgraph/headers.ts';
import type { CorsOptions } from './http/cors.ts';
import type { LangGraphJson } from './langgraph-json.ts';
import type { WebhookRules } from './outbox/webhook-url.ts';
import type { ThreadTtl } from './threads/service.ts';

/**
 * Graphs of both files, those of langgraph.json first: the first is the default.
 * @throws ConfigError when both have one of this name
 */
export function mergedGraphs(
  own: { [graphId: string]: GraphEntry },
  json: LangGraphJson | null,
): { [graphId: string]: GraphEntry } {
  if (json === null) return own;
  for (const id of Object.keys(json.graphs)) {
    if (id in own) throw new ConfigError(`${json.source}: graphs.${id}: config.yaml has a graph of this name too`);
  }
  return { ...json.graphs, ...own };
}

/** @throws ConfigError when both files say who may call from a browser */
export function mergedCors(own: CorsOptions, json: LangGraphJson | null): CorsOptions {
  if (json === null || json.cors === null) return own;
  if (own.origins.length > 0 || own.credentials) {
    throw new ConfigError(`${json.source}: http.cors: config.yaml has server.cors too`);
  }
  return json.cors;
}

/** Which headers runs are told of. @throws ConfigError when both files say it */
export function mergedHeaderRules(own: HeaderPatterns | undefined, json: LangGraphJson | null): HeaderRules {
  if (own !== undefined && json !== null && json.headers !== null) {
    throw new ConfigError(
      `${json.source}: http.configurable_headers: config.yaml has langgraph.configurable_headers too`,
    );
  }
  const { includes = ['x-*', 'user-agent'], excludes = [] } = own ?? json?.headers ?? {};
  return { includes, excludes };
}

/**
 * Who answers for users. langgraph.json's `auth` takes the place of mode none, and of no other.
 * @throws ConfigError when config.yaml says who answers for them, too
 */
export function mergedAuth<Mode extends string>(
  own: { mode: Mode; module: ModuleExport | null; studio: boolean },
  json: LangGraphJson | null,
): { mode: Mode | 'module'; module: ModuleExport | null; studio: boolean } {
  if (json === null || json.auth === null) return own;
  if (own.mode !== 'none' || own.module !== null) {
    throw new ConfigError(`${json.source}: auth: config.yaml has auth.mode ${own.mode} too`);
  }
  return { mode: 'module', ...json.auth };
}

/** @throws ConfigError when config.yaml allows what langgraph.json forbids */
export function mergedWebhooks(own: { allowPrivate: boolean }, json: LangGraphJson | null): WebhookRules | null {
  if (json === null) return null;
  if (json.webhooks.publicOnly && own.allowPrivate) {
    throw new ConfigError(`${json.source}: webhooks.url.disable_loopback: config.yaml has webhooks.allow_private`);
  }
  return json.webhooks;
}

/** How long threads are kept. @throws ConfigError when both files say it */
export function mergedThreadTtl(
  own: { default?: number | undefined; strategy: ThreadTtl['strategy'] },
  json: LangGraphJson | null,
): ThreadTtl | null {
  if (json === null || json.threadTtl === null) {
    return own.default === undefined ? null : { minutes: own.default / 60_000, strategy: own.strategy };
  }
  if (own.default !== undefined) {
    throw new ConfigError(`${json.source}: checkpointer.ttl.default_ttl: config.yaml has langgraph.thread_ttl.default`);
  }
  return json.threadTtl;
}
