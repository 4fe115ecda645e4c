/** The environment: addresses and secrets. */
import { z } from 'zod';
import type { JsonObject } from './events/event.ts';

const jsonObject = z.record(z.string(), z.unknown()) as unknown as z.ZodType<JsonObject>;

/** The configuration of the assistants that the server makes for its graphs, by graph id. */
const assistantDefaults = z
  .string()
  .transform((text, context): unknown => {
    try {
      return JSON.parse(text);
    } catch {
      context.addIssue({ code: 'custom', message: 'must be JSON' });
      return z.NEVER;
    }
  })
  .pipe(
    z.record(
      z.string(),
      z
        .looseObject({ context: jsonObject.default({}), configurable: jsonObject.default({}) })
        .transform(({ context, ...config }) => ({ config: config as JsonObject, context })),
    ),
  );

export const envSchema = z.object({
  DATABASE_URL: z.string().min(1).optional(),
  DATABASE_DIRECT_URL: z.string().min(1).optional(),
  REDIS_URL: z.string().min(1).optional(),
  OPENAI_API_KEY: z.string().min(1).optional(),
  OPENAI_BASE_URL: z.url().optional(),
  OPENAI_MODEL: z.string().min(1).optional(),
  LANGGRAPH_CONFIG: assistantDefaults.optional(),
  JWT_SECRET: z.string().min(16).optional(),
  WEBHOOK_SECRET: z
    .string()
    .min(16)
    .regex(/^(?!whsec_)|^whsec_[A-Za-z0-9+/]{24,}={0,2}$/, 'after whsec_ there must be base64 of at least 18 bytes')
    .optional(),
  PORT: z.coerce.number().int().min(0).max(65535).optional(),
  HOST: z.string().min(1).optional(),
  LOG_LEVEL: z.enum(['fatal', 'error', 'warn', 'info', 'debug', 'trace', 'silent']).optional(),
});
