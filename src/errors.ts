/**
 * The closed set of refusals. The core throws `RunledgerError(code)`; each dialect owns a total map from code to its
 * wire form, so a new code does not compile until every dialect can say it. Messages are safe for clients: never
 * third-party text, never a secret.
 */
export const REFUSAL_CODES = [
  'INVALID_REQUEST', // body, query or header is ill-formed; `path` names the field
  'INVALID_CHARACTER', // NUL or a lone surrogate in a text; `path` names the field
  'INVALID_CURSOR', // last_event_id is no cursor
  'UNAUTHENTICATED',
  'FORBIDDEN',
  'NOT_FOUND', // no such route
  'THREAD_NOT_FOUND',
  'RUN_NOT_FOUND',
  'GRAPH_NOT_FOUND',
  'ASSISTANT_NOT_FOUND',
  'ASSISTANT_VERSION_NOT_FOUND',
  'ASSISTANT_EXISTS', // its id is taken
  'CRON_NOT_FOUND',
  'THREAD_EXISTS', // its id is taken
  'NOT_IMPLEMENTED', // a route that is not built yet
  'DELIVERY_NOT_FOUND', // a webhook's delivery
  'INTERRUPT_NOT_FOUND',
  'INTERRUPT_ANSWERED',
  'INTERRUPT_AMBIGUOUS', // a bare resume value while several interrupts are open
  'RUN_IN_PROGRESS',
  'TURN_WAITING_APPROVAL',
  'IDEMPOTENCY_KEY_REUSED',
  'NOT_PREPARED', // start of a run that is not prepared
  'NOT_RERUNNABLE',
  'STREAM_EXPIRED',
  'PAYLOAD_TOO_LARGE',
  'UNAVAILABLE', // Postgres or the pool cannot serve now; try again later
  'INTERNAL',
] as const;
export type RefusalCode = (typeof REFUSAL_CODES)[number];

/** A refusal with a documented code. `path`: the field in the request, dotted. `details`: facts the dialect may show. */
export class RunledgerError extends Error {
  override readonly name = 'RunledgerError';
  readonly code: RefusalCode;
  readonly path: string | undefined;
  readonly details: { readonly [key: string]: unknown };

  constructor(
    code: RefusalCode,
    message: string,
    options: { path?: string; details?: { [key: string]: unknown }; cause?: unknown } = {},
  ) {
    super(message, options.cause === undefined ? {} : { cause: options.cause });
    this.code = code;
    this.path = options.path;
    this.details = options.details ?? {};
  }
}
