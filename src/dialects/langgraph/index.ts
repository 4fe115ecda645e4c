/** The LangGraph Platform dialect: what LangGraph's own clients speak, at the root of the server. */
import type { FastifyPluginAsync } from 'fastify';
import { authHook } from '#src/http/auth.ts';
import { accessHook } from './access.ts';
import { renderRefusal } from './errors.ts';
import type { LangGraphDeps } from './route.ts';
import { addAssistantRoutes } from './routes-assistants.ts';
import { addCronRoutes } from './routes-crons.ts';
import { addJoinRoutes } from './routes-join.ts';
import { addRunRoutes } from './routes-runs.ts';
import { addStateRoutes } from './routes-state.ts';
import { addStoreRoutes } from './routes-store.ts';
import { addSystemRoutes } from './routes-system.ts';
import { addThreadStreamRoute } from './routes-thread-stream.ts';
import { addThreadRoutes } from './routes-threads.ts';
import { addUiRoutes } from './routes-ui.ts';
import { addUnbuiltRoutes } from './routes-unbuilt.ts';
import { createStreams } from './streams.ts';
import { createWait } from './waiting.ts';

/** None is disabled. */
const ALL = { assistants: false, threads: false, runs: false, store: false };

/** To be mounted without a prefix. */
export function langgraphDialect(deps: LangGraphDeps): FastifyPluginAsync {
  return async (app) => {
    app.setErrorHandler(deps.errorHandler(renderRefusal));
    addSystemRoutes(app, deps);
    addUiRoutes(app, deps);
    await app.register(async (scope) => {
      scope.addHook('onRequest', authHook(deps.authenticate));
      scope.addHook('preHandler', accessHook(deps));
      const parts = { openStream: createStreams(deps), wait: createWait(deps) };
      const { assistants, threads, runs, store } = deps.disabled ?? ALL;
      if (!assistants) addAssistantRoutes(scope, deps);
      if (!threads) {
        addThreadRoutes(scope, deps);
        addStateRoutes(scope, deps);
        addThreadStreamRoute(scope, deps);
      }
      if (!runs) {
        addRunRoutes(scope, deps, parts);
        addJoinRoutes(scope, deps, parts);
        addCronRoutes(scope, deps);
        addUnbuiltRoutes(scope);
      }
      if (!store) addStoreRoutes(scope, deps);
    });
  };
}
