/** An app of the operator around our routes: its own routes, its middleware, and what passes through it untouched. */
import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { Client } from '@langchain/langgraph-sdk';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { loadUserApp } from '#src/http/user-app.ts';
import { bundleComponents } from '#src/http/user-components.ts';
import { type Cluster, startCluster } from '#tests/support/cluster.ts';
import { until } from '#tests/support/until.ts';

const graphFile = (name: string) => fileURLToPath(new URL(`../support/graphs/${name}`, import.meta.url));

let folder: string;
let cluster: Cluster;
/** With the Hono app; with the plain one, routes that are not there, and CORS. */
let [hono, plain] = ['', ''];

async function jsonWith(http: object, more: object = {}): Promise<string> {
  const file = join(folder, `${Object.keys(http).join('-')}.json`);
  const graphs = { hosted: `${graphFile('hosted.ts')}:graph`, remote: `${graphFile('remote.ts')}:graph` };
  await writeFile(
    file,
    JSON.stringify({ graphs, auth: { path: `${graphFile('hosted-auth.ts')}:auth` }, http, ...more }),
  );
  return file;
}

/** What a project with components has installed: of the real bundler, only its part of the agreement. */
async function installBundler(): Promise<void> {
  const home = join(folder, 'node_modules/@langchain/langgraph-ui');
  await mkdir(home, { recursive: true });
  await writeFile(join(home, 'package.json'), '{"type":"module","main":"./index.mjs"}');
  const source = `
    import { mkdir, writeFile } from 'node:fs/promises';
    import { join, resolve } from 'node:path';
    export async function build({ cwd, defs, config, output }) {
      for (const [name, module] of Object.entries(defs)) {
        if (module.includes('broken')) throw new Error('secret path');
        const folder = resolve(cwd, output, 'public', name);
        await mkdir(folder, { recursive: true });
        await writeFile(join(folder, 'entrypoint.js'), '// ' + module + ' without ' + config.shared);
        await writeFile(join(folder, 'entrypoint.css'), 'a { color: red }');
      }
    }`;
  await writeFile(join(home, 'index.mjs'), source);
}

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'runledger-app-'));
  const first = await jsonWith({ app: `${graphFile('hosted-app.ts')}:app` });
  cluster = await startCluster({
    server: { config: { graphs: null, server: { body_limit: '1KB' } }, args: ['--langgraph-json', first] },
  });
  hono = cluster.servers[0]?.url ?? '';
  const cors = { allow_origin_regex: 'https://.*\\.example', expose_headers: ['x-own'], max_age: 7 };
  const disabled = { disable_assistants: true, disable_store: true, disable_meta: true };
  await installBundler();
  const second = await jsonWith(
    { app: `${graphFile('hosted-app.ts')}:plain`, cors, ...disabled },
    { ui: { 'my-graph': './ui.tsx' }, ui_config: { shared: ['three'] } },
  );
  plain = (await cluster.add({ args: ['--langgraph-json', second] })).url;
});
afterAll(async () => {
  await cluster.stop();
  await rm(folder, { recursive: true, force: true });
});

const ask = (url: string, init: RequestInit & { user?: string | null } = {}) => {
  const { user = 'ann', headers, ...rest } = init;
  return fetch(url, { ...rest, headers: { ...(user === null ? {} : { 'x-user': user }), ...headers } });
};
const json = { 'content-type': 'application/json' };
const client = () =>
  new Client({ apiUrl: hono, defaultHeaders: { 'x-user': 'ann' }, callerOptions: { maxRetries: 0 } });

