/** Is the other end still there? Asked before the first await of a handler, answered until the response is over. */
import type { FastifyReply } from 'fastify';

/** The reason of `Client.signal` when the client closed its connection before the response was complete. */
export class ClientLeft extends Error {
  override readonly name = 'ClientLeft';
  constructor() {
    super('the client closed the connection');
  }
}

/** One for all: an abort without a reason makes an exception with a stack, for every response. */
const OVER = new Error('the response is over');

export interface Client {
  /** Aborts when the client leaves (reason: ClientLeft), or by `release`. Never by a response that simply ended. */
  readonly signal: AbortSignal;
  /** True once the connection closed before the response was complete, whoever closed it. */
  readonly left: boolean;
  /** Ends what waits on the signal: the response is over. */
  release(): void;
}

/**
 * Watches the connection of a response. Call it before the first await: a client that left earlier is noticed too.
 */
export function watchClient(reply: Pick<FastifyReply, 'raw'>): Client {
  const controller = new AbortController();
  const { raw } = reply;
  let left = false;
  const onClose = (): void => {
    if (raw.writableFinished) return;
    left = true;
    controller.abort(new ClientLeft());
  };
  if (raw.destroyed) onClose();
  else raw.once('close', onClose);
  return {
    signal: controller.signal,
    get left() {
      return left;
    },
    release: () => controller.abort(OVER),
  };
}
