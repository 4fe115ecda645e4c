/**
 * The closed set of ways a run can end badly. Each has a fixed, client-safe sentence and says what helps:
 * retry (the server holds the input), resend (only the client does), none.
 */
import type { RunFailure } from '#src/events/event.ts';

const FAILURES = {
  MODEL_RATE_LIMITED: ['The model provider is limiting requests. Try again in a moment.', 'retry'],
  MODEL_UNAVAILABLE: ['The model provider could not be reached or failed.', 'retry'],
  MODEL_TIMEOUT: ['The model did not answer in time.', 'retry'],
  MODEL_REJECTED: ['The model provider refused the request.', 'none'],
  MODEL_AUTH: ['The model provider refused the credentials of this server.', 'retry'],
  RUN_TIMEOUT: ['The run took longer than the server allows.', 'retry'],
  RECURSION_LIMIT: ['The graph took more steps than its limit allows.', 'retry'],
  GRAPH_ERROR: ['The graph failed while it ran.', 'retry'],
  GRAPH_UNAVAILABLE: ['The graph could not be loaded.', 'retry'],
  STORAGE_UNAVAILABLE: ['The server could not reach its database.', 'retry'],
  TAKEOVERS_EXHAUSTED: ['The run stopped several workers and was given up.', 'retry'],
  INTERNAL: ['The server failed while it executed the run.', 'retry'],
} as const satisfies Record<string, readonly [message: string, recovery: RunFailure['recovery']]>;

export type FailureCode = keyof typeof FAILURES;

export function failure(code: FailureCode): RunFailure {
  const [message, recovery] = FAILURES[code];
  return { code, message, recovery };
}

/** Characters of a graph's own error that are kept. */
const MAX_THROWN = 10_000;

/** The failure with what a graph itself threw, for servers that are configured to say it. */
export function failureOf(code: FailureCode, error: unknown): RunFailure {
  if (code !== 'GRAPH_ERROR') return failure(code);
  const [name, message] = error instanceof Error ? [error.name, error.message] : ['Error', String(error)];
  const kept = message.toWellFormed().replaceAll('\0', '\ufffd').slice(0, MAX_THROWN);
  return { ...failure(code), thrown: { name: String(name), message: kept } };
}
