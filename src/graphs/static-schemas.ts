/**
 * Schemas from the static types of the graphs' modules, for graphs whose definition has none at run time (plain annotations).
 * Read by a process of its own (schema-process.ts), once for each state of a module's file; none of it runs the module.
 */
import { fork } from 'node:child_process';
import { once } from 'node:events';
import { stat } from 'node:fs/promises';
import { fileURLToPath } from 'node:url';
import type { Logger } from 'pino';
import type { SchemaAnswer, SchemaRequest } from './schema-process.ts';
import type { SchemasByNamespace } from './schema-program.ts';

export interface StaticSchemas {
  /**
   * By namespace, '' being the graph itself. Null when there is no compiler, when the export has no type of a graph, and when the
   * reading failed or took too long, which is a warning in the log. Never rejects.
   */
  of(graphId: string): Promise<SchemasByNamespace | null>;
  /** Ends a reading that is under way: it gives null. */
  close(): Promise<void>;
}

const TIMEOUT_MS = 30_000;

/** A process that nobody ends (its parent was killed) ends by itself a little later. */
const GRACE_MS = 5_000;

type Schemas = Extract<SchemaAnswer, { kind: 'schemas' }>['schemas'];

/**
 * @param deps.graphs     module and export of each graph
 * @param deps.timeoutMs  a reading that takes longer is ended; that of one file, not the wait for those before it
 */
export function createStaticSchemas(deps: {
  graphs: { readonly [graphId: string]: { readonly file: string; readonly exportName: string } };
  logger: Logger;
  timeoutMs?: number;
}): StaticSchemas {
  const { graphs, logger, timeoutMs = TIMEOUT_MS } = deps;
  const stopping = new AbortController();
  const known = new Map<string, { version: string; schemas: Promise<Schemas | null> }>();
  // One at a time: each takes a processor and some 350 MB.
  let last: Promise<unknown> = Promise.resolve();

  async function read(file: string): Promise<Schemas | null> {
    const exportNames = Object.values(graphs)
      .filter((graph) => graph.file === file)
      .map(({ exportName }) => exportName);
    try {
      const answer = await ask({ file, exportNames, usefulMs: timeoutMs + GRACE_MS }, timeoutMs, stopping.signal);
      if (answer.kind === 'schemas') return answer.schemas;
      if (answer.kind === 'failed') throw new Error(answer.reason);
      logger.info({ file }, 'no schemas from types: no TypeScript with an API is installed (5 or 6)');
    } catch (error) {
      if (!stopping.signal.aborted) logger.warn({ err: error, file }, 'no schemas from types: they could not be read');
    }
    return null;
  }

  return {
    async of(graphId) {
      const graph = graphs[graphId];
      if (graph === undefined) return null;
      const { file, exportName } = graph;
      const version = await versionOf(file);
      let entry = known.get(file);
      if (entry === undefined || entry.version !== version) {
        const schemas = last.then(() => read(file));
        last = schemas;
        entry = { version, schemas };
        known.set(file, entry);
      }
      return (await entry.schemas)?.[exportName] ?? null;
    },
    async close() {
      stopping.abort();
      await last;
    },
  };
}

/** Differs when the file does. */
async function versionOf(file: string): Promise<string> {
  try {
    const { mtimeMs, size } = await stat(file);
    return `${mtimeMs} ${size}`;
  } catch {
    // What is wrong with it, the reading will say.
    return 'unknown';
  }
}

/** @throws when the process ends without an answer, is too slow, or the signal is raised */
async function ask(request: SchemaRequest, timeoutMs: number, stopped: AbortSignal): Promise<SchemaAnswer> {
  stopped.throwIfAborted();
  const child = fork(fileURLToPath(new URL('./schema-process.ts', import.meta.url)), {
    // The server's own flags and environment are nothing to it.
    execArgv: [],
    env: {},
    stdio: ['ignore', 'ignore', 'ignore', 'ipc'],
  });
  const ended = once(child, 'exit');
  const tooSlow = AbortSignal.timeout(timeoutMs);
  try {
    child.send(request);
    const signal = AbortSignal.any([stopped, tooSlow]);
    const answered = once(child, 'message', { signal }).then(([answer]) => answer as SchemaAnswer);
    const failed = ended.then(([code, signalName]) => {
      throw new Error(`the process that reads them ended (${signalName ?? code})`);
    });
    return await Promise.race([answered, failed]);
  } catch (error) {
    if (tooSlow.aborted) throw new Error(`it took more than ${timeoutMs} ms`);
    throw error;
  } finally {
    child.kill('SIGKILL');
    await ended;
  }
}
