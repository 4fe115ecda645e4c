/** config.yaml and .env.example are documentation that must not drift from src/config.ts. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { parse } from 'yaml';
import { z } from 'zod';
import { fileSchema, loadConfig } from '#src/config.ts';
import { envSchema } from '#src/config-env.ts';
import { ROOT } from '#tests/support/source-rules.ts';

const yaml = readFileSync(join(ROOT, 'config.yaml'), 'utf8');

interface Node {
  properties?: Record<string, Node>;
  default?: unknown;
}

/** [path of key names, default] of every key that holds a value. */
function keysOf(node: Node, path: string[] = []): [string[], unknown][] {
  if (node.properties === undefined) return [[path, node.default]];
  return Object.entries(node.properties).flatMap(([name, inner]) => keysOf(inner, [...path, name]));
}

const keys = keysOf(z.toJSONSchema(fileSchema, { io: 'input' }) as Node);

describe('config.yaml', () => {
  test('has the defaults and nothing else', () => {
    const options = { required: false, env: {}, flags: {} };
    expect(loadConfig({ ...options, file: join(ROOT, 'config.yaml') })).toEqual(
      loadConfig({ ...options, file: join(ROOT, 'no-such-file.yaml') }),
    );
  });

  test('shows every key: with its default, or commented out when there is none', () => {
    expect(keys.length).toBeGreaterThan(35);
    const shown = parse(yaml) as unknown;
    for (const [path, value] of keys) {
      const read = path.reduce<unknown>((inner, name) => (inner as Record<string, unknown> | undefined)?.[name], shown);
      if (value === undefined) {
        expect(read, path.join('.')).toBeUndefined();
        expect(yaml, path.join('.')).toMatch(new RegExp(`^ *# *${path.at(-1)}: `, 'm'));
      } else {
        expect(read, path.join('.')).toEqual(value);
      }
    }
  });
});

test('.env.example has every variable, empty', () => {
  const text = readFileSync(join(ROOT, '.env.example'), 'utf8');
  const lines = text.split('\n').filter((line) => line !== '' && !line.startsWith('#'));
  expect(lines.sort()).toEqual(
    Object.keys(envSchema.shape)
      .map((name) => `${name}=`)
      .sort(),
  );
});
