/**
 * Loaded into a measured process before its own code (`node --import`): says what the process has used, and how many
 * statements it has sent to Postgres, when the bench asks. It costs a counter per statement.
 */
import { writeFile } from 'node:fs/promises';
import { Session } from 'node:inspector/promises';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import pg from 'pg';
import { answerParent } from './ipc.ts';

export interface ProcessUsage {
  /** User and system time of all its threads, ms. */
  cpuMs: number;
  /** JavaScript objects and the buffers they hold. */
  inUseBytes: number;
  /** Statements sent to Postgres, by application name. */
  statements: { [applicationName: string]: number };
}

const statements: ProcessUsage['statements'] = {};
const session = new Session();
setFlagsFromString('--expose-gc');
const collectGarbage = runInNewContext('gc') as () => void;

function countStatements(): void {
  const prototype = pg.Client.prototype as unknown as { query: (...args: unknown[]) => unknown };
  const { query } = prototype;
  prototype.query = function counted(
    this: { connectionParameters: { application_name?: string } },
    ...args: unknown[]
  ) {
    const name = this.connectionParameters.application_name ?? '';
    statements[name] = (statements[name] ?? 0) + 1;
    return query.apply(this, args);
  };
}

/** @param args.collect garbage first, so that memory figures mean what is in use */
function usage(args: { collect?: boolean } = {}): ProcessUsage {
  if (args.collect === true) for (let round = 0; round < 3; round += 1) collectGarbage();
  const { user, system } = process.cpuUsage();
  const { heapUsed, external } = process.memoryUsage();
  return { cpuMs: (user + system) / 1000, inUseBytes: heapUsed + external, statements: { ...statements } };
}

async function startProfile(): Promise<void> {
  session.connect();
  await session.post('Profiler.enable');
  await session.post('Profiler.setSamplingInterval', { interval: 200 });
  await session.post('Profiler.start');
}

async function stopProfile({ file }: { file: string }): Promise<void> {
  const { profile } = await session.post('Profiler.stop');
  session.disconnect();
  await writeFile(file, JSON.stringify(profile));
}

countStatements();
answerParent({ usage, startProfile, stopProfile });
