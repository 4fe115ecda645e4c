/** Routes and middleware of a project: a Hono app, and the same without Hono. */
import { Client } from '@langchain/langgraph-sdk';
import { Hono } from 'hono';
import { streamText } from 'hono/streaming';

/** Requests whose client has left while the app still had them in hand. */
let leftEarly = 0;

export const app = new Hono()
  .use(async (c, next) => {
    if (c.req.query('closed') !== undefined) return c.text('closed', 418);
    await next();
    c.header('x-seen-by', 'the app');
    c.header('x-status', String(c.res.status));
  })
  .use('/threads/*', async (c, next) => {
    await next();
    if (c.req.query('reworded') === undefined) return undefined;
    const body = (await c.res.json()) as { thread_id: string };
    c.res = c.json({ reworded: body.thread_id }, 203);
    return undefined;
  })
  .post('/runs/*', async (c, next) => {
    const body = await c.req.json();
    if (body.input?.rewrite === undefined) return next();
    c.req.raw = new Request(c.req.raw.url, {
      method: 'POST',
      headers: { 'content-type': 'application/json', 'x-rewritten': 'yes' },
      body: JSON.stringify({ ...body, input: { asked: 'rewritten' } }),
    });
    c.req.bodyCache = {};
    return next();
  })
  .get('/own', (c) => c.json({ asked: c.req.query('a'), header: c.req.header('x-own') }, 200, { 'x-own': 'answer' }))
  .get('/own/fails', () => {
    throw new Error('a secret of the app');
  })
  .get('/own/cookies', (c) => {
    c.header('set-cookie', 'a=1', { append: true });
    c.header('set-cookie', 'b=2', { append: true });
    return c.body(null, 204);
  })
  .post('/own/echo', async (c) => c.text(await c.req.text()))
  .get('/own/slow', (c) =>
    streamText(c, async (stream) => {
      c.req.raw.signal.addEventListener('abort', () => {
        leftEarly += 1;
      });
      await stream.writeln('first');
      await new Promise((resolve) => c.req.raw.signal.addEventListener('abort', resolve));
    }),
  )
  .get('/own/left', (c) => c.json(leftEarly))
  // A client without a URL speaks to this server.
  .get('/own/client', async (c) => {
    const client = new Client({ defaultHeaders: { 'x-user': 'ann' } });
    return c.json(await client.runs.wait(null, 'hosted', { input: { asked: 'by the app' } }));
  })
  // One that leaves in the middle of a stream: its run is stopped with it.
  .get('/own/leaves', async (c) => {
    const client = new Client({ defaultHeaders: { 'x-user': 'ann' } });
    const { thread_id } = await client.threads.create();
    const leaving = new AbortController();
    const stream = client.runs.stream(thread_id, 'remote', {
      input: { messages: [{ role: 'human', content: 'slow 200' }] },
      streamMode: 'messages-tuple',
      onDisconnect: 'cancel',
      signal: leaving.signal,
    });
    for await (const { event } of stream) if (event === 'messages') break;
    leaving.abort();
    return c.json({ thread_id, in_process: Symbol.for('langgraph_api:fetch') in globalThis });
  })
  .notFound((c) => c.text('never asked', 404));

/** Anything with a fetch: what it does not have is ours. */
export const plain = {
  fetch: async (request: Request) =>
    new URL(request.url).pathname === '/own' ? new Response(await request.text()) : new Response('no', { status: 404 }),
};

export const none = { routes: [] };
