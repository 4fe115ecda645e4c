import { once } from 'node:events';
import { type AddressInfo, createServer } from 'node:net';

/** `port` when it is free on 127.0.0.1, otherwise (and without an argument) a loopback TCP port that is free now. */
export async function freePort(port = 0): Promise<number> {
  const server = createServer().listen(port, '127.0.0.1');
  try {
    await once(server, 'listening');
  } catch (error) {
    if (port !== 0 && (error as NodeJS.ErrnoException).code === 'EADDRINUSE') return freePort();
    throw error;
  }
  const free = (server.address() as AddressInfo).port;
  server.close();
  await once(server, 'close');
  return free;
}
