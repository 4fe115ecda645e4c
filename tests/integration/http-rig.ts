/** An HTTP server of ours on a free port, for the tests of this folder that begin with http-. */
import { connect, type Socket } from 'node:net';
import type { FastifyInstance } from 'fastify';
import { pino } from 'pino';
import { afterEach } from 'vitest';
import { renderRefusal } from '#src/dialects/rest/errors.ts';
import { createMetrics, type Metrics } from '#src/http/metrics.ts';
import { createHttpServer, type HttpOptions, type HttpServer } from '#src/http/server.ts';

export interface Rig extends HttpServer {
  url: string;
  port: number;
  metrics: Metrics;
  /** Everything the server logged, one parsed line each. */
  logs: LogLine[];
}

export interface LogLine {
  level: number;
  msg: string;
  [field: string]: unknown;
}

const cleanUp: (() => unknown)[] = [];
afterEach(async () => {
  for (const step of cleanUp.splice(0).reverse()) await step();
});

/** Runs after the test, the last registered first. */
export function later(step: () => unknown): void {
  cleanUp.push(step);
}

/** @param mount adds the routes of the test; called before the server listens */
export async function startRig(
  options: Partial<HttpOptions>,
  mount: (server: HttpServer & { metrics: Metrics; logger: pino.Logger }) => unknown,
): Promise<Rig> {
  const logs: LogLine[] = [];
  const logger = pino({ level: 'debug' }, { write: (line: string) => logs.push(JSON.parse(line) as LogLine) });
  const metrics = createMetrics({ logger });
  const server = await createHttpServer({
    options: {
      bodyLimitBytes: 1024 * 1024,
      sseKeepaliveMs: 5000,
      streamWriteTimeoutMs: 60_000,
      cors: { origins: [], credentials: false },
      ...options,
    },
    logger,
    metrics,
    renderRefusal,
  });
  await mount({ ...server, metrics, logger });
  const url = await listen(server.app);
  later(() => server.app.close());
  return { ...server, metrics, logs, url, port: Number(new URL(url).port) };
}

function listen(app: FastifyInstance): Promise<string> {
  return app.listen({ host: '127.0.0.1', port: 0 });
}

/** A connection that is read only when the test says so, and cut when the test is over. */
export async function rawSocket(port: number, request: string): Promise<Socket> {
  const socket = connect({ port, host: '127.0.0.1' });
  later(() => socket.destroy());
  socket.on('error', () => undefined);
  await new Promise((resolve) => socket.once('connect', resolve));
  socket.write(request);
  return socket;
}

/** `GET path` as a browser page of `origin` would send it. */
export function getRequest(path: string, headers: string[] = []): string {
  return [`GET ${path} HTTP/1.1`, 'Host: test', ...headers, '', ''].join('\r\n');
}

/** A source of items that the test feeds by hand, and that ends when its signal aborts. Each item goes to one reader. */
export function createFeed<T>() {
  const waiting: T[] = [];
  const sleepers = new Set<() => void>();
  let over = false;
  function wake(): void {
    for (const resolve of sleepers) resolve();
    sleepers.clear();
  }
  const feed = {
    taken: 0,
    started: 0,
    ended: 0,
    push(...items: T[]) {
      waiting.push(...items);
      wake();
    },
    end() {
      over = true;
      wake();
    },
    async *items(signal: AbortSignal): AsyncGenerator<T, void, void> {
      feed.started += 1;
      signal.addEventListener('abort', wake);
      try {
        while (!signal.aborted) {
          const item = waiting.shift();
          if (item !== undefined) {
            feed.taken += 1;
            yield item;
          } else if (over) {
            return;
          } else {
            await new Promise<void>((resolve) => {
              sleepers.add(resolve);
            });
          }
        }
      } finally {
        feed.ended += 1;
      }
    },
  };
  return feed;
}
