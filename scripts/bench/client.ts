/** A client of the server that costs little: it reads event streams as bytes and keeps what the bench needs of them. */
import { Agent, type IncomingMessage, request } from 'node:http';
import { createStampReader } from './stamps.ts';

export interface Streamed {
  status: number;
  threadId: string;
  /** To the first byte, to the first frame with an event, to the end of the response; ms from sending the request. */
  headMs: number;
  firstTokenMs: number;
  totalMs: number;
  /** The whole body, when asked for. */
  body: string;
  bytes: number;
  delaysMs: number[];
}

export interface Client {
  /** Sends a message in a new thread, or in `threadId`, and reads its run to the end. @throws when it did not succeed */
  send(message: Message): Promise<Streamed>;
  /** Starts a run and does not follow it. */
  start(message: Message): Promise<{ threadId: string; runId: string; streamPath: string }>;
  /** Follows a run. `keep: false` counts bytes only. `onPiece` sees them as they come. */
  follow(path: string, options: FollowOptions): Promise<Streamed>;
  json<T>(method: string, path: string, body?: unknown): Promise<T>;
  close(): void;
}

export interface FollowOptions {
  keep: boolean;
  onHead?: () => void;
  onPiece?: (piece: Buffer) => void;
}

export interface Message {
  graph: string;
  content: string;
  configurable?: Record<string, unknown>;
  threadId?: string;
}

export function createClient(baseUrl: string): Client {
  const agent = new Agent({ keepAlive: true, maxSockets: 2_000 });

  function exchange(method: string, path: string, body: unknown, accept: string): Promise<IncomingMessage> {
    return new Promise((resolve, reject) => {
      const headers = { accept, ...(body === undefined ? {} : { 'content-type': 'application/json' }) };
      const sent = request(`${baseUrl}${path}`, { method, agent, headers }, resolve);
      sent.on('error', reject);
      sent.end(body === undefined ? undefined : JSON.stringify(body));
    });
  }

  async function stream(method: string, path: string, body: unknown, options: FollowOptions) {
    const startMs = performance.now();
    const response = await exchange(method, path, body, 'text/event-stream');
    const streamed: Streamed = {
      status: response.statusCode ?? 0,
      threadId: /threads\/([\w-]+)\//.exec(response.headers['content-location'] ?? '')?.[1] ?? '',
      headMs: 0,
      firstTokenMs: 0,
      totalMs: 0,
      body: '',
      bytes: 0,
      delaysMs: [],
    };
    const stamps = createStampReader();
    const pieces: Buffer[] = [];
    response.on('data', (piece: Buffer) => {
      if (streamed.headMs === 0) {
        streamed.headMs = performance.now() - startMs;
        options.onHead?.();
      }
      streamed.bytes += piece.length;
      options.onPiece?.(piece);
      if (!options.keep) return;
      if (streamed.firstTokenMs === 0 && piece.includes('message_chunk')) {
        streamed.firstTokenMs = performance.now() - startMs;
      }
      stamps.read(piece.toString('latin1'));
      pieces.push(piece);
    });
    await new Promise((resolve, reject) => response.on('end', resolve).on('error', reject).on('aborted', reject));
    streamed.totalMs = performance.now() - startMs;
    streamed.body = Buffer.concat(pieces).toString('utf8');
    streamed.delaysMs = stamps.delaysMs;
    return streamed;
  }

  async function json<T>(method: string, path: string, body?: unknown): Promise<T> {
    const response = await exchange(method, path, body, 'application/json');
    let text = '';
    for await (const piece of response.setEncoding('utf8')) text += piece;
    if ((response.statusCode ?? 0) >= 300) throw new Error(`${method} ${path}: ${response.statusCode} ${text}`);
    return JSON.parse(text) as T;
  }

  return {
    json,
    async send(message) {
      const streamed = await stream('POST', pathOf(message), bodyOf(message), { keep: true });
      if (streamed.status !== 200 || !streamed.body.includes('"status":"succeeded"')) {
        throw new Error(`a run did not succeed: ${streamed.status} ${streamed.body.slice(-500)}`);
      }
      return streamed;
    },
    async start(message) {
      const accepted = await json<{ thread_id: string; run_id: string; stream_url: string }>(
        'POST',
        pathOf(message),
        bodyOf(message),
      );
      return { threadId: accepted.thread_id, runId: accepted.run_id, streamPath: accepted.stream_url };
    },
    follow: (path, options) => stream('GET', path, undefined, options),
    close: () => agent.destroy(),
  };
}

function pathOf({ threadId }: Message): string {
  return threadId === undefined ? '/api/v1/threads/messages' : `/api/v1/threads/${threadId}/messages`;
}

function bodyOf({ content, graph, configurable }: Message): object {
  return { content, graph, ...(configurable === undefined ? {} : { config: { configurable } }) };
}

export function tokensIn(body: string): number {
  return body.split('token ').length - 1;
}

export function framesIn(body: string): number {
  return body.split('\n\n').length - 1;
}
