/** langgraph.json: what is read of it, what is said of the rest, and how it is put together with config.yaml. */
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { stringify } from 'yaml';
import { loadConfig } from '#src/config.ts';
import { readLangGraphJson } from '#src/langgraph-json.ts';

let folder = '';
let count = 0;
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'runledger-langgraph-json-'));
});
afterAll(() => rm(folder, { recursive: true, force: true }));

const graphs = { one: './one.ts:graph' };

async function written(content: unknown): Promise<string> {
  const file = join(folder, `${count++}.json`);
  await writeFile(file, typeof content === 'string' ? content : JSON.stringify(content));
  return file;
}
const read = async (content: object) => readLangGraphJson(await written({ graphs, ...content }));
const refusal = async (content: unknown): Promise<string> => {
  const file = await written(content);
  try {
    readLangGraphJson(file);
  } catch (error) {
    return (error as Error).message.replaceAll(`${file}: `, '');
  }
  throw new Error('it was taken');
};
async function merged(yaml: object | null, json: object) {
  const langgraphJson = await read(json);
  const file = join(folder, `${count++}.yaml`);
  if (yaml !== null) await writeFile(file, stringify(yaml));
  return loadConfig({ file, required: yaml !== null, env: {}, flags: {}, langgraphJson });
}

describe('what is read', () => {
  test('graphs: a path with or without an export, or an object', async () => {
    const json = await read({ graphs: { a: './a.ts:g', b: { path: 'sub/b.mts', description: 'B' } } });
    const context = 'checkpoint';
    expect(json.graphs).toEqual({
      a: { file: join(folder, 'a.ts'), exportName: 'g', context, description: null },
      b: { file: join(folder, 'sub/b.mts'), exportName: 'default', context, description: 'B' },
    });
  });

  test('env: a record, or a file beside it', async () => {
    expect((await read({ env: { A: '1' } })).env).toEqual({ A: '1' });
    await writeFile(join(folder, '.env'), '# a comment\nB="two words"\n');
    expect((await read({ env: '.env' })).env).toEqual({ B: 'two words' });
    expect(await refusal({ graphs, env: 'nowhere' })).toMatch(/^env: .*nowhere: cannot be read$/);
    expect(await refusal({ graphs, env: ['A'] })).toMatch(/^env: /);
  });

  test('Studio needs no credentials only when the file says so', async () => {
    expect((await read({ auth: { path: './a.ts:auth' } })).auth?.studio).toBe(false);
    expect((await read({ auth: { path: './a.ts:auth', disable_studio_auth: false } })).auth?.studio).toBe(true);
  });

  test('keys without effect are named by their paths; those of other tools are not', async () => {
    const json = await read({
      node_version: '24',
      graphs: { a: { path: './a.ts', colour: 'red' } },
      auth: { path: './a.ts', openapi: {} },
      http: { disable_mcp: true, cors: { allow_origins: [], vary: true } },
      store: { index: { dims: 1 }, ttl: { sweep_interval_minutes: 5 } },
      webhooks: { headers: {}, url: { require_https: true, allow: [] } },
      nonsense: 1,
    });
    expect(json.warnings.map((warning) => warning.slice(`${json.source}: `.length))).toEqual(
      [
        'graphs.a.colour',
        'auth.openapi',
        'http.disable_mcp',
        'http.cors.vary',
        'store.index',
        'store.ttl.sweep_interval_minutes',
        'webhooks.headers',
        'webhooks.url.allow',
        'nonsense',
      ].map((key) => `${key}: has no effect on this server`),
    );
  });

  test.each<[string, unknown, RegExp]>([
    ['no JSON', '{', /^is not valid JSON$/],
    ['no graphs', {}, /^graphs: /],
    ['an empty one', { graphs: {} }, /^graphs: must name a graph$/],
    ['an ill-named one', { graphs: { 'a b': './a.ts' } }, /^graphs\.a b: /],
    ['an ill-typed switch', { graphs, http: { disable_runs: 'yes' } }, /^http\.disable_runs: /],
    ['a broken pattern', { graphs, http: { cors: { allow_origin_regex: '(' } } }, /^http\.cors\.allow_origin_regex: /],
    [
      'a header that can be none',
      { graphs, http: { configurable_headers: { includes: ['a b'] } } },
      /^http\.configurable_headers\.includes\.0: /,
    ],
    ['a ttl of nothing', { graphs, checkpointer: { ttl: { default_ttl: 0 } } }, /^checkpointer\.ttl\.default_ttl: /],
  ])('%s is refused by its path', async (_name, content, message) => {
    expect(await refusal(content)).toMatch(message);
  });
});

