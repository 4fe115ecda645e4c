/** Reads the config, starts the app, says where it is, and ends it on SIGTERM or SIGINT; a second signal exits at once. */
import { readFileSync } from 'node:fs';
import { parseArgs } from 'node:util';
import closeWithGrace from 'close-with-grace';
import { pino } from 'pino';
import { type App, startApp } from './app.ts';
import { type Config, ConfigError, loadConfig } from './config.ts';
import { readLangGraphJson } from './langgraph-json.ts';
import { startEmbeddedPostgres } from './postgres/embedded.ts';
import { migrate, pendingMigrations } from './postgres/migrate.ts';

const USAGE =
  'usage: node src/main.ts [--config config.yaml] [--langgraph-json langgraph.json] [--port N] [--host H] [--migrate] [--test-mode]';
/** Closing may take the drain and a little more before the process is ended anyway. */
const CLOSE_GRACE_MS = 20_000;

/** @throws ConfigError */
function readArgs() {
  const values = parseFlags();
  const port = values.port === undefined ? undefined : Number(values.port);
  if (port !== undefined && !(Number.isInteger(port) && port >= 0 && port <= 65_535)) {
    throw new ConfigError('--port: must be an integer from 0 to 65535');
  }
  const json = values['langgraph-json'];
  return { file: values.config, json, port, host: values.host, migrate: values.migrate, testMode: values['test-mode'] };
}

function parseFlags() {
  try {
    return parseArgs({
      options: {
        config: { type: 'string' },
        'langgraph-json': { type: 'string' },
        port: { type: 'string' },
        host: { type: 'string' },
        migrate: { type: 'boolean', default: false },
        'test-mode': { type: 'boolean', default: false },
      },
    }).values;
  } catch (error) {
    throw new ConfigError(`${(error as Error).message}\n${USAGE}`);
  }
}

function packageVersion(): string {
  const text = readFileSync(new URL('../package.json', import.meta.url), 'utf8');
  return (JSON.parse(text) as { version: string }).version;
}

async function main(): Promise<void> {
  const args = readArgs();
  const langgraphJson = args.json === undefined ? undefined : readLangGraphJson(args.json);
  // The environment of the process wins, as over a .env file. In it before the graphs are loaded: they read it, too.
  for (const [name, value] of Object.entries(langgraphJson?.env ?? {})) process.env[name] ??= value;
  const config = loadConfig({
    file: args.file ?? 'config.yaml',
    required: args.file !== undefined,
    env: process.env,
    flags: { port: args.port, host: args.host, testMode: args.testMode },
    langgraphJson,
  });
  const logger = pino({ level: config.logLevel });
  const embedded =
    config.postgres.url === null ? await startEmbeddedPostgres({ dataDir: config.postgres.dataDir, logger }) : null;
  const databaseUrl = config.postgres.url ?? embedded?.url;
  if (databaseUrl === undefined) throw new ConfigError('no database');
  let app: App | null = null;
  closeWithGrace({ delay: config.runs.drainTimeoutMs + CLOSE_GRACE_MS, logger }, async ({ signal, err }) => {
    if (err !== undefined) logger.fatal({ err }, 'ended by an error');
    logger.info({ signal }, 'closing');
    await app?.close();
    await embedded?.stop();
  });
  try {
    if (embedded !== null || args.migrate) {
      const applied = await migrate({ databaseUrl, logger });
      if (applied.length > 0) logger.info({ applied }, 'migrations applied');
    }
    await refuseUnmigrated(databaseUrl);
    app = await startApp(config, databaseUrl, logger, packageVersion());
  } catch (error) {
    await embedded?.stop();
    throw error;
  }
  announce(config, app, embedded === null ? 'given by DATABASE_URL' : `embedded, in ${embedded.directory}`);
  for (const warning of langgraphJson?.warnings ?? []) console.log(`  WARNING: ${warning}`);
}

async function refuseUnmigrated(databaseUrl: string): Promise<void> {
  const missing = await pendingMigrations(databaseUrl);
  if (missing.length === 0) return;
  throw new ConfigError(
    `the database lacks these migrations: ${missing.join(', ')}. Start with --migrate, or run: npm run migrate`,
  );
}

/** The start line: where it listens, and which of each service is in use. */
function announce(config: Config, app: App, postgres: string): void {
  const demo = config.model.apiKey === null && config.model.baseUrl === null;
  const lines = [
    `Runledger ${app.url === null ? 'works without HTTP' : `is listening on ${app.url}`}`,
    `  Postgres   ${postgres}`,
    `  event log  ${config.redisUrl === null ? 'in this process (set REDIS_URL to run several)' : 'Redis'}`,
    `  model      ${demo ? 'the scripted demo model (set OPENAI_API_KEY or OPENAI_BASE_URL for a real one)' : config.model.name}`,
    `  roles      ${config.roles.join(', ')}   auth  ${config.auth.mode}   graphs  ${Object.keys(config.graphs).join(', ')}`,
  ];
  if (app.evictionPolicy !== null) {
    lines.push(
      `  WARNING: Redis' maxmemory-policy is ${app.evictionPolicy}, which can drop event streams; set noeviction`,
    );
  }
  if (config.testMode) lines.push('  WARNING: test mode: anybody who can reach the server can delete everything in it');
  if (app.url !== null) {
    const user =
      config.auth.mode === 'dev'
        ? ` -H 'X-Dev-User: me'`
        : config.auth.mode === 'jwt'
          ? ` -H "Authorization: Bearer $TOKEN"`
          : '';
    lines.push(
      'Try it:',
      `  curl -N${user} -H 'Content-Type: application/json' -H 'Accept: text/event-stream' ${app.url}/api/v1/threads/messages -d '{"content":"What time is it?"}'`,
    );
  }
  console.log(lines.join('\n'));
}

try {
  await main();
} catch (error) {
  if (error instanceof ConfigError || isOurs(error)) console.error(`runledger: ${(error as Error).message}`);
  else console.error(error);
  process.exit(1);
}

/** Errors whose message was written for the person who starts the server. */
function isOurs(error: unknown): boolean {
  return (
    error instanceof Error &&
    [
      'GraphLoadError',
      'LogKindConflict',
      'ListenRefused',
      'EmbeddedPostgresError',
      'AuthModuleError',
      'UserAppError',
    ].includes(error.name)
  );
}
