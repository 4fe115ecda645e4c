/** What the routes of this dialect have in common. */
import type { IncomingMessage, ServerResponse } from 'node:http';
import type { FastifyBaseLogger, FastifyInstance, RawServerDefault } from 'fastify';
import type { ZodTypeProvider } from 'fastify-type-provider-zod';
import { refusalView } from './views.ts';

/** A Fastify scope whose handlers are typed by their zod schemas. */
export type RestApp = FastifyInstance<
  RawServerDefault,
  IncomingMessage,
  ServerResponse,
  FastifyBaseLogger,
  ZodTypeProvider
>;

/** Every route can refuse; the codes are in errors.ts. */
export const refused = { '4xx': refusalView, '5xx': refusalView };
