/** Writes docs/openapi.json, the description of the REST API, from the routes' schemas. `npm run openapi`. */
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { dirname } from 'node:path';
import { fileURLToPath } from 'node:url';
import { pino } from 'pino';
import type { DialectDeps } from '#src/dialects/dialect.ts';
import { renderRefusal } from '#src/dialects/rest/errors.ts';
import { restDialect } from '#src/dialects/rest/index.ts';
import { REST_PREFIX } from '#src/dialects/rest/links.ts';
import { createMetrics } from '#src/http/metrics.ts';
import { registerOpenapi } from '#src/http/openapi.ts';
import { createHttpServer } from '#src/http/server.ts';

const FILE = fileURLToPath(new URL('../docs/openapi.json', import.meta.url));
const PACKAGE = fileURLToPath(new URL('../package.json', import.meta.url));

/** The document as text, as it is in the file. Builds the server's routes and never calls one. */
export async function openapiDocument(): Promise<string> {
  const logger = pino({ level: 'silent' });
  const { version } = JSON.parse(readFileSync(PACKAGE, 'utf8')) as { version: string };
  const server = await createHttpServer({
    options: {
      bodyLimitBytes: 1,
      sseKeepaliveMs: 1,
      streamWriteTimeoutMs: 1,
      cors: { origins: [], credentials: false },
    },
    logger,
    metrics: createMetrics({ logger }),
    renderRefusal,
  });
  await registerOpenapi(server.app, { prefix: REST_PREFIX, version });
  const noCore = { runs: {}, threads: {}, graphs: {}, authenticate: {} } as Pick<
    DialectDeps,
    'runs' | 'threads' | 'graphs' | 'authenticate'
  >;
  await server.app.register(restDialect({ ...noCore, ...server, logger }), { prefix: REST_PREFIX });
  await server.app.ready();
  const document = server.app.swagger();
  await server.app.close();
  return `${JSON.stringify(document, null, 2)}\n`;
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  mkdirSync(dirname(FILE), { recursive: true });
  writeFileSync(FILE, await openapiDocument());
  console.log('docs/openapi.json written');
}
