/** What a graph run threw -> a failure code and whether trying again in place may help. By class, status and code, never by wording. */
import { GraphLoadError } from './load.ts';
import { ModelStalledError, ModelStreamCutError } from './model-fetch.ts';

/** The codes a graph can cause; runs/failures.ts knows each of them. */
export type GraphFailureCode =
  | 'MODEL_RATE_LIMITED'
  | 'MODEL_UNAVAILABLE'
  | 'MODEL_TIMEOUT'
  | 'MODEL_REJECTED'
  | 'MODEL_AUTH'
  | 'RECURSION_LIMIT'
  | 'GRAPH_ERROR'
  | 'GRAPH_UNAVAILABLE';

export interface GraphFailure {
  code: GraphFailureCode;
  /** True for upstream faults that may pass: 429, 5xx, a connection refused or reset. */
  transient: boolean;
}

/** Connection faults of Node and undici that say nothing about the request itself. */
const CONNECTION_CODES = new Set([
  'ECONNREFUSED',
  'ECONNRESET',
  'ECONNABORTED',
  'EPIPE',
  'ENOTFOUND',
  'EAI_AGAIN',
  'EHOSTUNREACH',
  'ENETUNREACH',
  'UND_ERR_SOCKET',
]);
const TIMEOUT_CODES = new Set([
  'ETIMEDOUT',
  'UND_ERR_CONNECT_TIMEOUT',
  'UND_ERR_HEADERS_TIMEOUT',
  'UND_ERR_BODY_TIMEOUT',
]);
/** Types and codes of error objects that providers send inside a stream, after the 200. */
const STREAMED_RATE_LIMIT = new Set(['rate_limit_error', 'rate_limit_exceeded', 'rate_limit_exceeded_error']);
const STREAMED_REJECTION = new Set(['invalid_request_error', 'content_filter', 'context_length_exceeded']);

const PROGRAMMING_ERRORS = new Set(['TypeError', 'ReferenceError', 'RangeError', 'AbortError']);

const GRAPH_ERROR: GraphFailure = { code: 'GRAPH_ERROR', transient: false };

/**
 * @param error what graph.stream or its iteration threw
 * @param fromModel tells whether an error object was thrown by a model call (Translator.fromModel). Without it every fault of an
 *   upstream counts as the model's. An upstream that is no model gives GRAPH_ERROR, which is transient all the same.
 * The caller looks at its own abort signal first: LangGraph throws a plain Error for an abort.
 */
export function classify(error: unknown, fromModel?: (error: unknown) => boolean): GraphFailure {
  if (error instanceof AggregateError && error.errors.length > 0) {
    // Several nodes of one step failed: the one that cannot pass decides.
    const all = error.errors.map((inner) => classify(inner, fromModel));
    return all.find((failure) => !failure.transient) ?? all[0] ?? GRAPH_ERROR;
  }
  const chain = causes(error);
  const own = chain.map(ownFailure).find((failure) => failure !== null);
  if (own) return own;
  const isModels = fromModel === undefined || chain.some(fromModel);
  const upstream = chain.map(upstreamFailure).find((failure) => failure !== null);
  if (upstream) return isModels ? upstream : { code: 'GRAPH_ERROR', transient: upstream.transient };
  return fromModel !== undefined && isModels ? modelFailure(chain) : GRAPH_ERROR;
}

/** A model call failed without a status or a code: its answer made no sense, or the model's own code is wrong. */
function modelFailure(chain: object[]): GraphFailure {
  const names = chain.map(nameOf);
  if (names.some((name) => name !== undefined && PROGRAMMING_ERRORS.has(name))) return GRAPH_ERROR;
  return { code: 'MODEL_UNAVAILABLE', transient: names.includes('SyntaxError') }; // a chunk that was no JSON
}

/** The error and what caused it, outermost first. */
function causes(error: unknown): object[] {
  const chain: object[] = [];
  let current: unknown = error;
  while (typeof current === 'object' && current !== null && chain.length < 10) {
    chain.push(current);
    current = 'cause' in current ? current.cause : undefined;
  }
  return chain;
}

function ownFailure(error: object): GraphFailure | null {
  if (error instanceof ModelStalledError) return { code: 'MODEL_TIMEOUT', transient: false };
  if (error instanceof ModelStreamCutError) return { code: 'MODEL_UNAVAILABLE', transient: true };
  if (error instanceof GraphLoadError) return { code: 'GRAPH_UNAVAILABLE', transient: false };
  // By name: a user's graph may bring its own copy of LangGraph.
  if (nameOf(error) === 'GraphRecursionError') return { code: 'RECURSION_LIMIT', transient: false };
  return null;
}

function upstreamFailure(error: object): GraphFailure | null {
  const { status, code, type } = error as { status?: unknown; code?: unknown; type?: unknown };
  if (typeof status === 'number') return byStatus(status, code);
  if (typeof code === 'string' && CONNECTION_CODES.has(code)) return { code: 'MODEL_UNAVAILABLE', transient: true };
  if (typeof code === 'string' && TIMEOUT_CODES.has(code)) return { code: 'MODEL_TIMEOUT', transient: false };
  if (nameOf(error) === 'TimeoutError') return { code: 'MODEL_TIMEOUT', transient: false };
  return 'error' in error ? byStreamedError(code, type) : null;
}

function byStatus(status: number, code: unknown): GraphFailure | null {
  if (status === 429) return { code: 'MODEL_RATE_LIMITED', transient: code !== 'insufficient_quota' };
  if (status === 401 || status === 403) return { code: 'MODEL_AUTH', transient: false };
  if (status === 408 || status >= 500) return { code: 'MODEL_UNAVAILABLE', transient: true };
  if (status >= 400) return { code: 'MODEL_REJECTED', transient: false };
  return null;
}

/** An error object in the middle of a stream: no status, at best a type or a code. */
function byStreamedError(code: unknown, type: unknown): GraphFailure {
  const status = typeof code === 'number' ? byStatus(code, undefined) : null;
  if (status !== null) return status;
  const names = [code, type].filter((name) => typeof name === 'string');
  if (names.some((name) => STREAMED_RATE_LIMIT.has(name))) return { code: 'MODEL_RATE_LIMITED', transient: true };
  if (names.some((name) => STREAMED_REJECTION.has(name))) return { code: 'MODEL_REJECTED', transient: false };
  return { code: 'MODEL_UNAVAILABLE', transient: true };
}

function nameOf(error: object): string | undefined {
  return 'name' in error && typeof error.name === 'string' ? error.name : undefined;
}
