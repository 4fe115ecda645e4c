/**
 * What a scenario plays with: servers, clients that record what they sent and received, and seeded choices. A world is a
 * user of its own on its stage, so several worlds may share one stage at the same time.
 */
import { randomBytes } from 'node:crypto';
import { Redis } from 'ioredis';
import { call } from '#tests/support/cluster.ts';
import { query } from '#tests/support/postgres.ts';
import { startTcpProxy, type TcpProxy } from '#tests/support/tcp-proxy.ts';
import { until } from '#tests/support/until.ts';
import type { Fault } from './fault-points.ts';
import { createHistory, type History, type Submission } from './history.ts';
import { contentOf, type Question } from './questions.ts';
import { type Reader, type ReaderOptions, startReader } from './readers.ts';
import { createRng, type Rng } from './rng.ts';
import type { ChaosServer, ServerOptions, Stage } from './stage.ts';

export interface AskOptions extends Partial<Omit<Question, 'tag'>> {
  /** The server it is sent to first; any by default. Later tries go anywhere. */
  on?: ChaosServer;
  threadId?: string;
  /** `chat` by default; `counted` tells of each node it runs. */
  graph?: string;
  /** How long a counting node takes. */
  nodeMs?: number;
  /** The name of a webhook (`stage.recorder.answers`). */
  webhook?: string;
  onDisconnect?: 'continue' | 'cancel';
  /** Beside the statuses of a server that is away, these are tried again too. */
  retryOn?: number[];
  requestKey?: string;
}

/** A run that was admitted. */
export interface Asked {
  runId: string;
  threadId: string;
  question: Question;
  requestKey: string;
}

export interface World {
  readonly seed: number;
  readonly rng: Rng;
  readonly owner: string;
  readonly stage: Stage;
  readonly history: History;
  /** Recovery and other times in ms, by name, for the report; nothing is asserted of them. */
  readonly measures: { [name: string]: number[] };
  /** True once a reader may be told to resync: the scenario destroys what could be replayed. */
  readonly mayResync: boolean;
  allowResync(): void;
  /** A server of this world, gone with it. It may claim and take over like any other. */
  server(options?: ServerOptions): Promise<ChaosServer>;
  /** A TCP proxy before a service of the stage, gone with the world; for `ServerOptions`. */
  proxy(service: 'postgres' | 'redis'): Promise<TcpProxy>;
  /** The servers of this world, ended ones too. */
  readonly servers: readonly ChaosServer[];
  /** Servers of the stage that can be reached now. */
  reachable(): ChaosServer[];
  /**
   * While `work` runs, no reachable server of the stage but this one claims a run. `work` ends when what must be claimed
   * is claimed (`claimed`), for all others wait.
   */
  onlyClaims<T>(server: ChaosServer, work: () => Promise<T>): Promise<T>;
  /** Asks a question with a request key until it is admitted, on other servers when one does not answer. @throws when it is refused, or after 60 s */
  ask(options?: AskOptions): Promise<Asked>;
  /** The same, with the run claimed by that server when it resolves. */
  askAndClaim(server: ChaosServer, options?: AskOptions): Promise<Asked>;
  /** A client that reads the run to its end and comes back with its last id whenever it is cut off. */
  read(
    run: Pick<Asked, 'runId' | 'threadId'>,
    options?: Partial<Omit<ReaderOptions, 'runId' | 'threadId' | 'owner'>>,
  ): Reader;
  /** A request of this world's user. */
  call<T>(server: ChaosServer, method: string, path: string, body?: unknown): Promise<{ status: number; body: T }>;
  /** Resolves with the run's row once the ledger says it has ended. */
  ended(runId: string, timeoutMs?: number): Promise<{ status: string; takeovers: number; epoch: number }>;
  /** Resolves once the ledger says that server owns the run. */
  claimed(server: ChaosServer, runId: string): Promise<void>;
  /** Rows of the ledger. */
  rows<T>(text: string, values?: unknown[]): Promise<T[]>;
  /** One command to the stage's Redis. */
  redis(...command: string[]): Promise<unknown>;
  measure(name: string, ms: number): void;
  /** Ends the servers and proxies of this world. */
  close(): Promise<void>;
}

