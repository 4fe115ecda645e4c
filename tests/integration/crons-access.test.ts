/** Crons under an Auth module: what is asked, what the answers change, and whom the filters keep out. */
import { randomUUID } from 'node:crypto';
import Fastify, { type FastifyInstance } from 'fastify';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { type AssistantService, createAssistantService, ensureSystemAssistants } from '#src/assistants/service.ts';
import { createCronService } from '#src/crons/service.ts';
import type { LangGraphDeps } from '#src/dialects/langgraph/route.ts';
import { addCronRoutes } from '#src/dialects/langgraph/routes-crons.ts';
import type { Access, AuthEvent, ResourceFilter } from '#src/http/access.ts';
import type { Pool } from '#src/postgres/pool.ts';
import { createThreadService } from '#src/threads/service.ts';
import { createDatabase, type TestDatabase } from '#tests/support/database.ts';
import { testPool } from '#tests/support/pools.ts';

let database: TestDatabase;
let pool: Pool;
let app: FastifyInstance;
/** What the module says; a test may say otherwise. */
let answer: (event: AuthEvent, value: { [field: string]: unknown }) => ResourceFilter;
const asked: AuthEvent[] = [];

beforeAll(async () => {
  database = await createDatabase();
  pool = testPool(database.url);
  const graphIds = ['chat'];
  await ensureSystemAssistants({ pool, graphIds, defaults: {} });
  const describer = {} as Parameters<typeof createAssistantService>[0]['describer'];
  const assistants: AssistantService = createAssistantService({ pool, graphIds, describer });
  const crons = createCronService({ pool, assertWebhook: () => undefined });
  app = Fastify();
  const access: Access = {
    user: { identity: 'ann', display_name: 'ann', permissions: [], is_authenticated: true },
    async authorize(event, value) {
      asked.push(event);
      return answer(event, value);
    },
  };
  app.decorateRequest('principal', null as never);
  app.addHook('onRequest', async (request) => {
    request.principal = { owner: 'ann', access };
  });
  addCronRoutes(app, { assistants, crons, threads: createThreadService({ pool }) } as LangGraphDeps);
});
afterAll(async () => {
  await app.close();
  await pool.end();
  await database.drop();
});
beforeEach(() => {
  asked.length = 0;
  answer = (event, value) => {
    if (event.endsWith(':create') || event.endsWith('create_run')) {
      value.metadata = { ...(value.metadata as object), team: 'red' };
    }
    return [{ team: 'red' }];
  };
});

async function ask(method: 'POST' | 'PATCH' | 'DELETE', url: string, payload: object = {}) {
  const response = await app.inject({ method, url, payload });
  return { status: response.statusCode, body: response.body === '' ? null : (response.json() as never) };
}
const NEW = { assistant_id: 'chat', schedule: '0 0 1 1 *' };
async function create(): Promise<string> {
  const { status, body } = await ask('POST', '/runs/crons', NEW);
  expect(status).toBe(200);
  return (body as unknown as { cron_id: string }).cron_id;
}

test('a cron is asked for, and the runs it will ask for; what the answers put into the metadata is there', async () => {
  const id = await create();
  expect(asked).toEqual(['threads:create_run', 'crons:create']);
  const found = await ask('POST', '/runs/crons/search', {});
  expect(found.body).toMatchObject([{ cron_id: id, metadata: { team: 'red' } }]);
});

test('filters hide it from searches and counts, and from changes', async () => {
  const id = await create();
  answer = () => [{ team: 'blue' }];
  expect((await ask('POST', '/runs/crons/search', {})).body).toEqual([]);
  expect((await ask('POST', '/runs/crons/count', {})).body).toBe(0);
  const refused = { statusCode: 500, code: 'CRON_NOT_FOUND' };
  expect((await ask('PATCH', `/runs/crons/${id}`, { enabled: false })).body).toMatchObject(refused);
  expect((await ask('DELETE', `/runs/crons/${id}`)).body).toMatchObject(refused);
  answer = () => [{ team: 'red' }];
  expect((await ask('PATCH', `/runs/crons/${id}`, { enabled: false })).body).toMatchObject({ enabled: false });
  expect((await ask('DELETE', `/runs/crons/${id}`)).status).toBe(204);
});

test('on a thread that the user may not run on there is none', async () => {
  const { rows } = await pool.query<{ id: string }>(
    `insert into threads (id, owner, metadata) values ($1, 'ann', '{"team": "blue"}') returning id`,
    [randomUUID()],
  );
  const url = `/threads/${rows[0]?.id}/runs/crons`;
  expect((await ask('POST', url, NEW)).body).toMatchObject({ code: 'THREAD_NOT_FOUND' });
  expect(asked).toEqual(['threads:create_run']);
});
