/** The tests' end of the connection to each preload: arms faults in a process that runs already. */
import { once } from 'node:events';
import { type AddressInfo, createServer, type Socket } from 'node:net';
import { createInterface } from 'node:readline';
import { until } from '#tests/support/until.ts';
import type { Fault } from './fault-points.ts';

export interface Control {
  readonly port: number;
  /** Arms the process, in place of what the group had armed; resolves when it says so. @throws when it says nothing */
  arm(pid: number, faults: Fault[], group: string): Promise<void>;
  close(): Promise<void>;
}

interface Connection {
  socket: Socket;
  acknowledged: number;
}

export async function startControl(): Promise<Control> {
  const connections = new Map<number, Connection>();
  const server = createServer((socket) => {
    let own: Connection | null = null;
    socket.on('error', () => undefined);
    const lines = createInterface({ input: socket });
    // It passes on the errors of its input: a process that is killed may reset the connection.
    lines.on('error', () => undefined);
    lines.on('line', (line) => {
      if (own === null) {
        own = { socket, acknowledged: 0 };
        connections.set(Number(line), own);
      } else own.acknowledged += 1;
    });
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  return {
    port: (server.address() as AddressInfo).port,
    async arm(pid, faults, group) {
      const connection = await until(() => connections.get(pid), { message: `process ${pid} to connect` });
      const before = connection.acknowledged;
      connection.socket.write(`${JSON.stringify({ group, faults })}\n`);
      await until(() => connection.acknowledged > before || connection.socket.destroyed, {
        timeoutMs: 30_000,
        message: `process ${pid} to arm`,
      });
    },
    async close() {
      for (const { socket } of connections.values()) socket.destroy();
      server.close();
      await once(server, 'close');
    },
  };
}
