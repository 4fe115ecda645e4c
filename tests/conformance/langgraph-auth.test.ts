/** A server as a project for LangGraph's own server has it: its langgraph.json, and its Auth module. */
import { randomUUID } from 'node:crypto';
import { fileURLToPath } from 'node:url';
import { Client } from '@langchain/langgraph-sdk';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type Cluster, call, startCluster } from '#tests/support/cluster.ts';
import { query } from '#tests/support/postgres.ts';
import type { TestServer } from '#tests/support/server.ts';
import { until } from '#tests/support/until.ts';

const JSON_FILE = fileURLToPath(new URL('../support/hosting/langgraph.json', import.meta.url));

let cluster: Cluster;
let server: TestServer;

beforeAll(async () => {
  // No graph but those of the langgraph.json: an empty section counts as not there.
  cluster = await startCluster({ server: { config: { graphs: null }, args: ['--langgraph-json', JSON_FILE] } });
  const [first] = cluster.servers;
  if (first === undefined) throw new Error('a server was asked for');
  server = first;
});
afterAll(() => cluster.stop());

const clientOf = (user: string, team = 'red') =>
  new Client({
    apiUrl: server.url,
    defaultHeaders: { 'x-user': user, 'x-team': team },
    callerOptions: { maxRetries: 0 },
  });
const rest = (user: string, method: string, path: string, body?: unknown, team = 'red') =>
  call<Record<string, never>>(server, method, `/api/v1${path}`, body, { 'x-user': user, 'x-team': team });
const raw = (method: string, path: string, headers: Record<string, string>, body?: object) =>
  fetch(`${server.url}${path}`, {
    method,
    headers: { 'content-type': 'application/json', ...headers },
    ...(body === undefined ? {} : { body: JSON.stringify(body) }),
  });

const logged = (text: RegExp) =>
  until(() => text.test(server.logs()), { timeoutMs: 15_000, message: `${text} in the log` });

test('serves the graphs of the file, and says which keys have no effect', async () => {
  const own = await clientOf('ann').runs.wait(null, 'hosted', { input: { asked: '' } });
  expect(own).toHaveProperty('user');
  await logged(/langgraph\.json: store\.index: has no effect/);
  expect(server.logs()).not.toMatch(/(node_version|dependencies|graphs\.hosted).*: has no effect/);
});

describe('who asks', () => {
  test('is refused in the words, with the status and the headers of the module', async () => {
    for (const path of ['/ok', '/assistants/hosted', '/api/v1/threads']) {
      const answer = await raw('GET', path, {});
      expect(answer.status).toBe(401);
      expect(answer.headers.get('www-authenticate')).toBe('Name realm="test"');
      expect(await answer.text()).toContain('Who are you?');
    }
    expect((await raw('GET', '/info', {})).status).toBe(200);
  });

  test('a fault of the module is a 500 that tells nothing of it', async () => {
    const answer = await raw('GET', '/ok', { 'x-user': 'broken' });
    expect(answer.status).toBe(500);
    expect(await answer.text()).not.toContain('secret');
    await logged(/a secret of the user table/);
  });

  test('an identity that cannot be an owner is refused', async () => {
    expect((await raw('GET', '/ok', { 'x-user': ':perm' })).status).toBe(500);
    expect((await raw('GET', '/ok', { 'x-user': 'x'.repeat(257) })).status).toBe(500);
  });

  test('is not Studio because a header says so', async () => {
    expect((await raw('GET', '/ok', { 'x-auth-scheme': 'langsmith' })).status).toBe(401);
  });

  test('is told to the graph, whatever the client says, and to nothing that outlives the run', async () => {
    const client = clientOf('ann:a,b');
    const { thread_id: id } = await client.threads.create();
    const spoofed = { configurable: { langgraph_auth_user_id: 'eve', langgraph_auth_permissions: ['all'], own: 1 } };
    const values = await client.runs.wait(id, 'hosted', { input: { asked: '' }, config: spoofed });
    expect(values).toMatchObject({
      user: {
        langgraph_auth_user: { identity: 'ann', display_name: 'ann', is_authenticated: true, team: 'red' },
        langgraph_auth_user_id: 'ann',
        langgraph_auth_permissions: ['a', 'b'],
      },
    });
    const { metadata } = await client.threads.getState(id);
    expect(metadata).toMatchObject({ own: 1 });
    const thread = await client.threads.get(id);
    expect(thread.config).toMatchObject({ configurable: { own: 1 } });
    expect(JSON.stringify([metadata, thread.config])).not.toContain('langgraph_auth');
  });

  test('is not told otherwise by headers, whichever of them graphs are told of', async () => {
    const { thread_id: id } = await clientOf('ann').threads.create();
    const headers = { 'x-user': 'ann', 'x-team': 'red', authorization: 'secret', langgraph_auth_user_id: 'eve' };
    const reserved = { graph_id: 'other', checkpoint_id: 'made up', __own: '1', other: 'told' };
    const body = { assistant_id: 'hosted', input: { asked: '' } };
    const ran = await raw('POST', `/threads/${id}/runs/wait`, { ...headers, ...reserved }, body);
    expect(ran.status).toBe(200);
    const [run] = await clientOf('ann').runs.list(id);
    const told = JSON.stringify([
      run,
      await clientOf('ann').threads.get(id),
      await clientOf('ann').threads.getState(id),
    ]);
    expect(told).toContain('told');
    for (const never of ['eve', 'made up', '__own', 'secret', '"graph_id":"other"']) expect(told).not.toContain(never);
  });

  test('is told to the graph of a message, too', async () => {
    const sent = await rest('ann:a', 'POST', '/threads/messages', { content: 'hi' });
    expect(sent.status).toBe(202);
    const { thread_id, run_id } = sent.body as unknown as { thread_id: string; run_id: string };
    const values = await clientOf('ann').runs.join(thread_id, run_id);
    expect(values).toMatchObject({ user: { langgraph_auth_user_id: 'ann', langgraph_auth_permissions: ['a'] } });
    // Its thread is the team's, as one that was made by itself.
    expect((await clientOf('ann').threads.get(thread_id)).metadata).toMatchObject({ asked: 'threads:create_run' });
    const named = { content: 'hi', config: { configurable: { langgraph_auth_user_id: 'eve' } } };
    expect((await rest('ann', 'POST', '/threads/messages', named)).status).toBe(422);
  });
});

