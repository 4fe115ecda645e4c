/** What an error of Postgres or of the way to it means. SQLSTATEs: PostgreSQL documentation, appendix A. */

/** The SQLSTATE or system error code of an error, or of what caused it. */
export function codeOf(error: unknown): string | null {
  if (typeof error !== 'object' || error === null) return null;
  if ('code' in error && typeof error.code === 'string') return error.code;
  return 'cause' in error ? codeOf(error.cause) : null;
}

export function isUniqueViolation(error: unknown, constraint?: string): boolean {
  if (codeOf(error) !== '23505') return false;
  return constraint === undefined || (error as { constraint?: string }).constraint === constraint;
}

/** Serialization failure, deadlock: the same transaction may succeed when it is tried again. */
export function isConflict(error: unknown): boolean {
  const code = codeOf(error);
  return code === '40001' || code === '40P01';
}

const UNAVAILABLE = new Set([
  '40001', // serialization_failure
  '40P01', // deadlock_detected
  '53300', // too_many_connections
  '53400', // configuration_limit_exceeded
  '53100', // disk_full
  '55P03', // lock_not_available (lock_timeout)
  '57014', // query_canceled (statement_timeout)
  '57P01', // admin_shutdown
  '57P02', // crash_shutdown
  '57P03', // cannot_connect_now
  '57P05', // idle_session_timeout
  '25P03', // idle_in_transaction_session_timeout
  'ECONNREFUSED',
  'ECONNRESET',
  'EPIPE',
  'ETIMEDOUT',
  'EHOSTUNREACH',
  'ENOTFOUND',
  'EAI_AGAIN',
]);

/** node-postgres gives these no code; the texts are its own constants. */
const UNAVAILABLE_TEXTS = new Set([
  'timeout exceeded when trying to connect',
  'Query read timeout',
  'Connection terminated',
  'Connection terminated unexpectedly',
  'Connection terminated due to connection timeout',
  'Client has encountered a connection error and is not queryable',
  'Client was closed and is not queryable',
]);

/** Postgres cannot be reached, is going down or is too busy: the same statement may succeed later. */
export function isUnavailable(error: unknown): boolean {
  const code = codeOf(error);
  if (code !== null && (UNAVAILABLE.has(code) || code.startsWith('08'))) return true;
  if (!(error instanceof Error)) return false;
  return UNAVAILABLE_TEXTS.has(error.message) || (error.cause !== undefined && isUnavailable(error.cause));
}