describe('beside config.yaml', () => {
  test('graphs of both are served, the first of the file is the default; one that both name is refused', async () => {
    const two = await merged({ graphs: { own: './own.ts:graph' } }, {});
    expect(Object.keys(two.graphs)).toEqual(['one', 'own']);
    expect(two.defaultGraph).toBe('one');
    expect((await merged({ graphs: { own: './own.ts:graph' }, default_graph: 'own' }, {})).defaultGraph).toBe('own');
    expect(Object.keys((await merged(null, {})).graphs)).toEqual(['one']);
    await expect(merged({ graphs: { one: './own.ts:graph' } }, {})).rejects.toThrow(/: graphs\.one: /);
  });

  test('headers that runs are told of: as either file says, in either spelling', async () => {
    const rules = async (yaml: object | null, json: object) => (await merged(yaml, json)).langgraph.headerRules;
    expect(await rules(null, {})).toEqual({ includes: ['x-*', 'user-agent'], excludes: [] });
    const excludes = ['X-Mine'];
    const told = { includes: ['x-*', 'user-agent'], excludes: ['x-mine'] };
    expect(await rules(null, { http: { configurable_headers: { excludes } } })).toEqual(told);
    expect(await rules({ langgraph: { configurable_headers: { excludes } } }, {})).toEqual(told);
    const older = { http: { configurable_headers: { include: ['a-*'], exclude: ['*'] } } };
    expect(await rules(null, older)).toEqual({ includes: ['a-*'], excludes: ['*'] });
    await expect(rules({ langgraph: { configurable_headers: {} } }, older)).rejects.toThrow(
      /: http\.configurable_headers: config\.yaml has langgraph\.configurable_headers too$/,
    );
  });

  test('auth takes the place of mode none, and of no other', async () => {
    const auth = { path: './auth.ts:auth' };
    const module = { file: join(folder, 'auth.ts'), exportName: 'auth' };
    expect((await merged({ auth: { mode: 'none' } }, { auth })).auth).toMatchObject({
      mode: 'module',
      module,
      studio: false,
    });
    await expect(merged({ auth: { mode: 'dev' } }, { auth })).rejects.toThrow(
      /: auth: config\.yaml has auth\.mode dev/,
    );
    const own = { auth: { mode: 'module', module: './auth.ts:auth' } };
    expect((await merged(own, {})).auth).toMatchObject({ mode: 'module', module });
    await expect(merged(own, { auth })).rejects.toThrow(/: auth: config\.yaml has auth\.mode module/);
    await expect(merged({ auth: { mode: 'module' } }, {})).rejects.toThrow(/auth\.module: belongs to/);
    await expect(merged({ auth: { module: './auth.ts:auth' } }, {})).rejects.toThrow(/auth\.module: belongs to/);
  });

  test('cors is given once', async () => {
    const http = { cors: { allow_origin_regex: 'https://.*\\.example', max_age: 5 } };
    expect((await merged({}, { http })).http.cors).toEqual({
      origins: [],
      credentials: false,
      originPattern: 'https://.*\\.example',
      maxAgeSeconds: 5,
    });
    await expect(merged({ server: { cors: { origins: ['https://a.example'] } } }, { http })).rejects.toThrow(
      /: http\.cors: /,
    );
  });

  test('what one forbids the other cannot allow', async () => {
    const webhooks = { url: { disable_loopback: true, allowed_domains: ['a.example'] } };
    expect((await merged({}, { webhooks })).webhooks.rules).toMatchObject({ domains: ['a.example'] });
    await expect(merged({ webhooks: { allow_private: true } }, { webhooks })).rejects.toThrow(/disable_loopback: /);
  });
});
