/** Where a webhook may go. What is known from the URL alone is checked here; addresses behind names when they are looked up. */
import { isIP } from 'node:net';
import { RunledgerError } from '#src/errors.ts';
import { isPublicAddress } from './addresses.ts';

const MAX_LENGTH = 2_048;
const LOCALHOST = /^(?:.+\.)?localhost\.?$/;

export interface WebhookPolicy {
  /** Addresses that are not on the public internet are allowed too. */
  allowPrivate: boolean;
}

/** Either a URL that may be sent to, as far as the URL alone tells, or why not, in words for its owner. */
export function checkWebhookUrl(url: string, policy: WebhookPolicy): { url: URL } | { refusal: string } {
  const parsed = URL.parse(url);
  if (parsed === null) return { refusal: 'is not a URL' };
  if (parsed.protocol !== 'https:' && parsed.protocol !== 'http:') return { refusal: 'is not an http or https URL' };
  if (parsed.username !== '' || parsed.password !== '') return { refusal: 'has credentials in it' };
  if (!policy.allowPrivate && isPrivateLiteral(parsed.hostname)) return { refusal: 'names a private address' };
  parsed.hash = '';
  if (parsed.href.length > MAX_LENGTH) return { refusal: `is longer than ${MAX_LENGTH} characters` };
  return { url: parsed };
}

/** `URL` has already turned every notation of an IPv4 address (octal, hexadecimal, short, one number) into the usual one. */
function isPrivateLiteral(hostname: string): boolean {
  const bare = hostname.replace(/^\[(.*)\]$/, '$1');
  return isIP(bare) !== 0 && !isPublicAddress(bare);
}

/**
 * For admission: may a run ask for this webhook?
 * @returns the URL in normal form, which is what is to be stored
 * @throws INVALID_REQUEST (path `webhook`): no http(s) URL, credentials, a private address, or this server has no secret to sign with
 */
export function assertWebhookUrl(url: string, policy: WebhookPolicy & { secret: string | null }): string {
  if (policy.secret === null) {
    throw refused('This server sends no webhooks: it has no WEBHOOK_SECRET to sign them with.');
  }
  const checked = checkWebhookUrl(url, policy);
  if ('refusal' in checked) throw refused(`The webhook ${checked.refusal}.`);
  // Other names are looked up when they are connected to; this one is known.
  if (!policy.allowPrivate && LOCALHOST.test(checked.url.hostname))
    throw refused('The webhook names a private address.');
  return checked.url.href;
}

function refused(message: string): RunledgerError {
  return new RunledgerError('INVALID_REQUEST', message, { path: 'webhook' });
}
