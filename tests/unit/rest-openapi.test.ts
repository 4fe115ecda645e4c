import { readFileSync } from 'node:fs';
import { describe, expect, test } from 'vitest';
import { openapiDocument } from '../../scripts/openapi.ts';

interface Operation {
  summary?: string;
  requestBody?: unknown;
  responses: { [status: string]: { content?: { [type: string]: unknown } } };
}
interface Document {
  openapi: string;
  paths: { [path: string]: { [method: string]: Operation } };
}

describe('docs/openapi.json', () => {
  test('is what the routes say; `npm run openapi` writes it', async () => {
    const file = new URL('../../docs/openapi.json', import.meta.url);
    expect(readFileSync(file, 'utf8')).toBe(await openapiDocument());
  });

  test('has every route of the REST API and nothing else', async () => {
    const document = JSON.parse(await openapiDocument()) as Document;
    const routes = Object.entries(document.paths).flatMap(([path, methods]) =>
      Object.keys(methods).map((method) => `${method.toUpperCase()} ${path}`),
    );
    expect(routes.filter((route) => !route.startsWith('HEAD ')).sort()).toEqual(
      [
        'POST /api/v1/threads',
        'GET /api/v1/threads',
        'GET /api/v1/threads/{id}',
        'PATCH /api/v1/threads/{id}',
        'DELETE /api/v1/threads/{id}',
        'POST /api/v1/threads/messages',
        'POST /api/v1/threads/{id}/messages',
        'GET /api/v1/threads/{id}/messages/stream',
        'GET /api/v1/threads/{id}/turns',
        'GET /api/v1/threads/{id}/status',
        'POST /api/v1/threads/{id}/cancel',
        'POST /api/v1/threads/{id}/answer',
        'POST /api/v1/threads/{id}/retry',
        'GET /api/v1/runs/{id}',
        'GET /api/v1/webhooks',
        'POST /api/v1/webhooks/{id}/requeue',
      ].sort(),
    );
    const send = document.paths['/api/v1/threads/{id}/messages']?.post;
    expect(Object.keys(send?.responses ?? {})).toEqual(expect.arrayContaining(['200', '202', '4XX', '5XX']));
    expect(send?.responses[200]?.content).toHaveProperty('text/event-stream');
    for (const methods of Object.values(document.paths)) {
      for (const operation of Object.values(methods)) expect(operation.summary).toMatch(/.+/);
    }
  });
});
