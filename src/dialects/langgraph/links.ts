/** Where a run is. Paths without a host: the client knows how it reached the server. */

/** @param stateless the run was asked for without a thread */
export function runPath(run: { id: string; thread_id: string }, stateless: boolean): string {
  return stateless ? `/runs/${run.id}` : `/threads/${run.thread_id}/runs/${run.id}`;
}

/** Where its stream can be joined again. */
export function streamPath(run: { id: string; thread_id: string }, stateless: boolean): string {
  return `${runPath(run, stateless)}/stream`;
}
