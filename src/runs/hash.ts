import { createHash } from 'node:crypto';

/**
 * What a request key stands for: SHA-256 over JSON with sorted keys, equal for bodies that mean the same, whatever the
 * order of their keys. null without a key, because then nobody compares it.
 */
export function requestHash(key: string | undefined, request: unknown): string | null {
  return key === undefined ? null : createHash('sha256').update(canonical(request)).digest('base64url');
}

function canonical(value: unknown): string {
  return JSON.stringify(value, (_key, inner: unknown) =>
    typeof inner === 'object' && inner !== null && !Array.isArray(inner)
      ? Object.fromEntries(Object.entries(inner).sort(([a], [b]) => (a < b ? -1 : 1)))
      : inner,
  );
}

/** A 64-bit key for an advisory lock, from a domain word and its parts, as the text Postgres reads as bigint. */
export function advisoryKey(domain: string, ...parts: string[]): string {
  const digest = createHash('sha256')
    .update([domain, ...parts].join('\u0001'))
    .digest();
  return digest.readBigInt64BE(0).toString();
}
