/** Where things are. Paths without a host: the client knows how it reached the server. */

export const REST_PREFIX = '/api/v1';

export function threadPath(threadId: string): string {
  return `${REST_PREFIX}/threads/${threadId}`;
}

export function runPath(runId: string): string {
  return `${REST_PREFIX}/runs/${runId}`;
}

/** The event stream of one run. */
export function streamPath(threadId: string, runId: string): string {
  return `${threadPath(threadId)}/messages/stream?run_id=${runId}`;
}
