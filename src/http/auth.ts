/** Who asks. Every mode ends in an owner; every query of the core is scoped by it. */
import { isIP } from 'node:net';
import type { FastifyRequest, onRequestAsyncHookHandler } from 'fastify';
import { RunledgerError } from '#src/errors.ts';
import type { Access } from './access.ts';
import { createJwtCheck, type JwtOptions } from './jwt.ts';

export interface Principal {
  owner: string;
  /** Who decides what the user may do; nobody in most modes: then a user may do everything with what is theirs. */
  access?: Access;
}

declare module 'fastify' {
  interface FastifyRequest {
    /** Set by the authentication hook of the dialects' scopes; not there on /livez, /readyz, /metrics, /openapi.json. */
    principal: Principal;
  }
}

export interface AuthOptions {
  mode: 'none' | 'dev' | 'jwt';
  jwt: JwtOptions;
}

/** Finds the owner from the request's headers. @throws RunledgerError UNAUTHENTICATED, UNAVAILABLE */
export type Authenticate = (
  headers: FastifyRequest['headers'],
  seen: { method: string; url: string },
) => Promise<Principal>;

const LOCAL: Principal = { owner: 'local' };
/** Owners are stored and logged: no control characters, and a length an index can take. */
const DEV_USER = /^[^\p{Cc}]{1,128}$/u;

/**
 * none: everybody is `local`. dev: whoever X-Dev-User says, unchecked. jwt: the owner claim of a bearer token.
 * @throws Error at start when the options of mode jwt are contradictory
 */
export function createAuthenticate(options: AuthOptions): Authenticate {
  switch (options.mode) {
    case 'none':
      return async () => LOCAL;
    case 'dev':
      return async (headers) => ({ owner: devUser(headers['x-dev-user']) });
    case 'jwt': {
      const check = createJwtCheck(options.jwt);
      return async (headers) => ({ owner: await check(headers.authorization) });
    }
  }
}

/** An onRequest hook: before the body is read, so nobody unknown can make the server hold one. */
export function authHook(authenticate: Authenticate): onRequestAsyncHookHandler {
  return async (request) => {
    // A hook before this one may have asked already.
    request.principal ??= await authenticate(request.headers, request);
  };
}

/**
 * Modes that believe everybody may listen on this machine only, unless the operator says otherwise.
 * @throws Error with a sentence for the operator
 */
export function assertListenAllowed(options: {
  mode: AuthOptions['mode'] | 'module';
  /** Studio is let in without credentials. */
  studio?: boolean;
  host: string;
  allowPublic: boolean;
}): void {
  const checks = options.mode === 'jwt' || (options.mode === 'module' && options.studio !== true);
  if (checks || options.allowPublic || isLoopback(options.host)) return;
  const why = options.mode === 'module' ? 'auth.studio' : `auth.mode ${options.mode}`;
  throw new Error(
    `${why} lets anybody in, so it listens on this machine only: ${options.host} is refused. ` +
      'Use auth.mode jwt, or set server.allow_public if something in front of the server keeps strangers out.',
  );
}

function devUser(header: string | string[] | undefined): string {
  const user = typeof header === 'string' ? header.trim() : '';
  if (DEV_USER.test(user)) return user;
  throw new RunledgerError('UNAUTHENTICATED', 'X-Dev-User must name a user, in 1 to 128 printable characters.');
}

function isLoopback(host: string): boolean {
  const bare = host.replace(/^\[(.*)\]$/, '$1').toLowerCase();
  if (bare === 'localhost' || bare === '::1') return true;
  return isIP(bare) === 4 && bare.startsWith('127.');
}
