/** Runs: what is going on, and stopping it. */
import { watchClient } from '#src/http/client.ts';
import type { DialectDeps } from '../dialect.ts';
import { type RestApp, refused } from './route.ts';
import { cancelledOf, cancelView, runOf, runView, statusOf, statusView } from './views.ts';
import { cancelQuery, idParams, uuidOr } from './wire.ts';

export function addRunRoutes(app: RestApp, deps: DialectDeps): void {
  addStatus(app, deps);
  addRead(app, deps);
  addCancel(app, deps);
}

function addStatus(app: RestApp, { runs, threads }: DialectDeps): void {
  app.route({
    method: 'GET',
    url: '/threads/:id/status',
    schema: { summary: 'What the thread is doing now', params: idParams, response: { 200: statusView, ...refused } },
    handler: async (request) => {
      const { owner } = request.principal;
      const thread = await threads.get(owner, uuidOr('THREAD_NOT_FOUND', request.params.id));
      const { latest_run_id: latest } = thread;
      return statusOf(thread.id, latest === null ? null : await runs.get(owner, latest));
    },
  });
}

function addRead(app: RestApp, { runs }: DialectDeps): void {
  app.route({
    method: 'GET',
    url: '/runs/:id',
    schema: { summary: 'Read a run', params: idParams, response: { 200: runView, ...refused } },
    handler: async (request) => {
      const id = uuidOr('RUN_NOT_FOUND', request.params.id);
      return runOf(await runs.get(request.principal.owner, id));
    },
  });
}

function addCancel(app: RestApp, { runs, closing }: DialectDeps): void {
  app.route({
    method: 'POST',
    url: '/threads/:id/cancel',
    schema: {
      summary: 'Stop a run; 200 also when nothing runs or it is stopping already',
      params: idParams,
      querystring: cancelQuery,
      response: { 200: cancelView, ...refused },
    },
    handler: async (request, reply) => {
      const client = watchClient(reply);
      const { run_id, wait } = request.query;
      const result = await runs.cancel(request.principal.owner, uuidOr('THREAD_NOT_FOUND', request.params.id), {
        runId: run_id === undefined ? undefined : uuidOr('RUN_NOT_FOUND', run_id),
        wait: wait ?? false,
        signal: AbortSignal.any([client.signal, closing]),
      });
      return cancelledOf(result);
    },
  });
}
