/** The process that reads schemas, as its parent has it: started when it is asked, kept while it is, ended when it fails. */
import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';
import type { SchemaAnswer, SchemaRequest } from './schema-process.ts';

export interface SchemaReader {
  /** One at a time. @throws when the process ends without an answer, is too slow, or the signal is raised */
  ask(request: Pick<SchemaRequest, 'file' | 'exportNames'>, stopped: AbortSignal): Promise<SchemaAnswer>;
  end(): Promise<void>;
}

/** A process that nobody ends (its parent was killed) ends by itself a little later. */
const GRACE_MS = 5_000;

/**
 * @param limits.timeoutMs  for one answer
 * @param limits.idleMs     how long the process is kept for the next question: it has most of what that needs
 */
export function createSchemaReader({ timeoutMs, idleMs }: { timeoutMs: number; idleMs: number }): SchemaReader {
  let running: { child: ChildProcess; ended: Promise<unknown[]> } | null = null;
  let idle: NodeJS.Timeout | undefined;

  async function end(): Promise<void> {
    clearTimeout(idle);
    if (running === null) return;
    const { child, ended } = running;
    running = null;
    child.kill('SIGKILL');
    await ended;
  }

  /** One that ends while nobody asks (it is the first to go when memory is short) is not asked again. */
  function begun(): { child: ChildProcess; ended: Promise<unknown[]> } {
    const process = started();
    process.child.once('exit', () => {
      if (running === process) running = null;
    });
    return process;
  }

  return {
    end,
    async ask(request, stopped) {
      stopped.throwIfAborted();
      clearTimeout(idle);
      running ??= begun();
      const { child, ended } = running;
      const tooSlow = AbortSignal.timeout(timeoutMs);
      try {
        const unsent = sending(child, { ...request, usefulMs: timeoutMs + GRACE_MS });
        const signal = AbortSignal.any([stopped, tooSlow]);
        const answered = once(child, 'message', { signal }).then(([answer]) => answer as SchemaAnswer);
        const failed = ended.then(([code, signalName]) => {
          throw new Error(`the process that reads them ended (${signalName ?? code})`);
        });
        const answer = await Promise.race([answered, failed, unsent]);
        idle = setTimeout(() => void end(), idleMs).unref();
        return answer;
      } catch (error) {
        await end();
        throw tooSlow.aborted ? new Error(`it took more than ${timeoutMs} ms`) : error;
      }
    },
  };
}

/** Never resolves. Rejects when it cannot be sent, which would else be an error that nobody catches. */
function sending(child: ChildProcess, request: SchemaRequest): Promise<never> {
  return new Promise((_, reject) => {
    child.send(request, (error) => {
      if (error !== null) reject(error);
    });
  });
}

function started(): { child: ChildProcess; ended: Promise<unknown[]> } {
  const child = fork(fileURLToPath(new URL('./schema-process.ts', import.meta.url)), {
    // The server's own flags and environment are nothing to it.
    execArgv: ['--max-old-space-size=1024'],
    env: {},
    stdio: ['ignore', 'ignore', 'ignore', 'ipc'],
  });
  return { child, ended: once(child, 'exit') };
}
