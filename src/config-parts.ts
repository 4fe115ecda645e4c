/** What the files of the configuration are read with: units, modules, and the form of what is wrong. */
import { resolve } from 'node:path';
import { z } from 'zod';

const UNIT_MS = { ms: 1, s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000 } as const;
const UNIT_BYTES = { B: 1, KB: 1024, MB: 1024 ** 2, GB: 1024 ** 3 } as const;

/** `250ms`, `5s`, `10m`, `24h`, `7d`, in milliseconds. */
export const duration = z
  .string()
  .regex(/^\d+(ms|s|m|h|d)$/, 'must be a duration such as 250ms, 5s, 10m, 24h or 7d')
  .transform((text) => {
    const unit = text.replace(/^\d+/, '') as keyof typeof UNIT_MS;
    return Number.parseInt(text, 10) * UNIT_MS[unit];
  });

/** `64KB`, `8MB`, in bytes. */
export const size = z
  .string()
  .regex(/^\d+(B|KB|MB|GB)$/, 'must be a size such as 64KB or 8MB')
  .transform((text) => {
    const unit = text.replace(/^\d+/, '') as keyof typeof UNIT_BYTES;
    return Number.parseInt(text, 10) * UNIT_BYTES[unit];
  });

/** Names of headers, in which `*` stands for any characters; they are compared without regard to case. */
const headerNames = z.array(
  z
    .string()
    .regex(/^[\w!#$%&'*+.^`|~-]+$/, 'must be names of headers, with * for any characters')
    .transform((name) => name.toLowerCase()),
);
export const headerPatterns = { includes: headerNames.optional(), excludes: headerNames.optional() };
export interface HeaderPatterns {
  includes?: string[] | undefined;
  excludes?: string[] | undefined;
}

/** Stops the start. The message names every offending key by its path, and nothing of its value. */
export class ConfigError extends Error {
  override readonly name = 'ConfigError';
}

/** Absolute path of a module, and the name of its export. */
export interface ModuleExport {
  file: string;
  exportName: string;
}

export interface GraphEntry extends ModuleExport {
  context: 'checkpoint' | 'transcript';
  description: string | null;
}

/** @param path `path:export`, or a path alone, which means the default export; relative to `base` */
export function toModuleExport(path: string, base: string): ModuleExport {
  const [, file = path, exportName = 'default'] = /^(.+):([A-Za-z_$][\w$]*)$/.exec(path) ?? [];
  return { file: resolve(base, file), exportName };
}

/** @param source what the value was read from, for the message. @throws ConfigError */
export function parsed<T extends z.ZodType>(schema: T, value: unknown, source: string): z.output<T> {
  const result = schema.safeParse(value);
  if (result.success) return result.data;
  const lines = result.error.issues.flatMap((issue) =>
    issue.code === 'unrecognized_keys'
      ? issue.keys.map((key) => `${[...issue.path, key].join('.')}: unknown key`)
      : [`${issue.path.join('.') || '(top)'}: ${issue.message}`],
  );
  throw new ConfigError(lines.map((line) => `${source}: ${line}`).join('\n'));
}
