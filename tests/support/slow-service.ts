/** What a tool of a test calls: an HTTP server that answers nothing until it is told to, and sees who gives up waiting. */
import { once } from 'node:events';
import { createServer, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';

export interface ServiceCall {
  /** The path it was called with: tests name their calls by it. */
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
    const call: ServiceCall = { path: request.url ?? '', leftAt: null, answered: false };
    calls.push(call);
    response.on('close', () => {
      if (!call.answered) call.leftAt = performance.timeOrigin + performance.now();
    });
    if (released.has(call.path)) answer(call, response);
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
    async close() {
      server.closeAllConnections();
      server.close();
      await once(server, 'close');
    },
  };
}