describe('its routes', () => {
  test('answer before ours, with query, headers and cookies', async () => {
    const answer = await ask(`${hono}/own?a=1`, { headers: { 'x-own': 'asked' } });
    expect(answer.headers.get('x-own')).toBe('answer');
    expect(answer.headers.get('x-seen-by')).toBe('the app');
    expect(await answer.json()).toEqual({ asked: '1', header: 'asked' });
    const cookies = await ask(`${hono}/own/cookies`);
    expect([cookies.status, cookies.headers.getSetCookie()]).toEqual([204, ['a=1', 'b=2']]);
    expect(await (await ask(`${hono}/own/echo`, { method: 'POST', body: 'körper' })).text()).toBe('körper');
  });

  test('are for users, as ours are', async () => {
    const answer = await ask(`${hono}/own`, { user: null });
    expect([answer.status, await answer.text()]).toEqual([401, expect.stringContaining('Who are you?')]);
  });

  test('that fail say nothing of why', async () => {
    const answer = await ask(`${hono}/own/fails`);
    expect(answer.status).toBe(500);
    expect(await answer.text()).not.toContain('secret');
  });

  test('get no body that is too long', async () => {
    const answer = await ask(`${hono}/own/echo`, { method: 'POST', body: 'x'.repeat(2_000) });
    expect(answer.status).toBe(413);
  });

  test('stream, and notice that their client has left', async () => {
    const abort = new AbortController();
    const answer = await ask(`${hono}/own/slow`, { signal: abort.signal });
    const { value } = (await answer.body?.getReader().read()) ?? {};
    expect(new TextDecoder().decode(value)).toBe('first\n');
    abort.abort();
    await until(async () => (await (await ask(`${hono}/own/left`)).json()) === 1, { message: 'the app to notice' });
  });

  test('speak to this server with a client that has no URL', async () => {
    expect(await (await ask(`${hono}/own/client`)).json()).toMatchObject({ user: { langgraph_auth_user_id: 'ann' } });
    const left = (await (await ask(`${hono}/own/leaves`)).json()) as { thread_id: string; in_process: boolean };
    expect(left.in_process).toBe(true);
    await until(async () => (await client().runs.list(left.thread_id))[0]?.status === 'interrupted', {
      message: 'the run to be stopped',
    });
  });
});

describe('its middleware', () => {
  test('is around our routes, refusals and unknown ones too', async () => {
    for (const [path, status] of [
      ['/info', 200],
      ['/ok', 200],
      ['/api/v1/threads', 200],
      ['/threads/no-uuid', 404],
      ['/nowhere', 404],
    ] as const) {
      const answer = await ask(hono + path);
      expect([path, answer.status, answer.headers.get('x-status')]).toEqual([path, status, String(status)]);
      expect(answer.headers.get('x-seen-by')).toBe('the app');
    }
    // Its own notFound is asked for nothing.
    expect(await (await ask(`${hono}/nowhere`)).text()).not.toContain('never asked');
  });

  test('can answer in place of ours, and not in place of what machines watch', async () => {
    expect((await ask(`${hono}/info?closed`)).status).toBe(418);
    expect((await ask(`${hono}/api/v1/threads?closed`)).status).toBe(418);
    for (const path of ['/livez', '/readyz', '/metrics']) {
      const answer = await ask(`${hono}${path}?closed`, { user: null });
      expect([answer.status, answer.headers.get('x-seen-by')]).toEqual([200, null]);
    }
  });

  test('can read and reword what our routes answer', async () => {
    const { thread_id: id } = await client().threads.create();
    const answer = await ask(`${hono}/threads/${id}?reworded`);
    expect([answer.status, await answer.json()]).toEqual([203, { reworded: id }]);
  });

  test('can change a request’s body and headers before our routes read them; one that is only read stays', async () => {
    const values = await client().runs.wait(null, 'hosted', { input: { rewrite: true } });
    expect(values).toMatchObject({ asked: 'rewritten' });
    expect(await client().runs.wait(null, 'hosted', { input: { asked: 'as it is' } })).toMatchObject({
      asked: 'as it is',
    });
  });

  test('lets our streams through as they are, and our server sees their clients leave', async () => {
    const { thread_id: id } = await client().threads.create();
    const body = { assistant_id: 'remote', input: { messages: [{ role: 'human', content: 'slow 400' }] } };
    const abort = new AbortController();
    const stream = await ask(`${hono}/threads/${id}/runs/stream`, {
      method: 'POST',
      headers: json,
      body: JSON.stringify({ ...body, on_disconnect: 'cancel', stream_mode: 'messages-tuple' }),
      signal: abort.signal,
    });
    expect(stream.headers.get('x-seen-by')).toBe('the app');
    const reader = stream.body?.pipeThrough(new TextDecoderStream()).getReader();
    let text = '';
    while (!text.includes('event: messages')) text += (await reader?.read())?.value ?? '';
    abort.abort();
    await until(async () => (await client().runs.list(id))[0]?.status === 'interrupted', {
      message: 'the run to be cancelled',
      timeoutMs: 15_000,
    });
  });
});

