/** Routes of this protocol that are not built yet. They say so; docs/langgraph.md lists them. */
import type { HTTPMethods } from 'fastify';
import { RunledgerError } from '#src/errors.ts';
import type { LangGraphApp } from './route.ts';

const UNBUILT: [method: HTTPMethods, url: string, what: string][] = [
  ['POST', '/threads/:thread_id/commands', 'The event streaming protocol (v2)'],
  ['POST', '/threads/:thread_id/stream/events', 'The event streaming protocol (v2)'],
  ['GET', '/threads/:thread_id/stream/events', 'The event streaming protocol (v2)'],
];

export function addUnbuiltRoutes(app: LangGraphApp): void {
  for (const [method, url, what] of UNBUILT) {
    app.route({
      method,
      url,
      exposeHeadRoute: false,
      handler: async () => {
        throw new RunledgerError('NOT_IMPLEMENTED', `${what}: not available in this version.`);
      },
    });
  }
}
