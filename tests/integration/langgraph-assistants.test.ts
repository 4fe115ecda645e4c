/** Assistants: versions, whose they are, and those the server makes for its graphs. */
import { randomUUID } from 'node:crypto';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import {
  type AssistantService,
  createAssistantService,
  ensureSystemAssistants,
  systemAssistantId,
} from '#src/assistants/service.ts';
import { createGraphDescriber } from '#src/graphs/describe.ts';
import { createGraphRegistry } from '#src/graphs/registry.ts';
import type { Pool } from '#src/postgres/pool.ts';
import { createDatabase, type TestDatabase } from '#tests/support/database.ts';
import { testPool } from '#tests/support/pools.ts';

const file = fileURLToPath(new URL('../support/graphs/remote.ts', import.meta.url));
const model = { apiKey: null, baseUrl: null, name: 'none', chunkTimeoutMs: 1_000, callTimeoutMs: 1_000 };
const graphIds = ['remote'];

let database: TestDatabase;
let pool: Pool;
let assistants: AssistantService;

beforeAll(async () => {
  database = await createDatabase();
  pool = testPool(database.url, 6);
  const graphs = await createGraphRegistry({
    graphs: { remote: { file, exportName: 'graph', context: 'checkpoint' } },
    model,
  });
  assistants = createAssistantService({ pool, graphIds, describer: createGraphDescriber({ pool, graphs }) });
  // Several processes start at once.
  const start = () => ensureSystemAssistants({ pool, graphIds, defaults: {} });
  await Promise.all([start(), start(), start()]);
});
afterAll(async () => {
  await pool.end();
  await database.drop();
});

const content = (fields: object = {}) => ({
  graph_id: 'remote',
  name: 'one',
  description: null,
  config: {},
  context: {},
  metadata: {},
  ...fields,
});
const create = (owner: string, fields: object = {}) =>
  assistants.create(owner, { ...content(fields), if_exists: 'raise' });
const page = { limit: 10, offset: 0, sort_by: 'created_at', sort_order: 'desc' } as const;

describe('versions', () => {
  test('each update makes one, of what is given and what was; metadata are merged', async () => {
    const owner = randomUUID();
    const { id } = await create(owner, { metadata: { a: 1 }, config: { tags: ['x'] } });
    expect(await assistants.update(owner, id, { name: 'two', metadata: { b: 2 } })).toMatchObject({
      version: 2,
      name: 'two',
      config: { tags: ['x'] },
      metadata: { a: 1, b: 2 },
    });
    expect(await assistants.update(owner, id, {})).toMatchObject({ version: 3, name: 'two' });
    const versions = await assistants.versions(owner, id, { limit: 2, offset: 1 });
    expect(versions.map(({ version, name }) => [version, name])).toEqual([
      [2, 'two'],
      [1, 'one'],
    ]);
    expect(await assistants.setLatest(owner, id, 1)).toMatchObject({ version: 1, name: 'one', metadata: { a: 1 } });
    // The next is after the newest, not after the one in force.
    expect(await assistants.update(owner, id, {})).toMatchObject({ version: 4, name: 'one' });
    await expect(assistants.setLatest(owner, id, 9)).rejects.toMatchObject({ code: 'ASSISTANT_VERSION_NOT_FOUND' });
  });

  test('two updates at once make two', async () => {
    const owner = randomUUID();
    const { id } = await create(owner);
    const made = await Promise.all([assistants.update(owner, id, {}), assistants.update(owner, id, {})]);
    expect(made.map(({ version }) => version).sort()).toEqual([2, 3]);
  });
});

test('an id is given once; do_nothing gives what is there, if it is the owner’s', async () => {
  const owner = randomUUID();
  const { id } = await create(owner, { name: 'mine' });
  await expect(create(owner, { id })).rejects.toMatchObject({ code: 'ASSISTANT_EXISTS' });
  const again = (who: string) => assistants.create(who, { ...content({ name: 'other' }), id, if_exists: 'do_nothing' });
  expect(await again(owner)).toMatchObject({ name: 'mine' });
  await expect(again('somebody else')).rejects.toMatchObject({ code: 'ASSISTANT_EXISTS' });
});

