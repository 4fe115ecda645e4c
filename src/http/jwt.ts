/** Bearer tokens: signature, time, issuer, audience, and the claim that names the owner. */
import { createRemoteJWKSet, errors, type JWTVerifyGetKey, type JWTVerifyOptions, jwtVerify } from 'jose';
import { RunledgerError } from '#src/errors.ts';

export interface JwtOptions {
  /** Shared secret (HS*). Exactly one of `secret` and `jwksUrl` is set. */
  secret: string | null;
  /** Where the issuer publishes its public keys (asymmetric algorithms only). */
  jwksUrl: string | null;
  issuer: string | null;
  audience: string | null;
  /** null: HS256 with a secret, every asymmetric algorithm below with a JWKS. */
  algorithms: readonly string[] | null;
  ownerClaim: string;
}

const SYMMETRIC = ['HS256', 'HS384', 'HS512'];
const ASYMMETRIC = [
  'RS256',
  'RS384',
  'RS512',
  'PS256',
  'PS384',
  'PS512',
  'ES256',
  'ES384',
  'ES512',
  'EdDSA',
  'Ed25519',
];
const OWNER = /^[^\p{Cc}]{1,256}$/u;
const JWKS_TIMEOUT_MS = 3000;

/**
 * Returns a check of an Authorization header that answers the owner.
 * @throws Error when the options allow an algorithm that does not fit the key: a public key must never be taken for a
 *   shared secret, and `none` is no algorithm
 */
export function createJwtCheck(options: JwtOptions): (authorization: string | undefined) => Promise<string> {
  const key = keyOf(options);
  const allowed = options.secret === null ? ASYMMETRIC : SYMMETRIC;
  const algorithms = options.algorithms ?? (options.secret === null ? ASYMMETRIC : ['HS256']);
  const misfit = algorithms.find((name) => !allowed.includes(name));
  if (misfit !== undefined || algorithms.length === 0) {
    throw new Error(
      `auth.jwt.algorithms: ${misfit ?? 'an empty list'} does not fit; possible are ${allowed.join(', ')}`,
    );
  }
  const rules: JWTVerifyOptions = {
    algorithms: [...algorithms],
    requiredClaims: ['exp', options.ownerClaim],
    ...(options.issuer === null ? {} : { issuer: options.issuer }),
    ...(options.audience === null ? {} : { audience: options.audience }),
  };
  return async (authorization) => {
    const token = /^Bearer +([A-Za-z0-9._~+/=-]+)$/i.exec(authorization?.trim() ?? '')?.[1];
    if (token === undefined) throw unauthenticated();
    const { payload } = await jwtVerify(token, key, rules).catch((error: unknown) => {
      throw error instanceof RunledgerError ? error : unauthenticated(error);
    });
    const owner = payload[options.ownerClaim];
    if (typeof owner !== 'string' || !OWNER.test(owner) || !owner.isWellFormed()) throw unauthenticated();
    return owner;
  };
}

/** Which key fits a token; a key set that cannot be fetched is our trouble (503), not the token's (401). */
function keyOf(options: JwtOptions): JWTVerifyGetKey {
  if (options.secret !== null && options.jwksUrl !== null) {
    throw new Error('auth.jwt: set either JWT_SECRET or jwks_url, not both');
  }
  if (options.secret !== null) {
    const secret = new TextEncoder().encode(options.secret);
    return async () => secret;
  }
  if (options.jwksUrl === null) throw new Error('auth.jwt: set JWT_SECRET or jwks_url');
  const remote = createRemoteJWKSet(new URL(options.jwksUrl), { timeoutDuration: JWKS_TIMEOUT_MS });
  return async (header, token) => {
    try {
      return await remote(header, token);
    } catch (error) {
      if (isAboutTheToken(error)) throw error;
      throw new RunledgerError('UNAVAILABLE', 'The keys to check tokens with cannot be fetched now.', { cause: error });
    }
  };
}

function isAboutTheToken(error: unknown): boolean {
  return (
    error instanceof errors.JWKSNoMatchingKey ||
    error instanceof errors.JWKSMultipleMatchingKeys ||
    error instanceof errors.JOSENotSupported
  );
}

/** Why a token was refused stays in the cause: the answer does not help somebody who tries tokens. */
function unauthenticated(cause?: unknown): RunledgerError {
  return new RunledgerError('UNAUTHENTICATED', 'A valid bearer token is required.', { cause });
}
