/** Which pages of other origins may use the server, and what they may send and see. The same on every response. */
import cors from '@fastify/cors';
import type { FastifyInstance } from 'fastify';

export interface CorsOptions {
  /** Exact origins, or '*' for every page. Empty: no CORS headers at all. */
  origins: readonly string[];
  /** Whether pages may send cookies and other credentials of the browser. */
  credentials: boolean;
}

const METHODS = ['GET', 'HEAD', 'POST', 'PUT', 'PATCH', 'DELETE'];
const ALLOWED_HEADERS = [
  'Authorization',
  'Content-Type',
  'Last-Event-ID',
  'Idempotency-Key',
  'X-Dev-User',
  'X-Request-Id',
  // what LangGraph's clients send
  'X-Api-Key',
  'X-Auth-Scheme',
  'Prefer',
];
const EXPOSED_HEADERS = [
  'Content-Location',
  'Location',
  'X-Request-Id',
  'Retry-After',
  'X-Pagination-Total',
  'X-Pagination-Next',
];
const PREFLIGHT_MAX_AGE_SECONDS = 600;

/**
 * Adds the CORS hook; it runs before authentication, so refusals carry the headers too.
 * @throws Error for '*' with credentials: browsers refuse it, and echoing any origin instead would let every page act as the user
 */
export async function registerCors(app: FastifyInstance, options: CorsOptions): Promise<void> {
  if (options.origins.length === 0) return;
  const any = options.origins.includes('*');
  if (any && options.credentials) {
    throw new Error("server.cors: origins '*' cannot be combined with credentials; list the origins");
  }
  await app.register(cors, {
    origin: any ? '*' : [...options.origins],
    credentials: options.credentials,
    methods: METHODS,
    allowedHeaders: ALLOWED_HEADERS,
    exposedHeaders: EXPOSED_HEADERS,
    maxAge: PREFLIGHT_MAX_AGE_SECONDS,
    strictPreflight: false,
  });
}
