/** Server processes over one database, one Redis and one fake model, as behind a load balancer; and what a client says to them. */
import { inject } from 'vitest';
import { createDatabase, type TestDatabase } from './database.ts';
import { type FakeModel, type FakeModelOptions, startFakeModel } from './fake-model.ts';
import { type ServerOptions, startServer, type TestServer } from './server.ts';
import { openSse, type SseStream } from './sse.ts';
import { until } from './until.ts';

export interface Cluster {
  readonly database: TestDatabase;
  readonly model: FakeModel;
  readonly servers: TestServer[];
  /** Starts one more server on the same services. */
  add(options?: ServerOptions): Promise<TestServer>;
  /** Ends everything that `startCluster` began. */
  stop(): Promise<void>;
}

export interface ClusterOptions {
  /** How many servers; 1 by default. */
  size?: number;
  model?: FakeModelOptions;
  /** For every server. */
  server?: ServerOptions;
  /** In place of the shared Redis of the test run; null: the in-process event log. */
  redisUrl?: string | null;
  /** In place of a database of its own. */
  databaseUrl?: string;
}

export async function startCluster(options: ClusterOptions = {}): Promise<Cluster> {
  const database =
    options.databaseUrl === undefined ? await createDatabase() : { url: options.databaseUrl, drop: async () => {} };
  const model = await startFakeModel(options.model);
  const servers: TestServer[] = [];
  const redisUrl = options.redisUrl === undefined ? inject('redisUrl') : options.redisUrl;

  async function add(more: ServerOptions = {}): Promise<TestServer> {
    const server = await startServer({
      ...options.server,
      ...more,
      env: {
        DATABASE_URL: database.url,
        ...(redisUrl === null ? {} : { REDIS_URL: redisUrl }),
        OPENAI_BASE_URL: model.url,
        OPENAI_MODEL: 'fake',
        ...options.server?.env,
        ...more.env,
      },
      config: { ...options.server?.config, ...more.config },
    });
    servers.push(server);
    return server;
  }

  async function stop(): Promise<void> {
    for (const server of servers) {
      server.kill('SIGCONT');
      server.kill('SIGKILL');
    }
    await Promise.all(servers.map((server) => server.exit));
    await model.close();
    await database.drop();
  }

  try {
    await Promise.all(Array.from({ length: options.size ?? 1 }, () => add()));
  } catch (error) {
    await stop();
    throw error;
  }
  return { database, model, servers, add, stop };
}

/** A JSON answer with its status and headers. */
export interface Answer<T> {
  status: number;
  headers: Headers;
  body: T;
}

export async function call<T = Record<string, unknown>>(
  server: Pick<TestServer, 'url'>,
  method: string,
  path: string,
  body?: unknown,
  headers: Record<string, string> = {},
): Promise<Answer<T>> {
  const response = await fetch(`${server.url}${path}`, {
    method,
    headers: { ...(body === undefined ? {} : { 'content-type': 'application/json' }), ...headers },
    ...(body === undefined ? {} : { body: typeof body === 'string' ? body : JSON.stringify(body) }),
  });
  const text = await response.text();
  return { status: response.status, headers: response.headers, body: (text === '' ? null : JSON.parse(text)) as T };
}

export interface Sent {
  thread_id: string;
  turn_id: string;
  run_id: string;
  message_id: string;
  stream_url: string;
}

/** Sends a message and returns at once. @throws when it is not admitted */
export async function send(
  server: Pick<TestServer, 'url'>,
  content: unknown,
  more: Record<string, unknown> = {},
  threadId?: string,
): Promise<Sent> {
  const path = threadId === undefined ? '/api/v1/threads/messages' : `/api/v1/threads/${threadId}/messages`;
  const answer = await call<Sent>(server, 'POST', path, { content, ...more });
  if (answer.status !== 202) throw new Error(`not admitted: ${answer.status} ${JSON.stringify(answer.body)}`);
  return answer.body;
}

/** Sends a message and follows its run on the same response. */
export function sendStreaming(
  server: Pick<TestServer, 'url'>,
  content: unknown,
  more: Record<string, unknown> = {},
  threadId?: string,
): Promise<SseStream> {
  const path = threadId === undefined ? '/api/v1/threads/messages' : `/api/v1/threads/${threadId}/messages`;
  return openSse(`${server.url}${path}`, { method: 'POST', body: { content, ...more } });
}

/** Follows a run; `after` is the id of the last frame seen. */
export function follow(
  server: Pick<TestServer, 'url'>,
  sent: Pick<Sent, 'thread_id' | 'run_id'>,
  after?: string | number,
): Promise<SseStream> {
  const cursor = after === undefined ? '' : `&last_event_id=${after}`;
  return openSse(`${server.url}/api/v1/threads/${sent.thread_id}/messages/stream?run_id=${sent.run_id}${cursor}`);
}

export interface RunBody {
  id: string;
  status: string;
  epoch?: number;
  error: { code: string; message: string; recovery: string } | null;
  usage: { input_tokens: number; output_tokens: number; total_tokens: number } | null;
}

const TERMINAL = new Set(['succeeded', 'interrupted', 'failed', 'cancelled']);

/** Resolves with the run once the ledger says it has ended. */
export function ended(server: Pick<TestServer, 'url'>, runId: string, timeoutMs = 15_000): Promise<RunBody> {
  return until(
    async () => {
      const { body } = await call<RunBody>(server, 'GET', `/api/v1/runs/${runId}`);
      return TERMINAL.has(body.status) ? body : null;
    },
    { timeoutMs, message: `run ${runId} to end` },
  );
}

/** The text a client has put together from message_chunk frames of type text. */
export function textOf(stream: Pick<SseStream, 'frames'>): string {
  return stream.frames
    .filter((frame) => frame.event === 'message_chunk')
    .map((frame) => JSON.parse(frame.data) as { type: string; delta: string })
    .filter((chunk) => chunk.type === 'text')
    .map((chunk) => chunk.delta)
    .join('');
}

/** The frames without times, for comparing what two clients saw. */
export function seen(stream: Pick<SseStream, 'frames'>): { event: string; id: string | undefined; data: string }[] {
  return stream.frames.map(({ event, id, data }) => ({ event, id, data }));
}
