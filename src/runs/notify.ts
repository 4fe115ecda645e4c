/** Hints to other processes, sent after commit, never inside an admission's transaction (NOTIFY serialises commits). */
import type { Logger } from 'pino';
import type { Pool } from '#src/postgres/pool.ts';
import { CANCEL_CHANNEL, WAKE_CHANNEL } from './worker.ts';

/** At most one NOTIFY per channel in this time; a hint may be late, and the poll behind it makes a lost one harmless. */
const COALESCE_MS = 10;

export interface Notifier {
  /** A run may be claimable. */
  wake(): void;
  /** A running run was asked to stop. */
  cancelRequested(): void;
  close(): Promise<void>;
}

export function createNotifier(pool: Pool, logger: Logger): Notifier {
  const pending = new Map<string, NodeJS.Timeout>();
  const inFlight = new Set<Promise<void>>();

  function send(channel: string): void {
    if (pending.has(channel)) return;
    pending.set(
      channel,
      setTimeout(() => {
        pending.delete(channel);
        const sent = pool
          .query('select pg_notify($1, $2)', [channel, ''])
          .then(() => undefined)
          .catch((error: unknown) => logger.warn({ err: error, channel }, 'hint not sent; the poll behind it will do'))
          .finally(() => inFlight.delete(sent));
        inFlight.add(sent);
      }, COALESCE_MS),
    );
  }

  return {
    wake: () => send(WAKE_CHANNEL),
    cancelRequested: () => send(CANCEL_CHANNEL),
    async close() {
      for (const timer of pending.values()) clearTimeout(timer);
      pending.clear();
      await Promise.all(inFlight);
    },
  };
}
