/** The processes that are measured: started with the probe inside, their output in a file, gone with the bench. */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { closeSync, openSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { freePort } from '#src/postgres/free-port.ts';
import { type Client, createClient } from './client.ts';
import { type Ask, askChild } from './ipc.ts';

export interface Process {
  ask: Ask;
  stop(): Promise<void>;
}

export interface ServerProcess extends Process {
  client: Client;
  /** Sends a signal and does not wait. */
  signal(name: 'SIGKILL' | 'SIGSTOP' | 'SIGCONT'): void;
}

const READY_MS = 60_000;
const STOP_MS = 10_000;

export function file(path: string): string {
  return fileURLToPath(new URL(path, import.meta.url));
}

/** @param options.directory its working directory, and where its output is kept until the bench ends */
export function launch(
  script: string,
  options: { name: string; directory: string; env: Record<string, string>; args?: string[] },
): Process & { child: ChildProcess } {
  const log = join(options.directory, `${options.name}.log`);
  const output = openSync(log, 'a');
  const { PATH, HOME } = process.env;
  const child = spawn(process.execPath, ['--import', file('probe.ts'), file(script), ...(options.args ?? [])], {
    cwd: options.directory,
    env: { PATH, HOME, NODE_ENV: 'production', ...options.env },
    stdio: ['ignore', output, output, 'ipc'],
  });
  closeSync(output);
  return { child, ask: askChild(child), stop: () => stop(child, log) };
}

async function stop(child: ChildProcess, log: string): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) {
    if (child.exitCode !== null && child.exitCode !== 0) process.stderr.write(readFileSync(log, 'utf8').slice(-4_000));
    return;
  }
  const gone = once(child, 'exit');
  child.kill('SIGTERM');
  const patience = setTimeout(() => child.kill('SIGKILL'), STOP_MS);
  await gone;
  clearTimeout(patience);
}

/** The server as its users start it. @throws when it is not ready in a minute */
export async function launchServer(options: {
  name: string;
  directory: string;
  config: string;
  env: Record<string, string>;
}): Promise<ServerProcess> {
  const port = await freePort();
  const args = ['--config', options.config, '--port', String(port), '--migrate'];
  const server = launch('../../src/main.ts', { ...options, args });
  const url = `http://127.0.0.1:${port}`;
  try {
    await ready(url, server.child);
  } catch (error) {
    await server.stop();
    throw error;
  }
  const client = createClient(url);
  return {
    ask: server.ask,
    client,
    signal: (name) => void server.child.kill(name),
    async stop() {
      client.close();
      await server.stop();
    },
  };
}

async function ready(url: string, server: ChildProcess): Promise<void> {
  const untilMs = performance.now() + READY_MS;
  while (server.exitCode === null && performance.now() < untilMs) {
    const answer = await fetch(`${url}/readyz`).catch(() => null);
    if (answer?.ok === true) return;
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
  throw new Error('the server did not become ready');
}
