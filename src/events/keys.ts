/** Every name the event log has in Redis. The braces keep a run's key and channel in one slot of a cluster. */

/** The stream that holds a run's entries. */
export function logKey(runId: string): string {
  return `runledger:{${runId}}:log`;
}

/** The channel on which a run's entries are published as they are appended. */
export function liveChannel(runId: string): string {
  return `runledger:{${runId}}:live`;
}
