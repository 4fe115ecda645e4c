/** Which pages of other origins may use the server, and what they may send and see. The same on every response. */
import cors from '@fastify/cors';
import type { FastifyInstance } from 'fastify';

export interface CorsOptions {
  /** Exact origins, or '*' for every page. Empty: no CORS headers at all. */
  origins: readonly string[];
  /** Whether pages may send cookies and other credentials of the browser. */
  credentials: boolean;
  /** Origins that this matches, wholly, may use the server too. */
  originPattern?: string | undefined;
  /** In place of what our routes take; `*` is every one. */
  methods?: readonly string[] | undefined;
  /** In place of the headers our routes read; `*` is every one. */
  allowedHeaders?: readonly string[] | undefined;
  /** Besides the headers our routes answer with. */
  exposedHeaders?: readonly string[] | undefined;
  maxAgeSeconds?: number | undefined;
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
  const { origins, originPattern: pattern } = options;
  if (origins.length === 0 && pattern === undefined) return;
  const any = origins.includes('*');
  if (any && options.credentials) {
    throw new Error("server.cors: origins '*' cannot be combined with credentials; list the origins");
  }
  await app.register(cors, {
    origin: any ? '*' : [...origins, ...(pattern === undefined ? [] : [new RegExp(`^(?:${pattern})$`)])],
    credentials: options.credentials,
    methods: options.methods?.includes('*') === false ? [...options.methods] : METHODS,
    ...(options.allowedHeaders?.includes('*') === true
      ? {}
      : { allowedHeaders: [...(options.allowedHeaders ?? ALLOWED_HEADERS)] }),
    exposedHeaders: [...new Set([...EXPOSED_HEADERS, ...(options.exposedHeaders ?? [])])],
    maxAge: options.maxAgeSeconds ?? PREFLIGHT_MAX_AGE_SECONDS,
    strictPreflight: false,
  });
}