describe('what they may do', () => {
  test('is what exactly one handler says, the most exact one', async () => {
    const client = clientOf('ann');
    const { thread_id: id } = await client.threads.create({ metadata: { mine: true } });
    // `threads`, not `*`; and what it put into the metadata is there.
    expect((await client.threads.get(id)).metadata).toMatchObject({ mine: true, team: 'red', asked: 'threads:create' });
    // `threads:delete`, not `threads` and not `*:delete`.
    await expect(client.threads.delete(id)).rejects.toThrow('HTTP 402: Deleting is not free.');
    expect((await rest('ann', 'DELETE', `/threads/${id}`)).status).toBe(402);
    // `*:delete`, not `*`.
    await expect(client.assistants.delete(randomUUID())).rejects.toThrow('HTTP 403: not asked: there is one');
    // `*`.
    await expect(client.assistants.update(randomUUID(), {})).rejects.toThrow('HTTP 403: nobody may assistants:update');
  });

  test('is what the handler leaves of a run, also of one that a cron will ask for', async () => {
    const client = clientOf('ann:plain');
    const { thread_id: id } = await client.threads.create();
    const config = { configurable: { own: 1 }, tags: ['theirs'] };
    const { run_id: runId } = await client.runs.create(id, 'hosted', { input: { asked: '' }, config });
    const run = await client.runs.get(id, runId);
    expect(run).toMatchObject({ kwargs: { input: { asked: '' } } });
    expect(JSON.stringify(run)).not.toContain('theirs');
    // Nor is what the server knows of the user shown with the run.
    expect(JSON.stringify(run)).not.toContain('langgraph_auth');
    const sent = await rest('ann:plain', 'POST', '/threads/messages', { content: 'hi', config: { tags: ['theirs'] } });
    const { thread_id, run_id } = sent.body as unknown as { thread_id: string; run_id: string };
    expect(JSON.stringify(await client.runs.get(thread_id, run_id))).not.toContain('theirs');
    const later = { schedule: '0 0 1 1 *', timezone: 'UTC' };
    const { cron_id: cronId } = (await client.crons.create('hosted', { ...later, input: { asked: '' } })) as never;
    const changed = await client.crons.update(cronId, { input: { asked: 'b' }, config: { tags: ['theirs'] } } as never);
    expect(changed).toMatchObject({ payload: { input: { asked: 'b' } }, metadata: { team: 'red' } });
    expect(JSON.stringify(changed)).not.toContain('theirs');
    await client.crons.delete(cronId);
  });

  test('to read is not to write or to stop', async () => {
    const [owner, reader] = [clientOf('ann'), clientOf('ann:reader')];
    const { thread_id: id } = await owner.threads.create();
    const { run_id: runId } = await owner.runs.create(id, 'hosted', { input: { asked: '' } });
    await owner.runs.join(id, runId);
    const supersteps = [{ updates: [{ values: { asked: 'x' }, asNode: 'tell' }] }];
    await expect(reader.threads.create({ threadId: id, ifExists: 'do_nothing', supersteps })).rejects.toThrow(
      'HTTP 403',
    );
    const headers = { 'x-user': 'ann:reader' };
    const join = `/threads/${id}/runs/${runId}/join`;
    expect((await raw('GET', join, headers)).status).toBe(200);
    for (const path of [join, `/threads/${id}/runs/${runId}/stream`, `/runs/${runId}/stream`]) {
      expect((await raw('GET', `${path}?cancel_on_disconnect=true`, headers)).status, path).toBe(403);
    }
  });

  test('a PATCH of metadata keeps the marks by which the filters know the thread', async () => {
    const { thread_id: id } = await clientOf('ann').threads.create();
    expect((await rest('ann', 'PATCH', `/threads/${id}`, { metadata: { own: 1 } })).status).toBe(200);
    expect((await clientOf('ann').threads.get(id)).metadata).toMatchObject({ own: 1, team: 'red' });
    // None of many at once is lost.
    const all = Array.from({ length: 20 }, (_, n) => [`n${n}`, n] as const);
    await Promise.all(all.map(([key, n]) => rest('ann', 'PATCH', `/threads/${id}`, { metadata: { [key]: n } })));
    expect((await clientOf('ann').threads.get(id)).metadata).toMatchObject({
      own: 1,
      team: 'red',
      ...Object.fromEntries(all),
    });
  });

  test('false is a 403', async () => {
    const client = clientOf('ann:refused');
    await expect(client.threads.create()).rejects.toThrow('HTTP 403');
    expect((await rest('ann:refused', 'POST', '/threads', {})).status).toBe(403);
  });

  test('a filter that compares with nothing, or in an unknown way, lets nothing through', async () => {
    await clientOf('ann').threads.create();
    for (const permission of ['mistyped', 'nothing']) {
      await expect(clientOf(`ann:${permission}`).threads.search()).rejects.toThrow('HTTP 500');
      expect((await rest(`ann:${permission}`, 'GET', '/threads')).status).toBe(500);
    }
  });

  test('filters hide what is one’s own, wherever it is asked for', async () => {
    const user = randomUUID();
    const [red, blue] = [clientOf(user), clientOf(user, 'blue')];
    const { thread_id: id } = await red.threads.create();
    const { run_id: runId } = await red.runs.create(id, 'hosted', { input: { asked: '' } });
    await red.runs.join(id, runId);
    const notFound = 'HTTP 404';
    const asked: (() => Promise<unknown>)[] = [
      () => blue.threads.get(id),
      () => blue.threads.update(id, { metadata: {} }),
      () => blue.threads.getState(id),
      () => blue.threads.updateState(id, { values: {} }),
      () => blue.threads.patchState(id, {}),
      () => blue.threads.getHistory(id),
      () => blue.runs.list(id),
      () => blue.runs.get(id, runId),
      () => blue.runs.join(id, runId),
      () => blue.runs.cancel(id, runId),
      () => blue.runs.create(id, 'hosted'),
      () => blue.runs.wait(id, 'hosted'),
    ];
    for (const ask of asked) await expect(ask(), String(ask)).rejects.toThrow(notFound);
    await expect(blue.threads.copy(id)).rejects.toThrow('HTTP 409');
    await expect(blue.threads.create({ threadId: id, ifExists: 'do_nothing' })).rejects.toThrow('HTTP 409');
    expect(await blue.threads.search()).toEqual([]);
    expect(await blue.threads.count()).toBe(0);
    expect(await blue.threads.prune([id], { strategy: 'keep_latest' })).toEqual({ pruned_count: 0 });
    for (const path of [`/threads/${id}/runs/${runId}/stream`, `/runs/${runId}/stream`]) {
      const stream = await raw('GET', path, { 'x-user': user, 'x-team': 'blue' });
      expect(await stream.text()).toContain('data: {"error":"Error","message":"404: Thread not found"}');
    }
    expect(await red.threads.search()).toHaveLength(1);
    for (const path of ['', '/turns', '/status', '/messages/stream']) {
      expect((await rest(user, 'GET', `/threads/${id}${path}`, undefined, 'blue')).status, path).toBe(404);
    }
    for (const path of ['/messages', '/retry', '/answer', '/cancel']) {
      const body = path === '/messages' ? { content: 'hi' } : path === '/answer' ? { interrupts: { x: 1 } } : {};
      expect((await rest(user, 'POST', `/threads/${id}${path}`, body, 'blue')).status, path).toBe(404);
    }
    expect((await rest(user, 'GET', `/runs/${runId}`, undefined, 'blue')).status).toBe(404);
    expect((await rest(user, 'GET', '/threads', undefined, 'blue')).body).toMatchObject({ threads: [] });
    expect((await rest(user, 'GET', '/webhooks', undefined, 'blue')).status).toBe(403);
    expect((await rest(user, 'GET', `/threads/${id}`)).status).toBe(200);
  });

  test('whatever filters say, nobody sees what is another’s', async () => {
    const { thread_id: id } = await clientOf('ann').threads.create();
    await expect(clientOf('bob').threads.get(id)).rejects.toThrow('HTTP 404');
    const { assistant_id: assistant } = await clientOf('ann').assistants.create({ graphId: 'hosted' });
    await expect(clientOf('bob').assistants.get(assistant)).rejects.toThrow('HTTP 404');
  });

  test('a thread that is made anew by another is another thread to those who follow it', async () => {
    const { thread_id: id } = await clientOf('ann').threads.create();
    await clientOf('ann').runs.wait(id, 'hosted', { input: { asked: 'mine' } });
    const told: string[] = [];
    const stream = clientOf('ann').threads.joinStream(id, { lastEventId: '-1' });
    let others: Promise<unknown> | null = null;
    const make = async () => {
      // The module lets nobody delete.
      await query(cluster.database.url, 'delete from threads where id = $1', [id]);
      await clientOf('bob').threads.create({ threadId: id });
      await clientOf('bob').runs.wait(id, 'hosted', { input: { asked: 'not yours' } });
    };
    for await (const part of stream) {
      told.push(JSON.stringify(part));
      if (part.event === 'metadata' && told.at(-1)?.includes('run_done') === true) others ??= make();
      if (part.event === 'values' && told.at(-1)?.includes('not yours') === true) break;
    }
    await others;
    expect(told.join()).toContain('mine');
    expect(told.join()).not.toContain('not yours');
  });

  test('assistants: what the handler adds is there, and what lacks it is not shown', async () => {
    const client = clientOf('ann');
    const { assistant_id: id } = await client.assistants.create({ graphId: 'hosted' });
    expect(await client.assistants.get(id)).toMatchObject({ metadata: { by: 'ann' } });
    expect((await client.assistants.search()).map(({ metadata }) => metadata)).toContainEqual({ by: 'ann' });
    // The server's own has no such metadata: it runs, but it is not shown.
    await expect(client.assistants.get('hosted')).rejects.toThrow('HTTP 404');
    expect((await client.assistants.search({ metadata: { created_by: 'system' } })).length).toBe(0);
  });

  test('a thread that a run makes has the metadata that the handler gave the run', async () => {
    const client = clientOf('ann');
    const id = randomUUID();
    await client.runs.wait(id, 'hosted', { input: { asked: '' }, ifNotExists: 'create' });
    expect((await client.threads.get(id)).metadata).toMatchObject({ team: 'red', asked: 'threads:create_run' });
  });

  test('the store: namespaces as the handler changes them', async () => {
    const client = clientOf('carl');
    await client.store.putItem(['notes'], 'a', { text: 'x' });
    const there = { namespace: ['carl', 'notes'], key: 'a', value: { text: 'x' } };
    expect(await client.store.getItem(['notes'], 'a')).toMatchObject(there);
    expect((await client.store.searchItems([])).items).toMatchObject([there]);
    expect(await client.store.listNamespaces({})).toEqual({ namespaces: [['carl', 'notes']] });
    await client.store.deleteItem(['notes'], 'a');
    expect(await client.store.getItem(['notes'], 'a')).toBeNull();
  });
});
