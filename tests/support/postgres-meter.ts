/** Counts what Postgres answers to the one who is connected through here: statements, rows and bytes. */
import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Socket } from 'node:net';

export interface Reading {
  /** Statements that ended well. */
  statements: number;
  rows: number;
  bytes: number;
}

export interface PostgresMeter {
  /** The same URL with the meter's address. */
  readonly url: string;
  /** What was answered while `work` was done. */
  during(work: () => Promise<unknown>): Promise<Reading>;
  close(): Promise<void>;
}

const HEAD_BYTES = 5;
const DATA_ROW = 'D'.charCodeAt(0);
const COMMAND_COMPLETE = 'C'.charCodeAt(0);

/** Listens on a free loopback port and forwards to the server of `databaseUrl`, without TLS. */
export async function startPostgresMeter(databaseUrl: string): Promise<PostgresMeter> {
  const target = new URL(databaseUrl);
  const counts: Reading = { statements: 0, rows: 0, bytes: 0 };
  const sockets = new Set<Socket>();
  const listener = createServer({ noDelay: true }, (client) => {
    const server = connect({ host: target.hostname, port: Number(target.port), noDelay: true });
    const read = reader(counts);
    server.on('data', read);
    client.pipe(server);
    server.pipe(client);
    for (const [socket, peer] of [
      [client, server],
      [server, client],
    ] as const) {
      sockets.add(socket);
      socket.on('error', () => peer.destroy());
      socket.on('close', () => {
        sockets.delete(socket);
        peer.destroy();
      });
    }
  });
  listener.listen(0, '127.0.0.1');
  await once(listener, 'listening');
  const through = new URL(databaseUrl);
  through.hostname = '127.0.0.1';
  through.port = String((listener.address() as AddressInfo).port);
  return {
    url: through.href,
    async during(work) {
      const before = { ...counts };
      await work();
      return {
        statements: counts.statements - before.statements,
        rows: counts.rows - before.rows,
        bytes: counts.bytes - before.bytes,
      };
    },
    async close() {
      listener.close();
      for (const socket of sockets) socket.destroy();
      await once(listener, 'close');
    },
  };
}

/** Every message of the server is a letter, a length that counts itself, and so many bytes. Bodies are not held. */
function reader(counts: Reading): (chunk: Buffer) => void {
  let head = Buffer.alloc(0);
  let bodyBytes = 0;
  return (chunk) => {
    counts.bytes += chunk.length;
    let at = 0;
    while (at < chunk.length) {
      const skipped = Math.min(bodyBytes, chunk.length - at);
      bodyBytes -= skipped;
      at += skipped;
      const piece = chunk.subarray(at, at + HEAD_BYTES - head.length);
      at += piece.length;
      head = Buffer.concat([head, piece]);
      if (head.length < HEAD_BYTES) continue;
      if (head[0] === DATA_ROW) counts.rows += 1;
      if (head[0] === COMMAND_COMPLETE) counts.statements += 1;
      bodyBytes = head.readUInt32BE(1) - 4;
      head = Buffer.alloc(0);
    }
  };
}
