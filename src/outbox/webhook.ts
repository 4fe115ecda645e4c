/**
 * Webhooks in the form of Standard Webhooks: a POST of JSON with a stable id, a time and a signature over both and the
 * body. The address is checked at the moment it is connected to, because a name can lead somewhere else than it did when
 * it was admitted.
 */
import { createHmac } from 'node:crypto';
import dns from 'node:dns';
import http from 'node:http';
import https from 'node:https';
import type { LookupFunction } from 'node:net';
import type { Json } from '#src/events/event.ts';
import { codeOf } from '#src/postgres/sqlstate.ts';
import { isPublicAddress } from './addresses.ts';
import type { DeliveryHandler, DeliveryResult } from './drain.ts';
import type { Delivery, Effect } from './outbox.ts';
import { checkWebhookUrl, isOwnRoute } from './webhook-url.ts';

export const WEBHOOK = 'webhook';

/** Only the status counts; a receiver may still finish a short answer in peace. */
const ANSWER_LIMIT_BYTES = 64 * 1024;
const GONE = 410;

/** The effect that tells `url` (as admitted) of a run's end. */
export function webhookEffect(webhook: { owner: string; runId: string; url: string; payload: Json }): Effect {
  const { owner, runId, url, payload } = webhook;
  return {
    kind: WEBHOOK,
    owner,
    runId,
    payload,
    target: { url },
    lane: isOwnRoute(url) ? 'own routes' : new URL(url).origin,
  };
}

export interface WebhookHandlerConfig {
  /** @see signingKey */
  secret: string;
  allowPrivate: boolean;
  /** Where this process listens, for webhooks to routes of its own; null while it does not. */
  ownUrl?: (() => string | null) | undefined;
  /** For the whole delivery, the look-up of the name included. */
  timeoutMs: number;
}

/**
 * Delivers effects made by `webhookEffect`. 2xx is delivered; 410, or a target that may not be sent to, is dead at once;
 * anything else is tried again. Redirects are not followed.
 */
export function createWebhookHandler(config: WebhookHandlerConfig): DeliveryHandler {
  const key = signingKey(config.secret);
  return async (delivery, signal) => {
    const asked = urlOf(delivery.target);
    const own = isOwnRoute(asked);
    const ownUrl = own ? (config.ownUrl?.() ?? null) : null;
    if (own && ownUrl === null) return { outcome: 'retry', error: 'this process has no HTTP server' };
    const checked = ownUrl === null ? checkWebhookUrl(asked, config) : ownRoute(asked, ownUrl);
    if ('refusal' in checked) return { outcome: 'dead', error: `the URL ${checked.refusal}` };
    const timeout = AbortSignal.timeout(config.timeoutMs);
    try {
      const status = await post(checked.url, headersOf(delivery, key), delivery.body, {
        signal: AbortSignal.any([signal, timeout]),
        lookup: lookupFor(own || config.allowPrivate),
      });
      return verdict(status);
    } catch (error) {
      if (error instanceof AddressRefused) return { outcome: 'dead', error: error.message };
      if (timeout.aborted) return { outcome: 'retry', error: `no answer within ${config.timeoutMs} ms` };
      return { outcome: 'retry', error: `the connection failed (${codeOf(error) ?? 'unknown cause'})` };
    }
  };
}

/** Whatever the path is: it leads to this server, or nowhere. */
function ownRoute(path: string, ownUrl: string): { url: URL } | { refusal: string } {
  const url = new URL(path, ownUrl);
  return url.origin === new URL(ownUrl).origin ? { url } : { refusal: 'is no route of this server' };
}

function urlOf(target: Json): string {
  if (typeof target === 'object' && target !== null && 'url' in target && typeof target.url === 'string') {
    return target.url;
  }
  throw new Error('the target of a webhook has no URL');
}

function verdict(status: number): DeliveryResult {
  if (status >= 200 && status < 300) return { outcome: 'delivered' };
  if (status === GONE) return { outcome: 'dead', error: 'HTTP 410' };
  const redirect = status >= 300 && status < 400;
  return { outcome: 'retry', error: `HTTP ${status}${redirect ? ' (redirects are not followed)' : ''}` };
}

/** The HMAC key of a secret: `whsec_` and base64 of the key, or a text whose UTF-8 bytes are the key. */
function signingKey(secret: string): Buffer {
  const prefix = 'whsec_';
  return secret.startsWith(prefix) ? Buffer.from(secret.slice(prefix.length), 'base64') : Buffer.from(secret);
}

function headersOf(delivery: Delivery, key: Buffer): http.OutgoingHttpHeaders {
  // Postgres' time: a receiver refuses old timestamps, and this machine's clock may be wrong.
  const timestamp = String(delivery.taken_at);
  const signature = createHmac('sha256', key).update(`${delivery.id}.${timestamp}.${delivery.body}`).digest('base64');
  return {
    'content-type': 'application/json',
    'content-length': Buffer.byteLength(delivery.body),
    'user-agent': 'runledger',
    'webhook-id': delivery.id,
    'webhook-timestamp': timestamp,
    'webhook-signature': `v1,${signature}`,
  };
}

/** A name that leads to no address that may be sent to. */
class AddressRefused extends Error {
  override readonly name = 'AddressRefused';
}

/** Looks a name up and gives the connection only addresses it may use, so what is checked is what is connected to. */
function lookupFor(allowPrivate: boolean): LookupFunction {
  return (hostname, options, callback) => {
    dns.lookup(hostname, { ...options, all: true }, (error, found) => {
      if (error !== null) return callback(error, []);
      const allowed = allowPrivate ? found : found.filter(({ address }) => isPublicAddress(address));
      const [first] = allowed;
      if (first === undefined) return callback(new AddressRefused('the host has a private address'), []);
      if (options.all === true) callback(null, allowed);
      else callback(null, first.address, first.family);
    });
  };
}

/** Sends and returns the answer's status. Every delivery has a connection of its own: none is reused past its check. */
async function post(
  url: URL,
  headers: http.OutgoingHttpHeaders,
  body: string,
  options: { signal: AbortSignal; lookup: LookupFunction },
): Promise<number> {
  const answer = await new Promise<http.IncomingMessage>((resolve, reject) => {
    const { request } = url.protocol === 'https:' ? https : http;
    const sending = request(url, { ...options, method: 'POST', headers, agent: false }, resolve);
    sending.on('error', reject);
    sending.end(body);
  });
  await discard(answer);
  return answer.statusCode ?? 0;
}

/** Reads an answer to its end, or lets go of it when it is long. */
async function discard(answer: http.IncomingMessage): Promise<void> {
  let bytes = 0;
  try {
    for await (const chunk of answer) {
      bytes += (chunk as Buffer).length;
      if (bytes > ANSWER_LIMIT_BYTES) return;
    }
  } catch {
    // The status is known; a body that breaks off, or does not end in time, does not change it.
  }
}
