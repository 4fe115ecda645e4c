/**
 * Child processes that cannot outlive the test run. A shell is their parent; it holds our pipe as its standard input and
 * stops them when the pipe closes, however we ended (kill -9 too).
 */
import { spawn } from 'node:child_process';
import { createInterface } from 'node:readline';

/**
 * `$1` is the stop signal, `$2` a directory to remove when we are gone or empty, the rest the command. The first line out
 * is the pid, the last `exit <code>`. The watcher is killed before the shell ends, so it never signals a reused pid.
 * SIGPIPE is ignored because nobody reads what is said after our death; INT and TERM because they are for the process.
 */
const LEASH = `
signal=$1; dir=$2; shift 2
exec 3<&0
"$@" 3<&- </dev/null >&2 & child=$!
echo "$child"
( cat <&3; kill -s CONT "$child"; kill -s "$signal" "$child" ) >/dev/null 2>&1 & watcher=$!
exec 3<&-
trap '' PIPE INT TERM
wait "$child" 2>/dev/null; code=$?
kill "$watcher" 2>/dev/null
echo "exit $code" 2>/dev/null
[ -z "$dir" ] || { cat >/dev/null; rm -rf "$dir"; }
`;

export interface Leashed {
  readonly pid: number;
  /** Of the leash and the process: `process.kill(-groupPid, 'SIGINT')` is a Ctrl-C, which the leash itself ignores. */
  readonly groupPid: number;
  /** Resolves with the exit code (128 + n when signal n ended it) once the process is gone. */
  readonly exited: Promise<number>;
  /** What it wrote so far, both streams. */
  output(): string;
  signal(name: NodeJS.Signals): void;
  /** Stops it (its stop signal, SIGKILL when that has not ended it in 10 s) and waits for it. Safe to repeat. */
  stop(): Promise<void>;
}

/**
 * Starts `command` on a leash.
 * @param options.stopSignal sent when the leash ends, without SIG; INT by default
 * @param options.orphanDir removed when the process has ended and `stop` was called or this process is gone, not before
 */
export async function leash(
  command: string[],
  options: {
    stopSignal?: 'INT' | 'TERM' | 'QUIT' | 'KILL';
    orphanDir?: string;
    user?: { uid?: number; gid?: number };
    env?: NodeJS.ProcessEnv;
    cwd?: string;
  } = {},
): Promise<Leashed> {
  const script = ['-c', LEASH, 'leash', options.stopSignal ?? 'INT', options.orphanDir ?? '', ...command];
  const shell = spawn('/bin/sh', script, {
    ...options.user,
    cwd: options.cwd ?? '/',
    env: options.env ?? process.env,
    // Its own session: Ctrl-C at the terminal reaches us, and then the leash, in this order.
    detached: true,
    stdio: ['pipe', 'pipe', 'pipe'],
  });
  let output = '';
  shell.stderr.setEncoding('utf8').on('data', (text: string) => {
    output += text;
  });
  // The pipe breaks when the shell ends before us; `exited` tells.
  shell.stdin.on('error', () => undefined);

  const started = Promise.withResolvers<number>();
  const exited = Promise.withResolvers<number>();
  createInterface({ input: shell.stdout }).on('line', (line) => {
    if (line.startsWith('exit ')) exited.resolve(Number(line.slice(5)));
    else started.resolve(Number(line));
  });
  shell.on('error', started.reject);
  shell.on('close', (code) => exited.resolve(code ?? 137));
  // Neither the shell nor its pipes keep a test process alive.
  shell.unref();

  const pid = await started.promise;
  return {
    pid,
    groupPid: shell.pid ?? pid,
    exited: exited.promise,
    output: () => output,
    signal: (name) => {
      process.kill(pid, name);
    },
    async stop() {
      shell.stdin.end();
      const patience = setTimeout(() => process.kill(pid, 'SIGKILL'), 10_000);
      await exited.promise;
      clearTimeout(patience);
    },
  };
}