/** A server that is starting, stopping or cut off from Postgres says these. */
const AWAY = new Set([0, 500, 502, 503, 504]);
const ASK_PATIENCE_MS = 60_000;
/** The group of faults that holds claims, beside those a scenario has armed. */
const HOLD = 'hold';
const CALL_PATIENCE_MS = 12_000;

export function createWorld(stage: Stage, seed: number): World {
  const rng = createRng(seed);
  const history = createHistory();
  const owner = `seed-${seed}-${randomBytes(4).toString('hex')}`;
  const own: ChaosServer[] = [];
  const proxies: TcpProxy[] = [];
  const measures: { [name: string]: number[] } = {};
  let mayResync = false;
  let tags = 0;

  const reachable = (): ChaosServer[] => [...stage.servers].filter((server) => server.reachable);

  async function rows<T>(text: string, values: unknown[] = []): Promise<T[]> {
    return (await query(stage.databaseUrl, text, values)).rows as T[];
  }

  async function server(options: ServerOptions = {}): Promise<ChaosServer> {
    // Not while somebody chooses who claims.
    const started = await stage.exclusively(() => stage.start(options));
    own.push(started);
    return started;
  }

  function onlyClaims<T>(chosen: ChaosServer, work: () => Promise<T>): Promise<T> {
    return stage.exclusively(async () => {
      const others = reachable().filter((one) => one !== chosen);
      await Promise.all(others.map((one) => hold(one, [{ point: 'claim', action: 'hold', every: true }])));
      try {
        return await work();
      } finally {
        await Promise.all(others.map((one) => hold(one, [])));
      }
    });
  }

  /** One that is stopped hears of it when it goes on. */
  async function hold(other: ChaosServer, faults: Fault[]): Promise<void> {
    const armed = other.arm(faults, HOLD).catch((error: unknown) => {
      if (other.reachable) throw error;
    });
    while (other.reachable && (await Promise.race([armed.then(() => 'armed'), soon()])) !== 'armed');
  }

  async function tryToSend(submission: Submission, target: ChaosServer, options: AskOptions): Promise<Asked | null> {
    const { question, requestKey } = submission;
    const path = options.threadId === undefined ? '/threads/messages' : `/threads/${options.threadId}/messages`;
    const configurable = { url: stage.recorder.nodeUrl, tag: question.tag, nodeMs: options.nodeMs ?? 0 };
    const body = {
      content: contentOf(question),
      graph: options.graph ?? 'chat',
      request_key: requestKey,
      config: { configurable },
      ...(options.onDisconnect === undefined ? {} : { on_disconnect: options.onDisconnect }),
      ...(options.webhook === undefined ? {} : { webhook: stage.recorder.hookUrl(options.webhook) }),
    };
    const answer = await patiently(call<Record<string, string>>(target, 'POST', `/api/v1${path}`, body, headers()));
    submission.statuses.push(answer?.status ?? 0);
    if (answer?.status === 202) {
      const { run_id: runId = '', thread_id: threadId = '' } = answer.body;
      submission.runIds.push(runId);
      return { runId, threadId, question, requestKey };
    }
    const status = answer?.status ?? 0;
    if (AWAY.has(status) || options.retryOn?.includes(status) === true) return null;
    throw new Error(`not admitted: ${status} ${JSON.stringify(answer?.body)}`);
  }

  async function ask(options: AskOptions = {}): Promise<Asked> {
    tags += 1;
    const { tokens = 30, delayMs = 20, tools = 0, gate } = options;
    const tag = `${owner}.${tags}`;
    const submission: Submission = {
      question: { tag, tokens, delayMs, tools, ...(gate === undefined ? {} : { gate }) },
      requestKey: options.requestKey ?? `key-${tag}`,
      runIds: [],
      statuses: [],
    };
    history.submissions.push(submission);
    const deadlineMs = performance.now() + ASK_PATIENCE_MS;
    for (let target = options.on; performance.now() < deadlineMs; target = undefined) {
      const there = reachable();
      const chosen = target?.reachable === true ? target : there.length > 0 ? rng.pick(there) : undefined;
      const asked = chosen === undefined ? null : await tryToSend(submission, chosen, options);
      if (asked !== null) return asked;
      await new Promise((resolve) => setTimeout(resolve, 100));
    }
    throw new Error(`not admitted within ${ASK_PATIENCE_MS} ms: ${submission.statuses.join(', ')}`);
  }

  const headers = (): Record<string, string> => ({ 'x-dev-user': owner });

  async function claimed(by: ChaosServer, runId: string): Promise<void> {
    const text = `
      select 1 from chaos.status s join chaos.worker w on w.id = s.worker_id
      where s.run_id = $1::uuid and s.to_status = 'running' and w.pid = $2`;
    await until(async () => (await rows(text, [runId, by.pid])).length > 0, {
      timeoutMs: 30_000,
      message: `${by.name} to claim ${runId}`,
    });
  }

  return {
    seed,
    rng,
    owner,
    stage,
    history,
    measures,
    get mayResync() {
      return mayResync;
    },
    allowResync() {
      mayResync = true;
    },
    server,
    async proxy(service) {
      const target = new URL(service === 'postgres' ? stage.databaseUrl : stage.redisUrl);
      const proxy = await startTcpProxy({ host: target.hostname, port: Number(target.port) });
      proxies.push(proxy);
      return proxy;
    },
    servers: own,
    reachable,
    onlyClaims,
    ask,
    askAndClaim: (by, options = {}) =>
      onlyClaims(by, async () => {
        const asked = await ask({ on: by, ...options });
        await claimed(by, asked.runId);
        return asked;
      }),
    read(run, options = {}) {
      const number = history.readings.length + 1;
      const deps = { history, servers: reachable, rng: createRng(seed * 1_000 + number) };
      return startReader(deps, { name: `reader-${number}`, ...run, owner, ...options });
    },
    async call<T>(target: ChaosServer, method: string, path: string, body?: unknown) {
      const answer = await patiently(call<T>(target, method, `/api/v1${path}`, body, headers()));
      return answer ?? { status: 0, body: null as T };
    },
    async ended(runId, timeoutMs = 60_000) {
      const text = `select status, takeovers, epoch from runs where id = $1::uuid and ended_at is not null`;
      const find = async () => (await rows<{ status: string; takeovers: number; epoch: number }>(text, [runId]))[0];
      return until(find, { timeoutMs, message: `run ${runId} to end` });
    },
    claimed,
    rows,
    async redis(command = '', ...args) {
      const client = new Redis(stage.redisUrl, { protocol: 2 });
      client.on('error', () => undefined);
      try {
        return await client.call(command, ...args);
      } finally {
        client.disconnect();
      }
    },
    measure(name, ms) {
      measures[name] = [...(measures[name] ?? []), ms];
    },
    async close() {
      for (const one of own) {
        one.kill('SIGCONT');
        one.kill('SIGKILL');
      }
      await Promise.all(own.map((one) => one.exit));
      await Promise.all(proxies.map((proxy) => proxy.close()));
    },
  };
}

function soon(): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, 20));
}

/** null: no answer, or none in time. */
async function patiently<T>(answer: Promise<T>): Promise<T | null> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<null>((resolve) => {
    timer = setTimeout(resolve, CALL_PATIENCE_MS, null);
  });
  return Promise.race([answer.catch(() => null), late]).finally(() => clearTimeout(timer));
}
