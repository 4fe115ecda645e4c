/** Headers of a request that the graph is told of, as part of its configurable. They are stored with the run. */
import type { IncomingHttpHeaders } from 'node:http';
import type { JsonObject } from '#src/events/event.ts';

export interface HeaderRules {
  /** Names, in lower case, in which `*` stands for any characters. */
  includes: readonly string[];
  /** Wins over `includes`. */
  excludes: readonly string[];
}

/** Credentials, or names of us and not of the client: passed on only when a rule has the very name. */
const PRIVATE = new Set([
  'authorization',
  'cookie',
  'proxy-authorization',
  'x-api-key',
  'x-tenant-id',
  'x-service-key',
  'x-dev-user',
  'x-request-id',
]);
/** What proxies and identity services call theirs, such as x-forwarded-access-token and x-goog-iap-jwt-assertion. */
const SECRET = /(?:token|assertion|secret|password|credentials?|jwt|api-?key)$/;

const isPrivate = (name: string): boolean => PRIVATE.has(name) || SECRET.test(name);

export function headersToldOf(headers: IncomingHttpHeaders, { includes, excludes }: HeaderRules): JsonObject {
  const isTold = (name: string): boolean =>
    !excludes.some((pattern) => fits(name, pattern)) &&
    includes.some((pattern) => (isPrivate(name) ? pattern === name : fits(name, pattern)));
  return Object.fromEntries(
    Object.entries(headers).flatMap(([name, value]) =>
      typeof value === 'string' && isTold(name) ? [[name, value]] : [],
    ),
  );
}

/** Whether the name is made of the pattern's pieces, in their order, with anything between them. */
function fits(name: string, pattern: string): boolean {
  const [first = '', ...others] = pattern.split('*');
  const last = others.pop();
  if (last === undefined) return name === first;
  if (!name.startsWith(first) || !name.endsWith(last) || name.length < first.length + last.length) return false;
  let at = first.length;
  for (const piece of others) {
    const found = name.indexOf(piece, at);
    if (found < 0) return false;
    at = found + piece.length;
  }
  return at <= name.length - last.length;
}
