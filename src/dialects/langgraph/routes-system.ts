/** Whether the server is there, and what it can do. */
import { authHook } from '#src/http/auth.ts';
import type { LangGraphApp, LangGraphDeps } from './route.ts';

export function addSystemRoutes(app: LangGraphApp, deps: LangGraphDeps): void {
  app.get('/ok', { onRequest: authHook(deps.authenticate) }, async () => ({ ok: true }));

  // For everybody: clients ask before they have credentials.
  app.get('/info', async () => ({
    version: deps.version,
    context: 'js',
    flags: { assistants: true, crons: false, langsmith: false, langsmith_tracing_replicas: false },
  }));
}
