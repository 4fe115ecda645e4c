/** How the server closes: new requests are refused, streams end, and no connection can hold it up. */
import type { Socket } from 'node:net';
import type { FastifyInstance } from 'fastify';
import { RunledgerError } from '#src/errors.ts';
import type { Sse } from './sse.ts';

/** A request that is still being received or answered after so long, in milliseconds, is cut off. */
const CLOSE_LIMIT_MS = 5_000;

/**
 * Adds the hooks that make `app.close()` end in time. Returns a signal that aborts when closing begins, with the refusal
 * that every later or waiting request gets as its reason.
 */
export function registerShutdown(app: FastifyInstance, sse: Sse): AbortSignal {
  const closing = new AbortController();
  // Browsers and HTTP clients open connections ahead of need. To Node one without a request is not idle, so it would hold
  // up the close until the headers time out.
  const unused = new Set<Socket>();
  let limit: NodeJS.Timeout | undefined;

  app.server.on('connection', (socket: Socket) => {
    unused.add(socket);
    socket.once('close', () => unused.delete(socket));
  });
  app.server.on('request', ({ socket }: { socket: Socket }) => unused.delete(socket));

  app.addHook('onRequest', async () => {
    if (closing.signal.aborted) throw closing.signal.reason;
  });
  app.addHook('preClose', async () => {
    closing.abort(new RunledgerError('UNAVAILABLE', 'The server is closing.'));
    limit = setTimeout(() => app.server.closeAllConnections(), CLOSE_LIMIT_MS);
    await sse.close();
    for (const socket of unused) socket.destroy();
  });
  app.addHook('onClose', async () => clearTimeout(limit));
  return closing.signal;
}
