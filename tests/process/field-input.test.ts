/**
 * What users send: text that no database takes is refused with the field's path, in every place a request has for text, and
 * nothing is written; everything else is stored and told as it was sent, up to a documented size.
 */
import pg from 'pg';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type Cluster, call, ended, follow, send, startCluster, textOf } from '#tests/support/cluster.ts';
import { callTools, lastText, say } from '#tests/support/fake-model-script.ts';
import { STORABLE_TEXT } from '#tests/support/hostile-text.ts';
import type { TestServer } from '#tests/support/server.ts';

let cluster: Cluster;
let server: TestServer;
let ledger: pg.Pool;
/** A thread whose turn waits for an answer, and one that is idle. */
let waiting: { thread_id: string; interrupt: string };
let thread: string;

beforeAll(async () => {
  cluster = await startCluster({ model: { strict: true } });
  [server] = cluster.servers as [TestServer];
  ledger = new pg.Pool({ connectionString: cluster.database.url, max: 2 });
  cluster.model.setScript(callTools([{ id: 'c', name: 'send_email', args: { to: 'a', subject: 'b', body: 'c' } }]));
  const asked = await send(server, 'ask me');
  await ended(server, asked.run_id);
  const { body } = await call<{ turns: { interrupts: { id: string }[] }[] }>(
    server,
    'GET',
    `/api/v1/threads/${asked.thread_id}/turns`,
  );
  waiting = { thread_id: asked.thread_id, interrupt: body.turns[0]?.interrupts[0]?.id ?? '' };
  thread = (await call<{ id: string }>(server, 'POST', '/api/v1/threads', {})).body.id;
});
afterAll(async () => {
  await ledger?.end();
  await cluster?.stop();
});

/** Everything that is stored, counted and added up: any write shows. */
async function written(): Promise<unknown> {
  const tables = ['threads', 'turns', 'messages', 'runs', 'lineages', 'interrupts', 'checkpoints', 'checkpoint_writes'];
  const parts = tables.map(
    (
      table,
    ) => `select '${table}' as name, count(*) as rows, md5(coalesce(string_agg(t::text, ',' order by t::text), '')) as sum
                from ${table} t`,
  );
  return (await ledger.query(parts.join(' union all '))).rows;
}

const BAD = [
  ['NUL', '\\u0000'],
  ['half a character', '\\ud83d'],
  ['the other half', '\\ude00'],
  ['both halves in the wrong order', '\\ude00\\ud83d'],
] as const;

/** `%` is where the text goes, already escaped for JSON. */
const PLACES: [method: string, path: () => string, body: string, at: string | RegExp][] = [
  ['POST', () => '/api/v1/threads/messages', '{"content":"a%b"}', 'content'],
  ['POST', () => `/api/v1/threads/${thread}/messages`, '{"content":"a%b"}', 'content'],
  ['POST', () => '/api/v1/threads/messages', '{"content":[{"type":"text","text":"a%"}]}', 'content.0.text'],
  ['POST', () => '/api/v1/threads/messages', '{"content":[{"type":"%","x":1}]}', 'content.0.type'],
  ['POST', () => '/api/v1/threads/messages', '{"content":[{"type":"x","a%":1}]}', /^content\.0\.a.+/],
  ['POST', () => '/api/v1/threads/messages', '{"content":"a","graph":"%"}', 'graph'],
  ['POST', () => '/api/v1/threads/messages', '{"content":"a","request_key":"%"}', 'request_key'],
  ['POST', () => '/api/v1/threads/messages', '{"content":"a","config":{"tags":["%"]}}', 'config.tags.0'],
  [
    'POST',
    () => '/api/v1/threads/messages',
    '{"content":"a","config":{"metadata":{"k":["%"]}}}',
    'config.metadata.k.0',
  ],
  [
    'POST',
    () => '/api/v1/threads/messages',
    '{"content":"a","config":{"configurable":{"%":1}}}',
    /^config\.configurable\..+/,
  ],
  [
    'POST',
    () => '/api/v1/threads/messages',
    '{"content":"a","config":{"configurable":{"k":{"l":"%"}}}}',
    'config.configurable.k.l',
  ],
  ['POST', () => '/api/v1/threads', '{"title":"%"}', 'title'],
  ['POST', () => '/api/v1/threads', '{"graph":"%"}', 'graph'],
  ['POST', () => '/api/v1/threads', '{"metadata":{"k":"%"}}', 'metadata.k'],
  ['POST', () => '/api/v1/threads', '{"metadata":{"%":1}}', /^metadata\..+/],
  ['PATCH', () => `/api/v1/threads/${thread}`, '{"title":"%"}', 'title'],
  ['PATCH', () => `/api/v1/threads/${thread}`, '{"metadata":{"k":["%"]}}', 'metadata.k.0'],
  ['POST', () => `/api/v1/threads/${waiting.thread_id}/answer`, '{"interrupts":{"id":{"v":"%"}}}', 'interrupts.id.v'],
  ['POST', () => `/api/v1/threads/${waiting.thread_id}/answer`, '{"interrupts":{"%":1}}', /^interrupts\..+/],
];

