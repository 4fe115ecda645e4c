/** Tokens checked against a key set that a real server publishes, and what a scope does with the answer. */
import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { type CryptoKey, exportJWK, generateKeyPair, type JWK, SignJWT } from 'jose';
import { beforeAll, describe, expect, test } from 'vitest';
import { type AuthOptions, authHook, createAuthenticate } from '#src/http/auth.ts';
import { later, startRig } from './http-rig.ts';

interface KeyPair {
  kid: string;
  privateKey: CryptoKey;
  publicJwk: JWK;
}

let first: KeyPair;
let second: KeyPair;
beforeAll(async () => {
  [first, second] = await Promise.all([keyPair('one', 'RS256'), keyPair('two', 'ES256')]);
});

async function keyPair(kid: string, alg: string): Promise<KeyPair> {
  const { publicKey, privateKey } = await generateKeyPair(alg, { extractable: true });
  return { kid, privateKey, publicJwk: { ...(await exportJWK(publicKey)), kid, alg } };
}

function sign({ kid, privateKey, publicJwk }: KeyPair, claims: Record<string, unknown> = {}): Promise<string> {
  return new SignJWT({ sub: 'ada', exp: Math.floor(Date.now() / 1000) + 60, ...claims })
    .setProtectedHeader({ alg: String(publicJwk.alg), kid })
    .sign(privateKey);
}

/** A server that publishes `keys`; `state.answer` changes what it does. */
async function publish(keys: JWK[]) {
  const state: { answer: 'keys' | 'error' | 'garbage' | 'silence'; requests: number } = { answer: 'keys', requests: 0 };
  const server = createServer((_request, response) => {
    state.requests += 1;
    if (state.answer === 'silence') return;
    if (state.answer === 'error') response.writeHead(500).end('secret internals');
    else response.end(state.answer === 'keys' ? JSON.stringify({ keys }) : '<html>');
  }).listen(0, '127.0.0.1');
  await once(server, 'listening');
  const stop = () => {
    server.closeAllConnections();
    server.close();
  };
  later(stop);
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/keys`, state, stop };
}

async function start(jwt: Partial<AuthOptions['jwt']>, mode: AuthOptions['mode'] = 'jwt') {
  const options = { secret: null, jwksUrl: null, issuer: null, audience: null, algorithms: null, ownerClaim: 'sub' };
  const authenticate = createAuthenticate({ mode, jwt: { ...options, ...jwt } });
  let bodies = 0;
  const rig = await startRig({ cors: { origins: ['https://app.example'], credentials: false } }, ({ app }) => {
    app.get('/open', async () => ({}));
    app.register((scope, _options, done) => {
      scope.addHook('onRequest', authHook(authenticate));
      scope.addHook('preValidation', async () => {
        bodies += 1;
      });
      scope.get('/me', async (request) => request.principal);
      scope.post('/me', async (request) => request.principal);
      done();
    });
  });
  const ask = async (token?: string, init: RequestInit = {}) => {
    const headers = { origin: 'https://app.example', ...(token !== undefined && { authorization: `Bearer ${token}` }) };
    const response = await fetch(`${rig.url}/me`, { headers, ...init });
    return {
      status: response.status,
      headers: response.headers,
      body: (await response.json()) as Record<string, unknown>,
    };
  };
  return { ...rig, ask, bodies: () => bodies };
}

describe('a key set', () => {
  test('is fetched once and used for every key in it', async () => {
    const issuer = await publish([first.publicJwk, second.publicJwk]);
    const { ask } = await start({ jwksUrl: issuer.url });
    for (const key of [first, second, first]) {
      expect(await ask(await sign(key))).toMatchObject({ status: 200, body: { owner: 'ada' } });
    }
    expect(issuer.state.requests).toBe(1);
  });

  test('does not accept what it has no key for, or a public key used as a secret', async () => {
    const issuer = await publish([first.publicJwk]);
    const { ask } = await start({ jwksUrl: issuer.url });
    const confused = await new SignJWT({ sub: 'ada', exp: 4e9 })
      .setProtectedHeader({ alg: 'HS256', kid: 'one' })
      .sign(new TextEncoder().encode(JSON.stringify(first.publicJwk)));
    const forged = await sign({ ...second, kid: 'one' });
    for (const token of [await sign(second), confused, forged]) {
      expect(await ask(token)).toMatchObject({ status: 401, body: { code: 'UNAUTHENTICATED' } });
    }
  });

  test.each(['error', 'garbage', 'silence', 'nobody'] as const)(
    'that cannot be had (%s) is 503, not 401',
    async (how) => {
      const issuer = await publish([first.publicJwk]);
      if (how === 'nobody') issuer.stop();
      else issuer.state.answer = how;
      const { ask, logs } = await start({ jwksUrl: issuer.url });
      const answer = await ask(await sign(first));
      expect(answer).toMatchObject({ status: 503, body: { code: 'UNAVAILABLE' } });
      expect(answer.headers.get('retry-after')).toBe('1');
      expect(answer.headers.get('access-control-allow-origin')).toBe('https://app.example');
      expect(JSON.stringify(answer.body)).not.toContain('secret');
      expect(logs.some((line) => line.level === 40 && line.cause !== undefined)).toBe(true);
      // A token that no key could make valid needs no key set.
      expect(await ask('a.b.c')).toMatchObject({ status: 401 });
    },
  );
});

describe('a scope with authentication', () => {
  test('refuses before it reads a body, in the dialect’s form, with CORS headers', async () => {
    const { ask, bodies } = await start({ secret: 'a shared secret of thirty-two bytes' });
    const answer = await ask(undefined, {
      method: 'POST',
      body: '{',
      headers: { origin: 'https://app.example', 'content-type': 'application/json' },
    });
    expect(answer).toMatchObject({ status: 401, body: { code: 'UNAUTHENTICATED', request_id: expect.any(String) } });
    expect(answer.headers.get('www-authenticate')).toBe('Bearer');
    expect(answer.headers.get('access-control-allow-origin')).toBe('https://app.example');
    expect(bodies()).toBe(0);
  });

  test('leaves routes outside alone', async () => {
    const { url } = await start({ secret: 'a shared secret of thirty-two bytes' });
    expect((await fetch(`${url}/open`)).status).toBe(200);
  });

  test('in mode dev believes X-Dev-User', async () => {
    const { ask } = await start({}, 'dev');
    expect(await ask(undefined, { headers: { 'x-dev-user': 'bob' } })).toMatchObject({
      status: 200,
      body: { owner: 'bob' },
    });
    expect(await ask()).toMatchObject({ status: 401 });
  });
});
