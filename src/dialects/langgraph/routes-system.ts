/** Whether the server is there, and what it can do. */
import { authHook } from '#src/http/auth.ts';
import { type LangGraphApp, type LangGraphDeps, parsed } from './route.ts';
import { truncateBody } from './wire.ts';

export function addSystemRoutes(app: LangGraphApp, deps: LangGraphDeps): void {
  if (deps.disabled?.meta !== true) addMeta(app, deps);
  addTruncate(app, deps);
}

function addMeta(app: LangGraphApp, deps: LangGraphDeps): void {
  app.get('/ok', { onRequest: authHook(deps.authenticate) }, async () => ({ ok: true }));

  // For everybody: clients ask before they have credentials.
  app.get('/info', async () => ({
    version: deps.version,
    context: 'js',
    flags: { assistants: true, crons: true, langsmith: false, langsmith_tracing_replicas: false },
  }));
}

function addTruncate(app: LangGraphApp, { truncate }: LangGraphDeps): void {
  if (truncate === null) return;
  // Test suites of others begin with it. Without authentication: it is for a server that holds nothing of worth.
  app.post('/internal/truncate', async (request) => {
    await truncate(parsed(truncateBody, request.body));
    return { ok: true };
  });
}
