/** What the tests of the outbox stand on: receivers that are real HTTP servers, drains, and a log that can be read. */
import { randomUUID } from 'node:crypto';
import http from 'node:http';
import type { AddressInfo } from 'node:net';
import { pino } from 'pino';
import type { Json } from '#src/events/event.ts';
import { createDrain, type Drain, type DrainDeps } from '#src/outbox/drain.ts';
import { type Effect, enqueue } from '#src/outbox/outbox.ts';
import { createWebhookHandler, WEBHOOK, webhookEffect } from '#src/outbox/webhook.ts';
import type { Pool } from '#src/postgres/pool.ts';
import { inTransaction } from '#src/postgres/transaction.ts';

export const SECRET = 'whsec_c2VjcmV0LWtleS1vZi10aGUtdGVzdHM=';

export interface Received {
  id: string;
  path: string;
  headers: http.IncomingHttpHeaders;
  body: string;
}

export interface Receiver {
  /** Without a trailing slash. */
  readonly url: string;
  readonly received: Received[];
  close(): Promise<void>;
}

/**
 * A server that keeps what it is sent and answers as told, by default with 204.
 * @param options.host 127.0.0.1 by default
 */
export async function startReceiver(
  answer: (response: http.ServerResponse, received: Received) => void = (response) => response.writeHead(204).end(),
  options: { host?: string } = {},
): Promise<Receiver> {
  const received: Received[] = [];
  const server = http.createServer((request, response) => {
    const chunks: Buffer[] = [];
    request.on('data', (chunk: Buffer) => chunks.push(chunk));
    request.on('end', () => {
      const entry = {
        id: String(request.headers['webhook-id']),
        path: request.url ?? '',
        headers: request.headers,
        body: Buffer.concat(chunks).toString(),
      };
      received.push(entry);
      answer(response, entry);
    });
  });
  const host = options.host ?? '127.0.0.1';
  await new Promise<void>((resolve, reject) => {
    server.on('error', reject);
    server.listen(0, host, resolve);
  });
  const { port } = server.address() as AddressInfo;
  return {
    url: `http://${host.includes(':') ? `[${host}]` : host}:${port}`,
    received,
    async close() {
      server.closeAllConnections();
      await new Promise((resolve) => server.close(resolve));
    },
  };
}

export interface Queued {
  id: string;
  runId: string;
  owner: string;
}

/** Commits an effect and returns its id. */
export async function queue(pool: Pool, effect: Effect): Promise<Queued> {
  await inTransaction(pool, (tx) => enqueue(tx, effect));
  const { rows } = await pool.query('select id from outbox where run_id = $1::uuid and kind = $2', [
    effect.runId,
    effect.kind,
  ]);
  return { id: rows[0].id, runId: effect.runId, owner: effect.owner };
}

export function queueWebhook(
  pool: Pool,
  url: string,
  fields: { owner?: string; payload?: Json } = {},
): Promise<Queued> {
  const runId = randomUUID();
  return queue(
    pool,
    webhookEffect({ owner: fields.owner ?? 'anna', runId, url, payload: fields.payload ?? { type: 'run.succeeded' } }),
  );
}

/** An effect of a kind only the test delivers. */
export function effectOf(fields: Partial<Effect> = {}): Effect {
  return { kind: 'note', owner: 'anna', runId: randomUUID(), payload: { n: 1 }, target: {}, lane: 'one', ...fields };
}

/** The row as stored. */
export async function rowOf(pool: Pool, id: string) {
  const { rows } = await pool.query('select * from outbox where id = $1::uuid', [id]);
  return rows[0];
}

/** Makes a waiting row due now, in place of waiting for its pause to end. */
export async function makeDue(pool: Pool, id: string): Promise<void> {
  await pool.query('update outbox set available_at = clock_timestamp() where id = $1::uuid', [id]);
}

/** A logger that keeps its lines. */
export function memoryLogger() {
  const lines: string[] = [];
  const logger = pino({ level: 'trace' }, { write: (line: string) => lines.push(line) });
  return { logger, text: () => lines.join('') };
}

/** A drain that sends webhooks to private addresses, with limits that tests do not run into. */
export function drainOf(pool: Pool, options: Partial<DrainDeps> & { timeoutMs?: number } = {}): Drain {
  const { timeoutMs = 5_000, ...deps } = options;
  return createDrain({
    pool,
    handlers: { [WEBHOOK]: createWebhookHandler({ secret: SECRET, allowPrivate: true, timeoutMs }) },
    intervalMs: 20,
    concurrency: 20,
    perLane: 3,
    leaseMs: 30_000,
    maxAttempts: 5,
    logger: pino({ level: 'silent' }),
    ...deps,
  });
}
