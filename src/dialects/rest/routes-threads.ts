/** Threads: what a person's list of conversations needs. */
import { z } from 'zod';
import { RunledgerError } from '#src/errors.ts';
import { watchClient } from '#src/http/client.ts';
import type { DialectDeps } from '../dialect.ts';
import { threadPath } from './links.ts';
import { type RestApp, refused } from './route.ts';
import { threadListView, threadOf, threadView, turnListView, turnOf } from './views.ts';
import { idParams, threadCreateBody, threadDeleteQuery, threadListQuery, threadUpdateBody, uuidOr } from './wire.ts';

export function addThreadRoutes(app: RestApp, deps: DialectDeps): void {
  addCreate(app, deps);
  addList(app, deps);
  addReadAndChange(app, deps);
  addDelete(app, deps);
  addTurns(app, deps);
}

function addCreate(app: RestApp, { threads, graphs }: DialectDeps): void {
  app.route({
    method: 'POST',
    url: '/threads',
    schema: { summary: 'Open a thread', body: threadCreateBody, response: { 201: threadView, ...refused } },
    handler: async (request, reply) => {
      const { title, graph } = request.body;
      const metadata = request.allowed?.metadata ?? request.body.metadata;
      if (graph !== undefined && !graphs.has(graph)) {
        throw new RunledgerError('GRAPH_NOT_FOUND', 'This server has no such graph.', { path: 'graph' });
      }
      const thread = await threads.create(request.principal.owner, { title, graph_id: graph, metadata });
      return reply.code(201).header('location', threadPath(thread.id)).send(threadOf(thread));
    },
  });
}

function addList(app: RestApp, { threads }: DialectDeps): void {
  app.route({
    method: 'GET',
    url: '/threads',
    schema: {
      summary: 'List threads, the most recently active first',
      querystring: threadListQuery,
      response: { 200: threadListView, ...refused },
    },
    handler: async (request) => {
      const page = await threads.list(request.principal.owner, { ...request.query, within: request.allowed?.within });
      return { threads: page.threads.map(threadOf), next_cursor: page.next_cursor };
    },
  });
}

function addReadAndChange(app: RestApp, { threads }: DialectDeps): void {
  app.route({
    method: 'GET',
    url: '/threads/:id',
    schema: { summary: 'Read a thread', params: idParams, response: { 200: threadView, ...refused } },
    handler: async (request) => {
      const id = uuidOr('THREAD_NOT_FOUND', request.params.id);
      return threadOf(await threads.get(request.principal.owner, id));
    },
  });

  app.route({
    method: 'PATCH',
    url: '/threads/:id',
    schema: {
      summary: 'Change a thread; fields left out stay as they are',
      params: idParams,
      body: threadUpdateBody,
      response: { 200: threadView, ...refused },
    },
    handler: async (request) => {
      const id = uuidOr('THREAD_NOT_FOUND', request.params.id);
      // By its metadata an Auth module tells whose a thread is: what it has put there stays.
      const fields = request.allowed === null ? request.body : { ...request.body, adds_metadata: true };
      return threadOf(await threads.update(request.principal.owner, id, fields));
    },
  });
}

function addDelete(app: RestApp, { runs, closing }: DialectDeps): void {
  app.route({
    method: 'DELETE',
    url: '/threads/:id',
    schema: {
      summary: 'Delete a thread and everything in it',
      params: idParams,
      querystring: threadDeleteQuery,
      response: { 204: z.undefined(), ...refused },
    },
    handler: async (request, reply) => {
      const client = watchClient(reply);
      const id = uuidOr('THREAD_NOT_FOUND', request.params.id);
      await runs.deleteThread(request.principal.owner, id, {
        force: request.query.force ?? false,
        signal: AbortSignal.any([client.signal, closing]),
      });
      return reply.code(204).send();
    },
  });
}

function addTurns(app: RestApp, { threads }: DialectDeps): void {
  app.route({
    method: 'GET',
    url: '/threads/:id/turns',
    schema: {
      summary: 'Questions and answers, oldest first',
      params: idParams,
      response: { 200: turnListView, ...refused },
    },
    handler: async (request) => {
      const id = uuidOr('THREAD_NOT_FOUND', request.params.id);
      return { turns: (await threads.turns(request.principal.owner, id)).map(turnOf) };
    },
  });
}