describe('text that no database takes', () => {
  test.each(BAD)('%s: 422 with the path, wherever it stands, and nothing is written', async (_name, escaped) => {
    const before = await written();
    for (const [method, path, body, at] of PLACES) {
      const answer = await call<{ path: string }>(server, method, path(), body.replace('%', escaped));
      const place = `${method} ${path()} ${body}`;
      expect(answer, place).toMatchObject({ status: 422, body: { code: 'INVALID_CHARACTER' } });
      expect(answer.body.path, place).toMatch(at);
    }
    expect(await written()).toEqual(before);
  });

  test('in a path or a query: 4xx', async () => {
    const before = await written();
    for (const path of [
      'threads/%00',
      'threads/%00/turns',
      'runs/%00',
      'threads?cursor=%00',
      `threads/${thread}/cancel%00`,
    ]) {
      const { status } = await call(server, path.includes('cancel') ? 'POST' : 'GET', `/api/v1/${path}`);
      expect([400, 404, 422], path).toContain(status);
    }
    const stream = await call(server, 'GET', `/api/v1/threads/${waiting.thread_id}/messages/stream?last_event_id=%00`);
    expect([400, 422]).toContain(stream.status);
    expect(await written()).toEqual(before);
  });

  test('as raw bytes that are no UTF-8: 422', async () => {
    const before = await written();
    const response = await fetch(`${server.url}/api/v1/threads/messages`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: Buffer.from([...Buffer.from('{"content":"a'), 0xff, 0xfe, ...Buffer.from('"}')]),
    });
    expect({ status: response.status, body: await response.json() }).toMatchObject({
      status: 422,
      body: { code: 'INVALID_CHARACTER', path: 'body' },
    });
    expect(await written()).toEqual(before);
  });
});

describe('everything else', () => {
  test('is stored and told as it was sent: line ends, frames, other characters, in texts, keys and answers', async () => {
    cluster.model.setScript((request) => say(lastText(request)));
    const title = STORABLE_TEXT.slice(0, 200);
    const metadata = { [STORABLE_TEXT]: [STORABLE_TEXT, { deep: STORABLE_TEXT }] };
    const created = await call<{ id: string }>(server, 'POST', '/api/v1/threads', { title, metadata });
    expect(created).toMatchObject({ status: 201, body: { title, metadata } });
    const config = { configurable: { k: metadata }, metadata, tags: [STORABLE_TEXT] };
    const sent = await send(server, STORABLE_TEXT, { config, request_key: STORABLE_TEXT }, created.body.id);
    const stream = await follow(server, sent);
    await stream.closed;
    expect(textOf(stream)).toBe(STORABLE_TEXT);
    const parts = [
      { type: 'text', text: STORABLE_TEXT },
      { type: 'text', text: 'second' },
    ];
    const next = await send(server, parts, {}, created.body.id);
    expect((await ended(server, next.run_id)).status).toBe('succeeded');
    const { body } = await call(server, 'GET', `/api/v1/threads/${created.body.id}/turns`);
    expect(body.turns).toMatchObject([
      { status: 'succeeded', question: { content: STORABLE_TEXT }, answer: { content: STORABLE_TEXT } },
      { status: 'succeeded', question: { content: parts } },
    ]);
    const read = await call(server, 'GET', `/api/v1/threads/${created.body.id}`);
    expect(read.body).toMatchObject({ title, metadata });
  });

  test('5 MB: accepted, executed, streamed, readable', async () => {
    cluster.model.setScript((request) => say(`read ${lastText(request).length}`));
    const long = `${STORABLE_TEXT}${'five megabytes '.repeat(350_000)}${STORABLE_TEXT}`;
    const sent = await send(server, long);
    const stream = await follow(server, sent);
    await stream.closed;
    expect(textOf(stream)).toBe(`read ${long.length}`);
    const { body } = await call<{ turns: { question: { content: string } }[] }>(
      server,
      'GET',
      `/api/v1/threads/${sent.thread_id}/turns`,
    );
    expect(body.turns[0]?.question.content === long).toBe(true);
  });

  test('20 MB: 413 as JSON, and nothing is written', async () => {
    const before = await written();
    const body = JSON.stringify({ content: 'x'.repeat(20_000_000) });
    for (const path of ['/api/v1/threads/messages', `/api/v1/threads/${thread}/messages`, '/api/v1/threads']) {
      const answer = await call(server, 'POST', path, body);
      expect(answer).toMatchObject({
        status: 413,
        body: { code: 'PAYLOAD_TOO_LARGE', request_id: expect.any(String) },
      });
      expect(answer.headers.get('content-type')).toMatch(/^application\/json/);
    }
    expect(await written()).toEqual(before);
  });
});
