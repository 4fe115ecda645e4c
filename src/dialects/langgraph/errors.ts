/** Every refusal in this dialect's form: the message as plain text, or what is wrong with the request as zod tells it. */
import type { RefusalCode, RunledgerError } from '#src/errors.ts';
import { answerOf } from '#src/http/access.ts';
import type { RefusalRenderer } from '#src/http/errors.ts';

interface Rule {
  status: number;
  /** In place of the refusal's own message. */
  text?(refusal: RunledgerError): string;
}

const BUSY = 'Thread is already running a task. Wait for it to finish or choose a different multitask strategy.';

const RULES = {
  INVALID_REQUEST: { status: 400 },
  INVALID_CHARACTER: { status: 400 },
  INVALID_CURSOR: { status: 400 },
  UNAUTHENTICATED: { status: 401 },
  FORBIDDEN: { status: 403 },
  NOT_FOUND: { status: 404, text: () => '404 Not Found' },
  THREAD_NOT_FOUND: { status: 404, text: ({ details, message }) => threadText(details.thread_id) ?? message },
  RUN_NOT_FOUND: { status: 404, text: () => 'Run not found' },
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
  INTERRUPT_AMBIGUOUS: { status: 400 },
  RUN_IN_PROGRESS: { status: 422, text: () => BUSY },
  TURN_WAITING_APPROVAL: { status: 409 },
  IDEMPOTENCY_KEY_REUSED: { status: 409 },
  NOT_PREPARED: { status: 409 },
  NOT_RERUNNABLE: { status: 409 },
  STREAM_EXPIRED: { status: 410 },
  PAYLOAD_TOO_LARGE: { status: 413 },
  UNAVAILABLE: { status: 503 },
  INTERNAL: { status: 500 },
} as const satisfies Record<RefusalCode, Rule>;

/** Details that a route gives where the contract has another answer for the same refusal. */
export interface Form {
  status: number;
  text: string;
}

/** Status, headers and body of a refusal. Total over the codes. */
export const renderRefusal: RefusalRenderer = (refusal) => {
  const answer = answerOf(refusal);
  if (answer !== undefined) return { ...answer, body: refusal.message };
  const { issues, form } = refusal.details as { issues?: unknown; form?: Form };
  const rule: Rule = RULES[refusal.code];
  if (issues !== undefined) {
    return { status: rule.status, headers: {}, body: { success: false, error: { issues, name: 'ZodError' } } };
  }
  const malformed = refusal.code === 'INVALID_REQUEST' && refusal.path === 'body';
  const text = form?.text ?? (malformed ? 'Malformed JSON in request body' : (rule.text?.(refusal) ?? refusal.message));
  return { status: form?.status ?? rule.status, headers: {}, body: text };
};

function threadText(threadId: unknown): string | undefined {
  return typeof threadId === 'string' ? `Thread with ID ${threadId} not found` : undefined;
}
