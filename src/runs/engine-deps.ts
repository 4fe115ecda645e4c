/** What the engine is built from. */
import type { Logger } from 'pino';
import type { Hub } from '#src/events/hub.ts';
import type { EventLog } from '#src/events/log.ts';
import type { LogWriter } from '#src/events/writer.ts';
import type { GraphRegistry } from '#src/graphs/graph.ts';
import type { WebhookPolicy } from '#src/outbox/webhook-url.ts';
import type { ConnectionLimits, Pool } from '#src/postgres/pool.ts';
import type { StoreTtl } from '#src/store/service.ts';
import type { SweepConfig } from './sweeps.ts';

export interface EngineConfig {
  roles: readonly string[];
  defaultGraph: string;
  auth: { mode: 'none' | 'dev' | 'jwt' | 'module' };
  langgraph: { showsGraphErrors: boolean };
  runs: {
    concurrency: number;
    timeoutMs: number;
    recursionLimit: number;
    maxRetries: number;
    maxTakeovers: number;
    drainTimeoutMs: number;
    preparedTtlMs: number;
  };
  events: { streamTtlMs: number };
  postgres: ConnectionLimits;
  webhooks: WebhookPolicy & { secret: string | null; timeoutMs: number; maxAttempts: number };
  store: StoreTtl;
  retention: SweepConfig['retention'];
  checkpoints: SweepConfig['checkpoints'];
}

export interface EngineDeps {
  config: EngineConfig;
  /** For the liveness connection: direct, never through a pooler. */
  databaseUrl: string;
  pool: Pool;
  checkpointPool: Pool;
  log: EventLog;
  hub: Hub;
  writer: LogWriter;
  graphs: GraphRegistry;
  /** Where this process listens; null while it does not. */
  ownUrl?: (() => string | null) | undefined;
  logger: Logger;
}
