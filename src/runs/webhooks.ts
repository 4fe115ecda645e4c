/** The webhooks of runs as their owner sees them. Sending them is src/outbox/. */
import { RunledgerError } from '#src/errors.ts';
import { listOutbox, type OutboxEntry, type OutboxStatus, requeue } from '#src/outbox/entries.ts';
import type { Pool } from '#src/postgres/pool.ts';
import type { WebhookDelivery } from './run.ts';

/** Newest first. @throws INVALID_CURSOR */
export async function listDeliveries(
  pool: Pool,
  owner: string,
  page: { status?: OutboxStatus | undefined; limit: number; cursor?: string | undefined },
): Promise<{ deliveries: WebhookDelivery[]; next_cursor: string | null }> {
  const { entries, next_cursor } = await listOutbox(pool, owner, page);
  return { deliveries: entries.map(toDelivery), next_cursor };
}

/** Another try for a delivery that was given up. @throws DELIVERY_NOT_FOUND */
export async function requeueDelivery(
  pool: Pool,
  owner: string,
  id: string,
): Promise<{ delivery: WebhookDelivery; requeued: boolean }> {
  const found = await requeue(pool, owner, id);
  if (found === null) throw new RunledgerError('DELIVERY_NOT_FOUND', 'There is no such delivery.');
  return { delivery: toDelivery(found.entry), requeued: found.requeued };
}

function toDelivery({ target, kind: _kind, ...entry }: OutboxEntry): WebhookDelivery {
  const url = typeof target === 'object' && target !== null && 'url' in target ? target.url : null;
  return { ...entry, url: typeof url === 'string' ? url : null };
}
