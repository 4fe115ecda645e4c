/** What code written for LangGraph's own server finds in the process: its logger, and the server itself. */
import type { Logger } from 'pino';

const LOGGER = Symbol.for('langgraph.api.sdk-logger');
const URL_OF_SERVER = Symbol.for('langgraph_api:url');
const FETCH = Symbol.for('langgraph_api:fetch');

const LEVELS = {
  error: 'error',
  warn: 'warn',
  info: 'info',
  http: 'debug',
  verbose: 'debug',
  debug: 'debug',
  silly: 'trace',
} as const;

/** `getLogger()` of the SDK then gives a logger that writes to ours. Before graphs are loaded: they ask at once. */
export function provideLogger(logger: Logger): void {
  const graphs = logger.child({ room: 'graph' });
  const write = (level: keyof typeof LEVELS, message: unknown, extra?: unknown): void => {
    graphs[LEVELS[level] ?? 'info']({ extra }, String(message));
  };
  const methods = Object.keys(LEVELS).map((level) => [
    level,
    (message: unknown, extra?: unknown) => write(level as keyof typeof LEVELS, message, extra),
  ]);
  const home = globalThis as { [LOGGER]?: unknown };
  home[LOGGER] = { ...Object.fromEntries(methods), log: write };
}

/** A client of the SDK that is made without a URL speaks to this server, by `ownFetch`. */
export function provideServer(url: string, ownFetch: typeof fetch): void {
  const home = globalThis as { [URL_OF_SERVER]?: string; [FETCH]?: typeof fetch };
  home[URL_OF_SERVER] = url;
  home[FETCH] = ownFetch;
}
