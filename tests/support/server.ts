/** Real server processes for tests: started, signalled, watched, never left behind. */
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, afterEach } from 'vitest';
import { stringify } from 'yaml';
import { COMPILE_CACHE } from './compile-cache.ts';
import { leash } from './leash.ts';
import { until } from './until.ts';

const MAIN = fileURLToPath(new URL('../../src/main.ts', import.meta.url));
const CHAT_GRAPH = fileURLToPath(new URL('../../src/graphs/chat.ts', import.meta.url));
const READY = /listening on (https?:\/\/[^\s"]+)/;

export interface TestServer {
  /** Without a trailing slash. */
  readonly url: string;
  readonly pid: number;
  /** `process.kill(-groupPid, 'SIGINT')` is what a terminal does at Ctrl-C. */
  readonly groupPid: number;
  /** Sends a signal and does not wait. */
  kill(signal: 'SIGKILL' | 'SIGSTOP' | 'SIGCONT' | 'SIGTERM' | 'SIGINT'): void;
  /** SIGTERM, then SIGKILL after `timeoutMs` (40 s); resolves with the exit code, 128 + n for signal n. */
  stop(timeoutMs?: number): Promise<number>;
  /** Everything it printed, both streams. */
  logs(): string;
  /** Resolves with the exit code (128 + n when signal n ended it). */
  readonly exit: Promise<number>;
}

export interface ServerOptions {
  /** The whole environment beside PATH and HOME; nothing of the test run's own leaks in but a cache of compiled code. */
  env?: Record<string, string>;
  /** Content of config.yaml, over the default graph; the file is temporary. Relative paths in it are relative to a temporary folder. */
  config?: Record<string, unknown>;
  /** Further command line arguments. `--config` and `--port 0` are given, the latter unless `args` has `--port`. */
  args?: string[];
  /** The working directory; the temporary folder of the config by default. */
  cwd?: string;
  /** How long the ready line may take, 30 s by default. */
  readyTimeoutMs?: number;
}

const running = new Set<TestServer>();

// Registered for the test file that imports this module.
afterEach((context) => {
  if (context.task.result?.state !== 'fail') return;
  for (const server of running)
    process.stderr.write(`--- log of ${server.url} (pid ${server.pid})\n${server.logs()}\n---\n`);
});
afterAll(async () => {
  for (const server of running) server.kill('SIGKILL');
  await Promise.all([...running].map((server) => server.exit));
});

/**
 * Starts `node src/main.ts` and waits for its ready line.
 * @throws with the log when the process ends or the time is over before it is ready
 */
export async function startServer(options: ServerOptions = {}): Promise<TestServer> {
  const started = await launchServer(options);
  const { process, exit } = started;
  let code: number | null = null;
  void exit.then((value) => {
    code = value;
  });
  try {
    await until(() => READY.test(process.output()) || code !== null, {
      timeoutMs: options.readyTimeoutMs ?? 30_000,
      message: 'the server to be ready',
    });
    const url = READY.exec(process.output())?.[1];
    if (url === undefined) throw new Error(`the server ended with code ${code}`);
    const server: TestServer = {
      url: url.replace(/\/$/, ''),
      pid: process.pid,
      groupPid: process.groupPid,
      kill: (signal) => signalIfAlive(process.pid, signal),
      logs: () => process.output(),
      exit,
      async stop(timeoutMs = 40_000) {
        signalIfAlive(process.pid, 'SIGTERM');
        const patience = setTimeout(() => signalIfAlive(process.pid, 'SIGKILL'), timeoutMs);
        const ended = await exit;
        clearTimeout(patience);
        return ended;
      },
    };
    running.add(server);
    void exit.then(() => running.delete(server));
    return server;
  } catch (cause) {
    signalIfAlive(process.pid, 'SIGKILL');
    throw new Error(`${(cause as Error).message}; its log:\n${process.output()}`, { cause });
  }
}

/** Runs `node src/main.ts` to its end, for starts that must be refused. */
export async function runServerToExit(options: ServerOptions = {}): Promise<{ code: number; logs: string }> {
  const { process, exit } = await launchServer(options);
  const patience = setTimeout(() => signalIfAlive(process.pid, 'SIGKILL'), options.readyTimeoutMs ?? 30_000);
  const code = await exit;
  clearTimeout(patience);
  return { code, logs: process.output() };
}

async function launchServer(options: ServerOptions) {
  const directory = await mkdtemp(join(tmpdir(), 'runledger-server-'));
  const config = join(directory, 'config.yaml');
  // The built-in default is relative to the config's folder, which is a temporary one here.
  await writeFile(config, stringify({ graphs: { chat: `${CHAT_GRAPH}:graph` }, ...options.config }));
  const args = options.args ?? [];
  const port = args.includes('--port') ? [] : ['--port', '0'];
  const { PATH, HOME } = process.env;
  const child = await leash([process.execPath, MAIN, '--config', config, ...port, ...args], {
    stopSignal: 'KILL',
    orphanDir: directory,
    env: { PATH, HOME, ...COMPILE_CACHE, ...options.env },
    cwd: options.cwd ?? directory,
  });
  const exit = child.exited.then(async (code) => {
    await rm(directory, { recursive: true, force: true });
    return code;
  });
  return { process: child, exit };
}

function signalIfAlive(pid: number, signal: NodeJS.Signals): void {
  try {
    process.kill(pid, signal);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ESRCH') throw error;
  }
}
