/** The two Redis connections of a process: one for commands, one for subscriptions. */
import { Redis } from 'ioredis';
import type { Logger } from 'pino';
import { createDeadline, type Deadline, RedisUnavailable } from './deadline.ts';

export interface RedisClients {
  readonly commands: Redis;
  readonly subscriber: Redis;
  /** For every use of `commands`. */
  readonly deadline: Deadline;
  /**
   * Redis' `maxmemory-policy`, or 'unknown' when this user may not ask. Only `noeviction` keeps event streams safe:
   * `allkeys-*` drops any stream, `volatile-*` those of ended runs, which have a TTL.
   * @throws RedisUnavailable
   */
  checkEvictionPolicy(): Promise<string>;
  /** Resolves when both connections answer. @throws RedisUnavailable */
  ping(): Promise<void>;
  /** Ends both connections at once; commands in flight are rejected. */
  close(): Promise<void>;
}

const CONNECT_TIMEOUT_MS = 2_000;
/** A connection that owes an answer and says nothing for this long is given up and made anew. */
const SILENCE_MS = 3_000;
const SUBSCRIBER_CHECK_MS = 5_000;
const COMMAND_DEADLINE_MS = 1_000;
const MAX_BACKOFF_MS = 1_000;

/**
 * Connects in the background and keeps reconnecting; nothing here ever ends the process. Commands are refused, not
 * queued, while a connection is away. Nothing is resent by itself: only its caller knows whether that is safe.
 * @param options.url redis:// or rediss://
 */
export function createRedis(options: { url: string; logger?: Logger | undefined }): RedisClients {
  const { url, logger } = options;
  const commands = connect(url, 'commands', logger);
  const subscriber = connect(url, 'subscriber', logger);
  const deadline = createDeadline();
  const subscriberDeadline = createDeadline();
  // A half-open subscriber would never be noticed: it only listens. The ping makes SILENCE_MS apply to it.
  const check = setInterval(() => {
    if (subscriber.status === 'ready') subscriber.ping().catch(() => logger?.warn('Redis subscriber did not answer'));
  }, SUBSCRIBER_CHECK_MS).unref();

  return {
    commands,
    subscriber,
    deadline,
    async checkEvictionPolicy() {
      await whenReady(commands, CONNECT_TIMEOUT_MS);
      return deadline.within(COMMAND_DEADLINE_MS, () => evictionPolicy(commands));
    },
    async ping() {
      await unavailable(() => deadline.within(COMMAND_DEADLINE_MS, () => commands.ping()));
      await unavailable(() => subscriberDeadline.within(COMMAND_DEADLINE_MS, () => subscriber.ping()));
    },
    async close() {
      clearInterval(check);
      commands.disconnect();
      subscriber.disconnect();
    },
  };
}

function connect(url: string, role: 'commands' | 'subscriber', logger: Logger | undefined): Redis {
  const client = new Redis(url, {
    protocol: 2,
    connectionName: `runledger-${role}`,
    enableOfflineQueue: false,
    autoResendUnfulfilledCommands: false,
    // The client's own resubscription leaves a rejection unhandled when the connection drops again meanwhile.
    autoResubscribe: false,
    maxRetriesPerRequest: 0,
    connectTimeout: CONNECT_TIMEOUT_MS,
    socketTimeout: SILENCE_MS,
    disconnectTimeout: 100,
    keepAlive: 5_000,
    retryStrategy: (times) => Math.min(MAX_BACKOFF_MS, 25 * 2 ** times) * (0.75 + Math.random() / 4),
  });
  let lost = false;
  // Without a listener an error event would end the process. One line per outage, not per attempt.
  client.on('error', (error: Error) => {
    if (!lost) logger?.warn({ role, reason: error.message }, 'Redis connection lost');
    lost = true;
  });
  client.on('ready', () => {
    if (lost) logger?.info({ role }, 'Redis connection is back');
    lost = false;
  });
  return client;
}

async function evictionPolicy(client: Redis): Promise<string> {
  try {
    const reply = await client.call('CONFIG', 'GET', 'maxmemory-policy');
    const policy = Array.isArray(reply) ? reply[1] : undefined;
    return typeof policy === 'string' ? policy : 'unknown';
  } catch (error) {
    if (error instanceof Error && /^(NOPERM|ERR unknown command)/i.test(error.message)) return 'unknown';
    throw new RedisUnavailable('Redis did not answer', { cause: error });
  }
}

async function unavailable<T>(work: () => Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (error) {
    if (error instanceof RedisUnavailable) throw error;
    throw new RedisUnavailable('Redis did not answer', { cause: error });
  }
}

function whenReady(client: Redis, timeoutMs: number): Promise<void> {
  if (client.status === 'ready') return Promise.resolve();
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => {
      client.off('ready', onReady);
      reject(new RedisUnavailable(`Redis cannot be reached within ${timeoutMs} ms`));
    }, timeoutMs);
    const onReady = (): void => {
      clearTimeout(timer);
      resolve();
    };
    client.once('ready', onReady);
  });
}
