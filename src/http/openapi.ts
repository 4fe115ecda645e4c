/** The OpenAPI description of the server's own API, made from the routes' zod schemas. */
import swagger from '@fastify/swagger';
import type { FastifyInstance } from 'fastify';
import { jsonSchemaTransform } from 'fastify-type-provider-zod';

/** Register before the routes it shall describe, and await it. `prefix`: only routes below it are described. */
export async function registerOpenapi(
  app: FastifyInstance,
  options: { prefix: string; version: string },
): Promise<void> {
  await app.register(swagger, {
    openapi: {
      openapi: '3.1.0',
      info: { title: 'Runledger', version: options.version },
      components: {
        securitySchemes: {
          bearer: { type: 'http', scheme: 'bearer', bearerFormat: 'JWT' },
          devUser: { type: 'apiKey', in: 'header', name: 'X-Dev-User' },
        },
      },
    },
    transform: (document) =>
      document.url.startsWith(`${options.prefix}/`)
        ? jsonSchemaTransform(document)
        : { schema: { ...document.schema, hide: true }, url: document.url },
  });
  let text: string | null = null;
  app.get('/openapi.json', async (_request, reply) => {
    text ??= JSON.stringify(app.swagger());
    return reply.type('application/json; charset=utf-8').send(text);
  });
}