describe('without Hono', () => {
  test('what a fetch does not have is ours, with the body', async () => {
    expect(await (await ask(`${plain}/own`, { method: 'POST', body: 'hi' })).text()).toBe('hi');
    const made = await ask(`${plain}/threads`, { method: 'POST', headers: json, body: '{"metadata":{"n":1}}' });
    expect(await made.json()).toMatchObject({ metadata: { n: 1 } });
    expect((await ask(`${plain}/threads/search`, { method: 'POST' })).status).toBe(200);
  });

  test('groups of routes that are disabled are not there', async () => {
    for (const path of ['/ok', '/info', '/assistants/hosted', '/store/items?key=a']) {
      expect([path, (await ask(plain + path)).status]).toEqual([path, 404]);
    }
    const found = await ask(`${plain}/threads/search`, { method: 'POST', headers: json, body: '{}' });
    expect(found.status).toBe(200);
  });

  test('origins are let in as the file says', async () => {
    const allowed = await ask(`${plain}/threads/count`, {
      method: 'OPTIONS',
      user: null,
      headers: preflight('https://a.example'),
    });
    expect(allowed.headers.get('access-control-allow-origin')).toBe('https://a.example');
    expect(allowed.headers.get('access-control-max-age')).toBe('7');
    for (const origin of ['https://a.example.evil', 'http://a.example']) {
      const refused = await ask(`${plain}/threads/count`, {
        method: 'OPTIONS',
        user: null,
        headers: preflight(origin),
      });
      expect(refused.headers.get('access-control-allow-origin')).toBeNull();
    }
    const answer = await ask(`${plain}/own`, { method: 'POST', headers: { origin: 'https://a.example' } });
    expect(answer.headers.get('access-control-allow-origin')).toBe('https://a.example');
    expect(answer.headers.get('access-control-expose-headers')).toContain('x-own');
  });

  test('what is no app stops the start', async () => {
    const file = graphFile('hosted-app.ts');
    await expect(loadUserApp({ file, exportName: 'none' })).rejects.toThrow(
      /is neither a Hono app nor has it a fetch$/,
    );
    await expect(loadUserApp({ file: join(folder, 'none.ts'), exportName: 'app' })).rejects.toThrow(
      /could not be loaded$/,
    );
  });
});

describe('components of a project', () => {
  const snippet = (agent: string, body: object, user: string | null = 'ann') =>
    ask(`${plain}/ui/${agent}`, { method: 'POST', user, headers: json, body: JSON.stringify(body) });

  test('a page is told how to show one, and finds its script and styles without credentials', async () => {
    const told = await snippet('my-graph', { name: 'weather' });
    expect(told.headers.get('content-type')).toMatch(/^text\/html/);
    const at = `${plain}/ui/my-graph/entrypoint`;
    expect(await told.text()).toBe(
      `<link rel="stylesheet" href="${at}.css" />\n` +
        `<script src="${at}.js" onload='__LGUI_my_graph.render("weather", "{{shadowRootId}}")'></script>`,
    );
    const script = await ask(`${at}.js`, { user: null });
    expect(script.headers.get('content-type')).toMatch(/^text\/javascript/);
    expect(await script.text()).toBe('// ./ui.tsx without three');
    expect((await ask(`${at}.css`, { user: null })).headers.get('content-type')).toMatch(/^text\/css/);
  });

  test('a name stays within its attribute', async () => {
    const text = await (await snippet('my-graph', { name: `'><script>"` })).text();
    expect(text).toContain(`render("&#39;&gt;&lt;script&gt;\\"", `);
  });

  test('what is not there is 404, who is nobody 401, what is no name 400', async () => {
    expect((await snippet('other', { name: 'weather' })).status).toBe(404);
    expect((await ask(`${plain}/ui/my-graph/other.js`)).status).toBe(404);
    expect((await snippet('my-graph', { name: 'weather' }, null)).status).toBe(401);
    expect((await snippet('my-graph', {})).status).toBe(400);
    expect((await ask(`${hono}/ui/my-graph/entrypoint.js`)).status).toBe(404);
  });

  test('without a bundler, and with components it cannot bundle, the server does not start', async () => {
    const modules = { a: './broken.tsx' };
    const bundle = (source: string) => bundleComponents({ source, modules, shared: [] });
    await expect(bundle(join(folder, 'langgraph.json'))).rejects.toThrow(/: ui: the components could not be bundled$/);
    await expect(bundle(join(tmpdir(), 'langgraph.json'))).rejects.toThrow(/: ui: needs the package .*-ui, installed/);
  });
});

function preflight(origin: string) {
  return { origin, 'access-control-request-method': 'POST' };
}
