import { describe, expect, test } from 'vitest';
import { isPublicAddress } from '#src/outbox/addresses.ts';
import { assertWebhookUrl } from '#src/outbox/webhook-url.ts';

describe('an address is public', () => {
  test.each([
    '1.1.1.1',
    '8.8.8.8',
    '100.63.255.255',
    '100.128.0.0',
    '172.15.0.1',
    '172.32.0.1',
    '192.0.1.1',
    '223.255.255.255',
  ])('%s', (address) => expect(isPublicAddress(address)).toBe(true));
  test.each(['2606:4700::1111', '2a00:1450:4001::200e', '2001:4860:4860::8888', '3ffe::1'])('%s', (address) =>
    expect(isPublicAddress(address)).toBe(true),
  );
});

describe('an address is not public', () => {
  test.each([
    '0.0.0.0',
    '0.1.2.3',
    '10.0.0.1',
    '100.64.0.1',
    '100.127.255.255',
    '127.0.0.1',
    '127.255.255.254',
    '169.254.169.254',
    '172.16.0.1',
    '172.31.255.255',
    '192.0.0.1',
    '192.0.2.1',
    '192.168.1.1',
    '198.18.0.1',
    '198.51.100.1',
    '203.0.113.1',
    '224.0.0.1',
    '239.255.255.255',
    '240.0.0.1',
    '255.255.255.255',
    '::',
    '::1',
    '::ffff:127.0.0.1',
    '::ffff:7f00:1',
    '::ffff:8.8.8.8',
    '::127.0.0.1',
    '64:ff9b::7f00:1',
    '100::1',
    'fe80::1',
    'fe80::1%eth0',
    'fc00::1',
    'fd12:3456::1',
    'ff02::1',
    '2001::1',
    '2001:db8::1',
    '2002:7f00:1::',
    '3fff::1',
    'localhost',
    '127.1',
    '',
  ])('%s', (address) => expect(isPublicAddress(address)).toBe(false));
});

describe('a webhook', () => {
  const policy = { allowPrivate: false, secret: 'a secret of the tests' };
  const refusal = (url: string, over: Partial<{ allowPrivate: boolean; secret: string | null }> = {}) => {
    try {
      return assertWebhookUrl(url, { ...policy, ...over });
    } catch (error) {
      return error;
    }
  };

  test('is taken in normal form', () => {
    expect(refusal('https://Example.org/hook?token=1#part')).toBe('https://example.org/hook?token=1');
    expect(refusal('http://example.org:8080')).toBe('http://example.org:8080/');
    expect(refusal('https://[2606:4700::1111]/x')).toBe('https://[2606:4700::1111]/x');
    expect(refusal('https://8.8.8.8/\u0000\ud800')).toBe('https://8.8.8.8/%00%EF%BF%BD');
  });

  test.each([
    ['not a URL', 'The webhook is not a URL.'],
    ['/hook', 'The webhook is not a URL.'],
    ['', 'The webhook is not a URL.'],
    ['http://', 'The webhook is not a URL.'],
    ['ftp://example.org/', 'The webhook is not an http or https URL.'],
    ['file:///etc/passwd', 'The webhook is not an http or https URL.'],
    ['javascript:alert(1)', 'The webhook is not an http or https URL.'],
    ['https://user:pass@example.org/', 'The webhook has credentials in it.'],
    ['https://user@example.org/', 'The webhook has credentials in it.'],
    [`https://example.org/${'é'.repeat(400)}`, 'The webhook is longer than 2048 characters.'],
    ...[
      'http://127.0.0.1/',
      'http://127.1/',
      'http://2130706433/',
      'http://0x7f000001/',
      'http://0x7f.1/',
      'http://0177.0.0.1/',
      'http://127.0.0.1./',
      'http://１２７.0.0.1/',
      'http://0/',
      'http://[::1]/',
      'http://[::ffff:127.0.0.1]/',
      'http://[::ffff:7f00:1]/',
      'http://[fe80::1]/',
      'http://169.254.169.254/latest/meta-data',
      'http://10.0.0.1/',
      'http://localhost/',
      'http://LOCALHOST:80/',
      'http://localhost./',
      'http://app.localhost/',
    ].map((url): [string, string] => [url, 'The webhook names a private address.']),
  ])('%s is refused', (url, message) => {
    expect(refusal(url)).toMatchObject({ code: 'INVALID_REQUEST', path: 'webhook', message });
  });

  test('may go to a private address when that is allowed, still without credentials', () => {
    expect(refusal('http://127.0.0.1:9000/hook', { allowPrivate: true })).toBe('http://127.0.0.1:9000/hook');
    expect(refusal('http://localhost/', { allowPrivate: true })).toBe('http://localhost/');
    expect(refusal('http://a:b@127.0.0.1/', { allowPrivate: true })).toMatchObject({ code: 'INVALID_REQUEST' });
  });

  test('is refused by a server that cannot sign', () => {
    expect(refusal('https://example.org/', { secret: null })).toMatchObject({
      code: 'INVALID_REQUEST',
      path: 'webhook',
      message: 'This server sends no webhooks: it has no WEBHOOK_SECRET to sign them with.',
    });
  });
});
