/** Where a webhook may go. What is known from the URL alone is checked here; addresses behind names when they are looked up. */
import { isIP } from 'node:net';
import { RunledgerError } from '#src/errors.ts';
import { isPublicAddress } from './addresses.ts';

const MAX_LENGTH = 2_048;
const LOCALHOST = /^(?:.+\.)?localhost\.?$/;

export interface WebhookPolicy {
  /** Addresses that are not on the public internet are allowed too. */
  allowPrivate: boolean;
  /** A path alone is allowed too: a route of this server. */
  allowOwnRoutes?: boolean | undefined;
  /** What else an operator asks of the URL; null: nothing. */
  rules?: WebhookRules | null | undefined;
}

export interface WebhookRules {
  requireHttps: boolean;
  /** `example.org`, or `*.example.org` for every name under it; null: all. */
  domains: readonly string[] | null;
  ports: readonly number[] | null;
  maxLength: number | null;
}

/** Either a URL that may be sent to, as far as the URL alone tells, or why not, in words for its owner. */
export function checkWebhookUrl(url: string, policy: WebhookPolicy): { url: URL } | { refusal: string } {
  const parsed = URL.parse(url);
  if (parsed === null) return { refusal: 'is not a URL' };
  if (parsed.protocol !== 'https:' && parsed.protocol !== 'http:') return { refusal: 'is not an http or https URL' };
  if (parsed.username !== '' || parsed.password !== '') return { refusal: 'has credentials in it' };
  if (!policy.allowPrivate && isPrivateLiteral(parsed.hostname)) return { refusal: 'names a private address' };
  parsed.hash = '';
  const maxLength = policy.rules?.maxLength ?? MAX_LENGTH;
  if (parsed.href.length > maxLength) return { refusal: `is longer than ${maxLength} characters` };
  const broken = policy.rules == null ? null : brokenRule(parsed, policy.rules);
  return broken === null ? { url: parsed } : { refusal: broken };
}

function brokenRule(url: URL, { requireHttps, domains, ports }: WebhookRules): string | null {
  if (requireHttps && url.protocol !== 'https:') return 'is not an https URL';
  if (domains !== null && !domains.some((domain) => isWithin(url.hostname, domain.toLowerCase()))) {
    return 'is not within the domains this server sends to';
  }
  const port = url.port === '' ? (url.protocol === 'https:' ? 443 : 80) : Number(url.port);
  return ports === null || ports.includes(port) ? null : 'names a port this server does not send to';
}

function isWithin(hostname: string, domain: string): boolean {
  return domain.startsWith('*.') ? hostname.endsWith(domain.slice(1)) : hostname === domain;
}

/** Whether it is a path of this server, and nothing that a URL could make another server of: tabs and the like are left out of it. */
export function isOwnRoute(url: string): boolean {
  return /^\/(?![/\\])[\x21-\x5b\x5d-\x7e]*$/.test(url) && url.length <= MAX_LENGTH;
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
  if (policy.allowOwnRoutes === true && isOwnRoute(url)) return url;
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
