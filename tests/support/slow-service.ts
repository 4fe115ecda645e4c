/**
 * What a tool of a test calls: an HTTP server that answers nothing until it is told to, and sees who gives up waiting. A
 * call with `?ms=n` is answered after that time. It keeps every call, so it also counts how often something was done.
 */
import { once } from 'node:events';
import { createServer, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';

export interface ServiceCall {
  /** The path it was called with, without the query: tests name their calls by it. */
  path: string;
  /** When the caller closed its connection before it had an answer; milliseconds since the Unix epoch. */
  leftAt: number | null;
  answered: boolean;
}

export interface SlowService {
  readonly url: string;
  readonly calls: ServiceCall[];
  /** Answers every call with this path, those to come too. */
  release(path: string): void;
  /** How often it was called with this path. */
  times(path: string): number;
  close(): Promise<void>;
}

export async function startSlowService(): Promise<SlowService> {
  const calls: ServiceCall[] = [];
  const waiting = new Map<ServiceCall, ServerResponse>();
  const released = new Set<string>();

  function answer(call: ServiceCall, response: ServerResponse): void {
    call.answered = true;
    waiting.delete(call);
    response.end('done');
  }
  const server = createServer((request, response) => {
    const url = new URL(request.url ?? '/', 'http://localhost');
    const ms = url.searchParams.get('ms');
    const call: ServiceCall = { path: url.pathname, leftAt: null, answered: false };
    calls.push(call);
    response.on('close', () => {
      if (!call.answered) call.leftAt = performance.timeOrigin + performance.now();
    });
    if (released.has(call.path)) answer(call, response);
    else if (ms !== null) setTimeout(() => answer(call, response), Number(ms));
    else waiting.set(call, response);
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    calls,
    release(path) {
      released.add(path);
      for (const [call, response] of waiting) if (call.path === path) answer(call, response);
    },
    times: (path) => calls.filter((call) => call.path === path).length,
    async close() {
      server.closeAllConnections();
      server.close();
      await once(server, 'close');
    },
  };
}
