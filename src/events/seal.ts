/** The end of a run's log. Only runs/finalize.ts may import this: nothing is sealed before Postgres has the end. */
import type { Hub } from './hub.ts';
import type { EventLog, LogEntry } from './log.ts';

/**
 * Appends the held interrupt parts and the seal, shows them to local viewers, and lets the log expire.
 * In: `entries` end with the seal; `ttlMs` counts from now. Out: whether the entries are in the log; false when a later
 * epoch has begun there. Repeating it with the same entries is safe.
 * @throws LogUnavailable when the log cannot say; then repeat it later
 */
export async function appendEnd(request: {
  log: EventLog;
  hub: Pick<Hub, 'deliver'>;
  runId: string;
  entries: LogEntry[];
  ttlMs: number;
}): Promise<boolean> {
  const { log, hub, runId, entries, ttlMs } = request;
  const [result] = await log.append([{ runId, entries }]);
  if (result !== 'appended') return false;
  hub.deliver(runId, entries);
  await log.expireAfter(runId, ttlMs);
  return true;
}
