/** Rules of an operator for where webhooks may go, beyond those that always hold. */
import { expect, test } from 'vitest';
import { assertWebhookUrl, checkWebhookUrl, type WebhookRules } from '#src/outbox/webhook-url.ts';

const none: WebhookRules = { requireHttps: false, domains: null, ports: null, maxLength: null };
const allowed = (url: string, rules: Partial<WebhookRules>) =>
  'url' in checkWebhookUrl(url, { allowPrivate: false, rules: { ...none, ...rules } });

test.each<[string, Partial<WebhookRules>, boolean]>([
  ['http://a.example/', {}, true],
  ['http://a.example/', { requireHttps: true }, false],
  ['https://a.example/', { requireHttps: true }, true],
  ['https://a.example/', { domains: ['a.example'] }, true],
  ['https://A.example/', { domains: ['a.EXAMPLE'] }, true],
  ['https://b.a.example/', { domains: ['a.example'] }, false],
  ['https://b.a.example/', { domains: ['x.example', '*.a.example'] }, true],
  ['https://a.example/', { domains: ['*.a.example'] }, false],
  ['https://nota.example/', { domains: ['*.a.example'] }, false],
  ['https://a.example/', { domains: [] }, false],
  ['https://a.example/', { ports: [443] }, true],
  ['http://a.example/', { ports: [443] }, false],
  ['https://a.example:8443/', { ports: [8443] }, true],
  [`https://a.example/${'x'.repeat(40)}`, { maxLength: 40 }, false],
])('%s under %j: %s', (url, rules, expected) => {
  expect(allowed(url, rules)).toBe(expected);
});

test('a path is a route of this server, where the server has routes for it', () => {
  const policy = { allowPrivate: false, secret: 'a secret of sixteen', allowOwnRoutes: true };
  expect(assertWebhookUrl('/own/hook?a=1', policy)).toBe('/own/hook?a=1');
  const hidden = ['\t', '\n', '\r', '\0', ' '].map((blank) => `/${blank}/evil.example/`);
  for (const url of ['//evil.example/', '/\\evil.example/', '/own\\hook', 'own/hook', '', ...hidden]) {
    expect(() => assertWebhookUrl(url, policy), url).toThrow(/^The webhook is not a URL/);
  }
  expect(() => assertWebhookUrl('/own/hook', { ...policy, allowOwnRoutes: false })).toThrow(/is not a URL/);
});
