/** Redis servers for tests: one for the run (services.ts), and private ones for tests that kill, stop or flush them. */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Redis } from 'ioredis';
import { freePort } from '#src/postgres/free-port.ts';
import { onPath } from './apt.ts';
import { type Leashed, leash } from './leash.ts';

export interface TestRedis {
  readonly url: string;
  readonly port: number;
  readonly pid: number;
  output(): string;
  signal(name: 'SIGKILL' | 'SIGSTOP' | 'SIGCONT'): Promise<void>;
  /** Ends it (SIGKILL) and starts it again on the same port, empty: it keeps nothing on disk. */
  restart(): Promise<void>;
  /** Starts it again after SIGKILL. */
  start(): Promise<void>;
  stop(): Promise<void>;
}

/** The `redis-server` on the PATH, or null. */
export const redisProgram = (): string | null => onPath('redis-server');

/**
 * A private server without persistence. Gone with the test process, however that ends.
 * @param settings further arguments, such as `['--maxmemory', '50mb']`
 * @throws when there is no redis-server on the PATH (services.ts installs it where it can)
 */
export async function startRedis(settings: string[] = []): Promise<TestRedis> {
  const program = redisProgram();
  if (program === null) throw new Error('redis-server is not on the PATH');
  const directory = await mkdtemp(join(tmpdir(), 'runledger-redis-'));
  const port = await freePort();
  let running = await launch(program, directory, port, settings);
  await answering(port, running);
  return {
    url: `redis://127.0.0.1:${port}`,
    port,
    get pid() {
      return running.pid;
    },
    output: () => running.output(),
    async signal(name) {
      running.signal(name);
      if (name === 'SIGKILL') await running.exited;
    },
    async restart() {
      running.signal('SIGKILL');
      await running.exited;
      running = await launch(program, directory, port, settings);
      await answering(port, running);
    },
    async start() {
      running = await launch(program, directory, port, settings);
      await answering(port, running);
    },
    async stop() {
      await running.stop();
      await rm(directory, { recursive: true, force: true });
    },
  };
}

function launch(program: string, directory: string, port: number, settings: string[]): Promise<Leashed> {
  const options = [
    '--port',
    String(port),
    '--bind',
    '127.0.0.1',
    '--save',
    '',
    '--appendonly',
    'no',
    '--dir',
    directory,
  ];
  return leash([program, ...options, ...settings], { stopSignal: 'KILL', orphanDir: directory });
}

async function answering(port: number, running: Leashed): Promise<void> {
  const failed = running.exited.then((code) => {
    throw new Error(`redis-server ended with code ${code}: ${running.output()}`);
  });
  failed.catch(() => undefined);
  await Promise.race([failed, redisAnswers(`redis://127.0.0.1:${port}`, 30_000)]);
}

/** Resolves when the Redis answers. @throws after `timeoutMs` */
export async function redisAnswers(url: string, timeoutMs: number): Promise<void> {
  const client = new Redis(url, { lazyConnect: true, retryStrategy: () => 20, protocol: 2 });
  client.on('error', () => undefined);
  const deadline = setTimeout(() => client.disconnect(), timeoutMs);
  try {
    await client.connect().catch(() => undefined);
    await client.ping();
  } finally {
    clearTimeout(deadline);
    client.disconnect();
  }
}
