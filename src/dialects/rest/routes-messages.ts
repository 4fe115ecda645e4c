/** Messages and answers: what starts a run, and the stream of what it does. */
import type { Readable } from 'node:stream';
import type { FastifyReply, FastifyRequest } from 'fastify';
import { z } from 'zod';
import { BEFORE_START } from '#src/events/cursor.ts';
import { type Client, watchClient } from '#src/http/client.ts';
import type { Admitted, MessageRequest } from '#src/runs/run.ts';
import type { DialectDeps } from '../dialect.ts';
import type { OpenRunStream } from '../stream.ts';
import { userFacts } from '../user-facts.ts';
import { runPath, streamPath } from './links.ts';
import { type RestApp, refused } from './route.ts';
import { acceptedOf, acceptedView } from './views.ts';
import {
  answerBody,
  cursorOf,
  idParams,
  messageBody,
  requestKeyOf,
  retryBody,
  streamQuery,
  uuidOr,
  wantsStream,
} from './wire.ts';

const eventStream = {
  description: 'The events of the run as server-sent events, to `run_end`.',
  // Described as text; what a handler gives is a stream, which Fastify sends without a schema.
  content: { 'text/event-stream': { schema: z.string() as unknown as z.ZodType<Readable> } },
};
const started = { 200: eventStream, 202: acceptedView, ...refused };
const description =
  'With `Accept: text/event-stream` the answer is the event stream of the run, else 202 with its URL. ' +
  '`Content-Location` is that URL either way.';

export function addMessageRoutes(app: RestApp, deps: DialectDeps & { openStream: OpenRunStream }): void {
  addSend(app, deps);
  addAnswer(app, deps);
  addRetry(app, deps);
  addStream(app, deps);
}

function addSend(app: RestApp, { runs, openStream }: DialectDeps & { openStream: OpenRunStream }): void {
  function requestOf(
    request: FastifyRequest,
    threadId: string | null,
    body: z.output<typeof messageBody>,
  ): MessageRequest {
    const { content, graph, request_key, config, on_disconnect, webhook } = body;
    return {
      owner: request.principal.owner,
      thread_id: threadId,
      thread_metadata: request.allowed?.metadata,
      user: userFacts(request),
      graph_id: graph,
      content,
      request_key: requestKeyOf(request, request_key),
      config,
      on_disconnect,
      webhook,
    };
  }

  app.route({
    method: 'POST',
    url: '/threads/messages',
    schema: { summary: 'Send a message in a new thread', description, body: messageBody, response: started },
    handler: async (request, reply) => {
      const client = watchClient(reply);
      const admitted = await runs.send(requestOf(request, null, request.body));
      return answerStarted({ runs, openStream, request, reply, client, admitted });
    },
  });

  app.route({
    method: 'POST',
    url: '/threads/:id/messages',
    schema: { summary: 'Send a message', description, params: idParams, body: messageBody, response: started },
    handler: async (request, reply) => {
      const client = watchClient(reply);
      const threadId = uuidOr('THREAD_NOT_FOUND', request.params.id);
      const admitted = await runs.send(requestOf(request, threadId, request.body));
      return answerStarted({ runs, openStream, request, reply, client, admitted });
    },
  });
}

function addAnswer(app: RestApp, { runs, openStream }: DialectDeps & { openStream: OpenRunStream }): void {
  app.route({
    method: 'POST',
    url: '/threads/:id/answer',
    schema: { summary: 'Answer open interrupts', description, params: idParams, body: answerBody, response: started },
    handler: async (request, reply) => {
      const client = watchClient(reply);
      const { interrupts, request_key, config, on_disconnect, webhook } = request.body;
      const admitted = await runs.answer({
        owner: request.principal.owner,
        thread_id: uuidOr('THREAD_NOT_FOUND', request.params.id),
        user: userFacts(request),
        interrupts,
        request_key: requestKeyOf(request, request_key),
        config,
        on_disconnect,
        webhook,
      });
      return answerStarted({ runs, openStream, request, reply, client, admitted });
    },
  });
}

function addRetry(app: RestApp, { runs, openStream }: DialectDeps & { openStream: OpenRunStream }): void {
  app.route({
    method: 'POST',
    url: '/threads/:id/retry',
    schema: {
      summary: 'Try the latest turn again, after it failed or was cancelled',
      description,
      params: idParams,
      body: retryBody,
      response: started,
    },
    handler: async (request, reply) => {
      const client = watchClient(reply);
      const { request_key, config, on_disconnect, webhook } = request.body ?? {};
      const admitted = await runs.rerun({
        owner: request.principal.owner,
        thread_id: uuidOr('THREAD_NOT_FOUND', request.params.id),
        user: userFacts(request),
        request_key: requestKeyOf(request, request_key),
        config,
        on_disconnect,
        webhook,
      });
      return answerStarted({ runs, openStream, request, reply, client, admitted });
    },
  });
}

function addStream(app: RestApp, { runs, openStream }: DialectDeps & { openStream: OpenRunStream }): void {
  app.route({
    method: 'GET',
    url: '/threads/:id/messages/stream',
    // A HEAD request would follow the run to its end without sending anything.
    exposeHeadRoute: false,
    schema: {
      summary: 'Follow a run: what came after the cursor, then live',
      description: '410 with the status of the run when its events are no longer kept.',
      params: idParams,
      querystring: streamQuery,
      response: { 200: eventStream, ...refused },
    },
    handler: async (request, reply) => {
      const client = watchClient(reply);
      const { run_id, last_event_id } = request.query;
      const threadId = uuidOr('THREAD_NOT_FOUND', request.params.id);
      const runId = run_id === undefined ? undefined : uuidOr('RUN_NOT_FOUND', run_id);
      const after = cursorOf(request, last_event_id);
      const run = await runs.find(request.principal.owner, threadId, runId);
      reply.header('content-location', streamPath(run.thread_id, run.id));
      return openStream({ reply, client, run, after, startedTheRun: false });
    },
  });
}

/** The answer to a request that started a run: its stream, or 202. The same for a repeated request key. */
async function answerStarted(deps: {
  runs: DialectDeps['runs'];
  openStream: OpenRunStream;
  request: FastifyRequest;
  reply: FastifyReply;
  client: Client;
  admitted: Admitted;
}): Promise<FastifyReply | Readable> {
  const { request, reply, client, admitted } = deps;
  const { run, replayed } = admitted;
  reply.header('content-location', streamPath(run.thread_id, run.id));
  if (wantsStream(request)) {
    return deps.openStream({ reply, client, run, after: BEFORE_START, startedTheRun: !replayed });
  }
  // It asked for no stream, but it left before it could know that its run exists.
  if (client.left && !replayed) await deps.runs.disconnected(run);
  return reply.code(202).header('location', runPath(run.id)).send(acceptedOf(admitted));
}
