/** The REST dialect: Runledger's own API, under /api/v1. */
import type { FastifyPluginAsync } from 'fastify';
import type { ZodTypeProvider } from 'fastify-type-provider-zod';
import { authHook } from '#src/http/auth.ts';
import type { DialectDeps } from '../dialect.ts';
import { createRunStream } from '../stream.ts';
import { accessHook } from './access.ts';
import { renderRefusal } from './errors.ts';
import { openingOf, project, RESYNC } from './project.ts';
import type { RestApp } from './route.ts';
import { addMessageRoutes } from './routes-messages.ts';
import { addRunRoutes } from './routes-runs.ts';
import { addThreadRoutes } from './routes-threads.ts';
import { addWebhookRoutes } from './routes-webhooks.ts';

/** To be mounted with the prefix REST_PREFIX (links.ts), after openapi.ts. */
export function restDialect(deps: DialectDeps): FastifyPluginAsync {
  return async (scope) => {
    const app: RestApp = scope.withTypeProvider<ZodTypeProvider>();
    app.decorateRequest('allowed', null);
    app.addHook('onRequest', authHook(deps.authenticate));
    app.addHook('preHandler', accessHook(deps));
    app.setErrorHandler(deps.errorHandler(renderRefusal));
    const openStream = createRunStream({ ...deps, projector: { project, opening: openingOf, resync: RESYNC } });
    addThreadRoutes(app, deps);
    addMessageRoutes(app, { ...deps, openStream });
    addRunRoutes(app, deps);
    addWebhookRoutes(app, deps);
  };
}
