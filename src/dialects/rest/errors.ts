/** Every refusal in the form of the REST dialect: `{code, message, request_id, path?}` and what the code adds. */
import type { RefusalCode } from '#src/errors.ts';
import { answerOf } from '#src/http/access.ts';
import type { RefusalRenderer } from '#src/http/errors.ts';
import type { RefusalRule } from '../dialect.ts';
import { streamPath } from './links.ts';

const RETRY_AFTER_SECONDS = 1;

const RULES = {
  INVALID_REQUEST: { status: 422 },
  INVALID_CHARACTER: { status: 422 },
  INVALID_CURSOR: { status: 400 },
  UNAUTHENTICATED: { status: 401, headers: () => ({ 'www-authenticate': 'Bearer' }) },
  FORBIDDEN: { status: 403 },
  NOT_FOUND: { status: 404 },
  THREAD_NOT_FOUND: { status: 404 },
  RUN_NOT_FOUND: { status: 404 },
  GRAPH_NOT_FOUND: { status: 404 },
  ASSISTANT_NOT_FOUND: { status: 404 },
  ASSISTANT_VERSION_NOT_FOUND: { status: 404 },
  CRON_NOT_FOUND: { status: 404 },
  ASSISTANT_EXISTS: { status: 409 },
  THREAD_EXISTS: { status: 409 },
  NOT_IMPLEMENTED: { status: 501 },
  DELIVERY_NOT_FOUND: { status: 404 },
  INTERRUPT_NOT_FOUND: { status: 404 },
  INTERRUPT_ANSWERED: { status: 409 },
  INTERRUPT_AMBIGUOUS: { status: 409 },
  RUN_IN_PROGRESS: {
    status: 409,
    body: ({ run_id }) => ({ run_id }),
    // The run that is in the way can be watched there.
    headers: ({ run_id }, threadId) =>
      typeof run_id === 'string' && threadId !== undefined ? { location: streamPath(threadId, run_id) } : {},
  },
  TURN_WAITING_APPROVAL: { status: 409, body: ({ interrupt_ids }) => ({ interrupt_ids }) },
  IDEMPOTENCY_KEY_REUSED: { status: 409, body: ({ run_id }) => ({ run_id }) },
  NOT_PREPARED: { status: 409 },
  NOT_RERUNNABLE: { status: 409 },
  STREAM_EXPIRED: { status: 410, body: ({ run_id, status }) => ({ run: { id: run_id, status } }) },
  PAYLOAD_TOO_LARGE: { status: 413 },
  UNAVAILABLE: { status: 503, headers: () => ({ 'retry-after': String(RETRY_AFTER_SECONDS) }) },
  INTERNAL: { status: 500 },
} as const satisfies Record<RefusalCode, RefusalRule>;

/** Status, headers and body of a refusal. Total over the codes. */
export const renderRefusal: RefusalRenderer = (refusal, request) => {
  const rule: RefusalRule = RULES[refusal.code];
  const answer = answerOf(refusal);
  return {
    status: answer?.status ?? rule.status,
    headers: answer?.headers ?? rule.headers?.(refusal.details, threadIdOf(refusal.details, request.params)) ?? {},
    body: {
      code: refusal.code,
      message: refusal.message,
      request_id: request.id,
      ...(refusal.path !== undefined && { path: refusal.path }),
      ...rule.body?.(refusal.details),
    },
  };
};

function threadIdOf(details: { readonly [key: string]: unknown }, params: unknown): string | undefined {
  const { thread_id: known } = details;
  if (typeof known === 'string') return known;
  const asked = typeof params === 'object' && params !== null && 'id' in params ? params.id : undefined;
  return typeof asked === 'string' ? asked : undefined;
}
