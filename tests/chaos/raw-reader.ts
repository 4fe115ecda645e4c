/** Clients of an event stream that do not take what they are sent, or take it slowly. */

import { once } from 'node:events';
import { connect, type Socket } from 'node:net';

export interface RawReader {
  readonly bytes: number;
  /** Everything it took, when it keeps it. */
  text(): string;
  /** True once the server has ended or cut the connection. */
  readonly gone: boolean;
  /** From now on it takes all that comes. */
  takeAll(): void;
  close(): void;
}

/**
 * Asks for the stream and takes at most `bytesPerSecond` of it; 0: nothing at all, not even the headers.
 * @param options.keep whether `text` is kept
 */
export async function openRawReader(
  url: string,
  options: { owner: string; bytesPerSecond: number; keep?: boolean },
): Promise<RawReader> {
  const { hostname, port, pathname, search } = new URL(url);
  const socket: Socket = connect({ host: hostname, port: Number(port) });
  let bytes = 0;
  let text = '';
  let gone = false;
  let all = false;
  socket.on('error', () => undefined);
  socket.on('close', () => {
    gone = true;
  });
  await once(socket, 'connect');
  socket.pause();
  socket.write(
    `GET ${pathname}${search} HTTP/1.1\r\nhost: ${hostname}\r\naccept: text/event-stream\r\nx-dev-user: ${options.owner}\r\n\r\n`,
  );
  socket.on('data', (chunk: Buffer) => {
    bytes += chunk.length;
    if (options.keep === true) text += chunk.toString('latin1');
    if (all || options.bytesPerSecond === 0) return;
    socket.pause();
    setTimeout(() => socket.resume(), (chunk.length / options.bytesPerSecond) * 1_000);
  });
  if (options.bytesPerSecond > 0) socket.resume();
  return {
    get bytes() {
      return bytes;
    },
    text: () => text,
    get gone() {
      return gone;
    },
    takeAll() {
      all = true;
      socket.resume();
    },
    close: () => void socket.destroy(),
  };
}
