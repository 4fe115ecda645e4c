/** No Docker engine runs the compose file in the tests, so at least what can be read is checked. */
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { parse } from 'yaml';
import { z } from 'zod';
import { loadConfig } from '#src/config.ts';
import { ROOT } from '#tests/support/source-rules.ts';

const compose = z
  .object({
    services: z.record(
      z.string(),
      z.object({ environment: z.record(z.string(), z.string()).optional(), command: z.array(z.string()).optional() }),
    ),
    configs: z.object({ runledger: z.object({ content: z.string() }) }),
  })
  .parse(parse(readFileSync(join(ROOT, 'docker-compose.yml'), 'utf8'), { merge: true }));

test('docker-compose.yml starts two servers with the same settings, which our own loader accepts', () => {
  const folder = mkdtempSync(join(tmpdir(), 'runledger-compose-'));
  try {
    const file = join(folder, 'config.yaml');
    writeFileSync(file, compose.configs.runledger.content);
    const [first, second] = [compose.services['server-1'], compose.services['server-2']];
    expect(first).toEqual(second);
    const env = Object.fromEntries(
      Object.entries(first?.environment ?? {}).map(([name, value]) => [name, value.replace(/^\$\{\w+:-(.*)\}$/, '$1')]),
    );
    const config = loadConfig({ file, required: true, env, flags: {} });
    expect(config).toMatchObject({
      http: { host: '0.0.0.0', port: 8123, allowPublic: true },
      redisUrl: 'redis://redis:6379',
      postgres: { url: 'postgresql://runledger:runledger@postgres:5432/runledger' },
    });
  } finally {
    rmSync(folder, { recursive: true });
  }
});

test('its Redis never evicts', () => {
  expect(compose.services.redis?.command?.join(' ')).toContain('--maxmemory-policy noeviction');
});
