/** A TCP proxy between a client and a server of a test, to make the network misbehave at a chosen moment. */
import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Socket } from 'node:net';
import { setTimeout as delay } from 'node:timers/promises';

export type ProxyMode =
  | { kind: 'pass' }
  /** Everything arrives this much later, in order. */
  | { kind: 'latency'; ms: number }
  /** A cable pulled: nothing arrives, nobody is told, new connections are accepted and silent. What was sent arrives once the mode changes. */
  | { kind: 'black-hole' }
  /** Present connections are reset at once, new ones as soon as they are made. */
  | { kind: 'reset' }
  /** The server receives and acts; its replies vanish. A connection that lost a reply is reset when the mode changes. */
  | { kind: 'swallow-replies' }
  /** `bytes` more go through in this direction (all connections together), then every connection is reset and new ones too. */
  | { kind: 'cut'; bytes: number; direction: 'to-server' | 'to-client' };

export interface TcpProxy {
  readonly port: number;
  /** The same URL with the proxy's address. */
  through(url: string): string;
  set(mode: ProxyMode): void;
  /** Connections open now. */
  readonly connections: number;
  /** Bytes delivered so far, all connections. */
  readonly delivered: { toServer: number; toClient: number };
  /** How often a reply of the server has vanished. */
  readonly lostReplies: number;
  /** Resets every present connection; new ones follow the mode. */
  resetAll(): void;
  close(): Promise<void>;
}

interface Pair {
  client: Socket;
  server: Socket;
  lostReply: boolean;
}

type Direction = 'to-server' | 'to-client';

/** Listens on a free loopback port and forwards to `target`. */
export async function startTcpProxy(target: { host?: string; port: number }): Promise<TcpProxy> {
  let mode: ProxyMode = { kind: 'pass' };
  let changed = Promise.withResolvers<void>();
  let budget = 0;
  const pairs = new Set<Pair>();
  const delivered = { toServer: 0, toClient: 0 };
  let lostReplies = 0;

  function reset(pair: Pair): void {
    pairs.delete(pair);
    pair.client.resetAndDestroy();
    pair.server.resetAndDestroy();
  }
  function resetAll(): void {
    for (const pair of [...pairs]) reset(pair);
  }

  /** Decides what of one chunk arrives, and waits until it does. Returns null when nothing does. */
  async function pass(pair: Pair, direction: Direction, chunk: Buffer, receivedMs: number): Promise<Buffer | null> {
    while (mode.kind === 'black-hole') await changed.promise;
    if (mode.kind === 'latency') await delay(Math.max(0, receivedMs + mode.ms - performance.now()));
    if (mode.kind === 'swallow-replies' && direction === 'to-client') {
      pair.lostReply = true;
      lostReplies += 1;
      return null;
    }
    if (mode.kind === 'cut' && direction === mode.direction) {
      budget -= chunk.length;
      return budget >= 0 ? chunk : chunk.subarray(0, Math.max(0, chunk.length + budget));
    }
    return chunk;
  }

  async function deliver(pair: Pair, direction: Direction, chunk: Buffer, receivedMs: number): Promise<void> {
    const to = direction === 'to-server' ? pair.server : pair.client;
    const arriving = await pass(pair, direction, chunk, receivedMs);
    if (arriving !== null && arriving.length > 0 && !to.destroyed) {
      delivered[direction === 'to-server' ? 'toServer' : 'toClient'] += arriving.length;
      if (!to.write(arriving)) await Promise.race([once(to, 'drain'), once(to, 'close')]);
    }
    if (mode.kind === 'cut' && budget <= 0) resetAfterWrite(to);
  }

  /** Reads ahead (so that a delay is one delay, not one per chunk), delivers in order, and holds at most 1 MB. */
  async function pump(pair: Pair, direction: Direction): Promise<void> {
    const [from, to] = direction === 'to-server' ? [pair.client, pair.server] : [pair.server, pair.client];
    let queue = Promise.resolve();
    let heldBytes = 0;
    for await (const chunk of from as AsyncIterable<Buffer>) {
      const receivedMs = performance.now();
      heldBytes += chunk.length;
      queue = queue
        .then(() => deliver(pair, direction, chunk, receivedMs))
        .then(() => {
          heldBytes -= chunk.length;
        });
      queue.catch(() => reset(pair));
      if (heldBytes > 1024 ** 2) await queue;
    }
    await queue;
    to.end();
  }

  /** The last bytes of a cut must be delivered before the reset, which would overtake them. */
  function resetAfterWrite(last: Socket): void {
    last.write('', () => resetAll());
  }

  const listener = createServer({ noDelay: true }, (client) => {
    if (mode.kind === 'reset' || (mode.kind === 'cut' && budget <= 0)) {
      client.on('error', () => undefined);
      client.resetAndDestroy();
      return;
    }
    const server = connect({ host: target.host ?? '127.0.0.1', port: target.port, noDelay: true });
    const pair: Pair = { client, server, lostReply: false };
    pairs.add(pair);
    for (const socket of [client, server]) {
      // An error on one side is the other side's reset; the tests look at the ends, not at us.
      socket.on('error', () => reset(pair));
      socket.on('close', () => pairs.delete(pair));
    }
    pump(pair, 'to-server').catch(() => reset(pair));
    pump(pair, 'to-client').catch(() => reset(pair));
  });
  listener.listen(0, '127.0.0.1');
  await once(listener, 'listening');
  const { port } = listener.address() as AddressInfo;

  return {
    port,
    through(url) {
      const proxied = new URL(url);
      proxied.hostname = '127.0.0.1';
      proxied.port = String(port);
      return proxied.href;
    },
    set(next) {
      mode = next;
      if (next.kind === 'cut') budget = next.bytes;
      if (next.kind === 'reset') resetAll();
      if (next.kind !== 'swallow-replies') for (const pair of [...pairs]) if (pair.lostReply) reset(pair);
      changed.resolve();
      changed = Promise.withResolvers<void>();
    },
    get connections() {
      return pairs.size;
    },
    delivered,
    get lostReplies() {
      return lostReplies;
    },
    resetAll,
    async close() {
      listener.close();
      resetAll();
      mode = { kind: 'reset' };
      changed.resolve();
      await once(listener, 'close');
    },
  };
}