test('another owner’s is not found, whatever is asked', async () => {
  const { id } = await create('anna');
  const refused = { code: 'ASSISTANT_NOT_FOUND' };
  await expect(assistants.get('bob', id)).rejects.toMatchObject(refused);
  await expect(assistants.update('bob', id, {})).rejects.toMatchObject(refused);
  await expect(assistants.remove('bob', id)).rejects.toMatchObject(refused);
  await expect(assistants.versions('bob', id, { limit: 1, offset: 0 })).rejects.toMatchObject(refused);
  await expect(assistants.setLatest('bob', id, 1)).rejects.toMatchObject(refused);
  await expect(assistants.get('bob', 'no-uuid-and-no-graph')).rejects.toMatchObject(refused);
  expect((await assistants.search('bob', { ...page, name: 'one' })).assistants).toEqual([]);
});

describe('the server’s own', () => {
  test('is found by its graph, and by everybody', async () => {
    const found = await assistants.get('anybody', 'remote');
    expect(found).toMatchObject({ id: systemAssistantId('remote'), owner: null, version: 1, name: 'remote' });
    expect(await assistants.get('anybody', found.id)).toEqual(found);
    const search = await assistants.search('anybody', { ...page, metadata: { created_by: 'system' } });
    expect(search).toEqual({ assistants: [found], total: 1 });
  });

  test('cannot be changed', async () => {
    for (const change of [
      () => assistants.update('anna', 'remote', { name: 'x' }),
      () => assistants.remove('anna', 'remote'),
      () => assistants.setLatest('anna', 'remote', 1),
    ]) {
      await expect(change()).rejects.toMatchObject({ code: 'FORBIDDEN' });
    }
  });

  test('is configured anew at a start', async () => {
    const config = { configurable: { model: 'm' } };
    await ensureSystemAssistants({ pool, graphIds, defaults: { remote: { config, context: { a: 1 } } } });
    expect(await assistants.get('anna', 'remote')).toMatchObject({ version: 1, config, context: { a: 1 } });
  });

  test('is not shown when its graph is configured no more', async () => {
    await ensureSystemAssistants({ pool, graphIds: ['gone'], defaults: {} });
    await expect(assistants.get('anna', systemAssistantId('gone'))).rejects.toMatchObject({
      code: 'ASSISTANT_NOT_FOUND',
    });
    expect(await assistants.count('nobody', { metadata: { created_by: 'system' } })).toBe(1);
  });
});

test('a search filters, orders and pages', async () => {
  const owner = randomUUID();
  for (const name of ['Alpha', 'beta', 'alphabet']) await create(owner, { name, metadata: { n: name.length } });
  const search = async (fields: object) =>
    (await assistants.search(owner, { ...page, ...fields })).assistants.map(({ name }) => name);
  expect(await search({ name: 'ALPHA', sort_by: 'name', sort_order: 'asc' })).toHaveLength(2);
  expect(await search({ metadata: { n: 4 } })).toEqual(['beta']);
  expect(await search({ name: 'a%' })).toEqual([]);
  expect(await search({ metadata: {}, sort_order: 'asc', limit: 2, offset: 1 })).toEqual(['Alpha', 'beta']);
  expect(await assistants.count(owner, { name: 'alpha' })).toBe(2);
});

test('its graph is drawn', async () => {
  const drawing = await assistants.drawing('anna', 'remote', false);
  expect(drawing).toMatchObject({
    nodes: expect.arrayContaining([expect.objectContaining({ id: 'gate' }), expect.objectContaining({ id: 'speak' })]),
    edges: expect.arrayContaining([expect.objectContaining({ source: 'gate', target: 'speak' })]),
  });
  const { graphId, schemas } = await assistants.schemas('anna', 'remote');
  // Plain annotations have no types at run time.
  expect([graphId, schemas.state]).toEqual(['remote', null]);
  const stray = await create('anna', { graph_id: 'nowhere' });
  await expect(assistants.drawing('anna', stray.id, false)).rejects.toMatchObject({ code: 'GRAPH_NOT_FOUND' });
});
