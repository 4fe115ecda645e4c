/**
 * Schemas from the static types of the graphs' modules, for graphs whose definition has none at run time (plain annotations).
 * Read by a process of its own (schema-process.ts), once for each state of a module's file; none of it runs the module.
 */
import { stat } from 'node:fs/promises';
import type { Logger } from 'pino';
import type { SchemaAnswer } from './schema-process.ts';
import type { SchemasByNamespace } from './schema-program.ts';
import { createSchemaReader } from './schema-reader.ts';

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
const IDLE_MS = 10_000;
/** A reading that failed may have failed for want of time or memory: it is tried again, but not by every request. */
const RETRY_AFTER_MS = 60_000;

type Schemas = Extract<SchemaAnswer, { kind: 'schemas' }>['schemas'];

/**
 * @param deps.graphs     module and export of each graph
 * @param deps.idleMs     how long the process that reads is kept for the next module
 * @param deps.timeoutMs  a reading that takes longer is ended; that of one file, not the wait for those before it
 * @param deps.retryAfterMs  how long one that failed counts
 */
export function createStaticSchemas(deps: {
  graphs: { readonly [graphId: string]: { readonly file: string; readonly exportName: string } };
  logger: Logger;
  timeoutMs?: number;
  idleMs?: number;
  retryAfterMs?: number;
}): StaticSchemas {
  const { graphs, logger, timeoutMs = TIMEOUT_MS, idleMs = IDLE_MS, retryAfterMs = RETRY_AFTER_MS } = deps;
  const reader = createSchemaReader({ timeoutMs, idleMs });
  const stopping = new AbortController();
  const known = new Map<string, { version: string; schemas: Promise<Schemas | null> }>();
  /** When the reading of a file failed, by the monotonic clock. */
  const failedAtMs = new Map<string, number>();
  // One at a time: it takes a processor and some 350 MB.
  let last: Promise<unknown> = Promise.resolve();

  async function read(file: string): Promise<Schemas | null> {
    const exportNames = Object.values(graphs)
      .filter((graph) => graph.file === file)
      .map(({ exportName }) => exportName);
    try {
      const answer = await reader.ask({ file, exportNames }, stopping.signal);
      if (answer.kind === 'schemas') return answer.schemas;
      if (answer.kind === 'failed') throw new Error(answer.reason);
      logger.info({ file }, 'no schemas from types: no TypeScript with an API is installed (5 or 6)');
    } catch (error) {
      failedAtMs.set(file, performance.now());
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
      const isOld = performance.now() - (failedAtMs.get(file) ?? Number.POSITIVE_INFINITY) > retryAfterMs;
      if (entry === undefined || entry.version !== version || isOld) {
        failedAtMs.delete(file);
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
      await reader.end();
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
