import { exportSPKI, generateKeyPair, SignJWT } from 'jose';
import { beforeAll, describe, expect, test } from 'vitest';
import { type AuthOptions, assertListenAllowed, createAuthenticate } from '#src/http/auth.ts';

const SECRET = 'a shared secret of thirty-two bytes';
const jwtOptions: AuthOptions['jwt'] = {
  secret: SECRET,
  jwksUrl: null,
  issuer: null,
  audience: null,
  algorithms: null,
  ownerClaim: 'sub',
};

interface Claims {
  [claim: string]: unknown;
}

function sign(claims: Claims, options: { alg?: string; secret?: string } = {}): Promise<string> {
  return new SignJWT({ sub: 'ada', exp: nowSeconds() + 60, ...claims })
    .setProtectedHeader({ alg: options.alg ?? 'HS256' })
    .sign(new TextEncoder().encode(options.secret ?? SECRET));
}

function nowSeconds(): number {
  return Math.floor(Date.now() / 1000);
}

function jwt(overrides: Partial<AuthOptions['jwt']> = {}) {
  const authenticate = createAuthenticate({ mode: 'jwt', jwt: { ...jwtOptions, ...overrides } });
  return (token: string) => authenticate({ authorization: `Bearer ${token}` }, seen);
}

const refused = { code: 'UNAUTHENTICATED' };
const seen = { method: 'GET', url: '/' };

describe('modes none and dev', () => {
  test('none: everybody is the local user', async () => {
    await expect(createAuthenticate({ mode: 'none', jwt: jwtOptions })({}, seen)).resolves.toEqual({ owner: 'local' });
  });

  test('dev: X-Dev-User names the owner', async () => {
    const authenticate = createAuthenticate({ mode: 'dev', jwt: jwtOptions });
    await expect(authenticate({ 'x-dev-user': ' ada ' }, seen)).resolves.toEqual({ owner: 'ada' });
    await expect(authenticate({ 'x-dev-user': 'u'.repeat(128) }, seen)).resolves.toEqual({ owner: 'u'.repeat(128) });
    for (const user of [undefined, '', '   ', 'u'.repeat(129), 'a\u0000b', 'a\u0085b', 'a\tb', ['ada', 'bob']]) {
      await expect(authenticate({ 'x-dev-user': user }, seen)).rejects.toMatchObject(refused);
    }
  });
});

describe('mode jwt with a secret', () => {
  test('the owner is the claim of a valid token', async () => {
    await expect(jwt()(await sign({}))).resolves.toEqual({ owner: 'ada' });
    await expect(jwt({ ownerClaim: 'user' })(await sign({ user: 'bob' }))).resolves.toEqual({ owner: 'bob' });
  });

  test('issuer and audience are checked when they are configured', async () => {
    const check = jwt({ issuer: 'https://issuer', audience: 'runledger' });
    await expect(check(await sign({ iss: 'https://issuer', aud: 'runledger' }))).resolves.toEqual({ owner: 'ada' });
    await expect(check(await sign({ iss: 'https://other', aud: 'runledger' }))).rejects.toMatchObject(refused);
    await expect(check(await sign({ iss: 'https://issuer', aud: 'else' }))).rejects.toMatchObject(refused);
    await expect(check(await sign({}))).rejects.toMatchObject(refused);
  });

  test.each<[string, Claims, { alg?: string; secret?: string }]>([
    ['expired', { exp: nowSeconds() - 1 }, {}],
    ['without an end', { exp: undefined }, {}],
    ['not valid yet', { nbf: nowSeconds() + 60 }, {}],
    ['signed by another secret', {}, { secret: 'another secret of thirty-two bytes' }],
    ['of another algorithm', {}, { alg: 'HS384' }],
    ['without an owner', { sub: undefined }, {}],
    ['with an empty owner', { sub: '' }, {}],
    ['with an owner that is no text', { sub: 7 }, {}],
    ['with an owner that cannot be stored', { sub: 'a\u0000' }, {}],
    ['with half a character in the owner', { sub: '\ud800' }, {}],
    ['with an endless owner', { sub: 'x'.repeat(257) }, {}],
  ])('refuses a token %s', async (_name, claims, options) => {
    await expect(jwt()(await sign(claims, options))).rejects.toMatchObject(refused);
  });

  test('refuses what is no bearer token', async () => {
    const authenticate = createAuthenticate({ mode: 'jwt', jwt: jwtOptions });
    const token = await sign({});
    for (const authorization of [
      undefined,
      '',
      'Bearer',
      `Basic ${token}`,
      token,
      `Bearer ${token} x`,
      'Bearer a.b.c',
    ]) {
      await expect(authenticate({ authorization }, seen)).rejects.toMatchObject(refused);
    }
  });

  test('a token without a signature is never accepted', async () => {
    const part = (value: unknown) => Buffer.from(JSON.stringify(value)).toString('base64url');
    const token = `${part({ alg: 'none' })}.${part({ sub: 'ada', exp: nowSeconds() + 60 })}.`;
    await expect(jwt()(token)).rejects.toMatchObject(refused);
  });

  test('the refusal does not say what was wrong', async () => {
    const error = await jwt()(await sign({ exp: 1 })).catch((thrown: unknown) => thrown);
    expect(error).toMatchObject({ message: 'A valid bearer token is required.' });
  });
});

describe('options of mode jwt', () => {
  let publicKey: string;
  beforeAll(async () => {
    publicKey = await exportSPKI((await generateKeyPair('RS256', { extractable: true })).publicKey);
  });

  test('a secret takes symmetric algorithms only, a key set asymmetric ones only, and nothing takes none', () => {
    const jwksUrl = 'https://issuer.invalid/keys';
    const wrong: Partial<AuthOptions['jwt']>[] = [
      { secret: publicKey, algorithms: ['RS256'] },
      { algorithms: ['HS256', 'none'] },
      { algorithms: [] },
      { secret: null, jwksUrl, algorithms: ['HS256'] },
      { secret: null, jwksUrl, algorithms: ['none'] },
      { jwksUrl },
      { secret: null },
    ];
    for (const options of wrong) expect(() => jwt(options)).toThrow(/^auth\.jwt/);
    expect(() => jwt({ secret: null, jwksUrl, algorithms: ['ES256'] })).not.toThrow();
  });
});

describe('assertListenAllowed', () => {
  test.each(['127.0.0.1', '127.8.9.1', '::1', '[::1]', 'localhost', 'LOCALHOST'])('%s is this machine only', (host) => {
    for (const mode of ['none', 'dev', 'jwt'] as const) {
      expect(() => assertListenAllowed({ mode, host, allowPublic: false })).not.toThrow();
    }
  });

  test.each(['0.0.0.0', '::', '10.0.0.7', '', 'example.org', '127.evil.example', 'localhost.example'])(
    '%s is for everybody',
    (host) => {
      for (const mode of ['none', 'dev'] as const) {
        expect(() => assertListenAllowed({ mode, host, allowPublic: false })).toThrow(/allow_public/);
        expect(() => assertListenAllowed({ mode, host, allowPublic: true })).not.toThrow();
      }
      expect(() => assertListenAllowed({ mode: 'jwt', host, allowPublic: false })).not.toThrow();
    },
  );
});
