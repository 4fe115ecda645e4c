/**
 * A process of its own that reads schemas: a compiler takes seconds of CPU and hundreds of megabytes, which the server has not to
 * spare. It answers its parent, which also ends it: an answer of a
 * process that is gone may be lost.
 */
import { writeFileSync } from 'node:fs';
import { setPriority } from 'node:os';
import { Worker } from 'node:worker_threads';
import { findCompiler, readSchemas, type SchemasByNamespace } from './schema-program.ts';

export interface SchemaRequest {
  /** Absolute path of the module. */
  file: string;
  exportNames: string[];
  /** How long the answer is of any use, and this process with it. */
  usefulMs: number;
}

export type SchemaAnswer =
  | { kind: 'schemas'; schemas: { [exportName: string]: SchemasByNamespace | null } }
  | { kind: 'no-compiler' }
  | { kind: 'failed'; reason: string };

/** Under the server's own, but not so far that a busy machine lets it never get done. */
const PRIORITY = 5;

standBack();

process.on('message', async (request: SchemaRequest) => {
  // The compiler blocks this thread, and the parent that would end this process may be gone.
  const end = 'setTimeout(() => process.kill(process.pid, "SIGKILL"), require("node:worker_threads").workerData)';
  const watch = new Worker(end, { eval: true, workerData: request.usefulMs });
  watch.unref();
  const answer = answerTo(request);
  await watch.terminate();
  process.send?.(answer);
});

function answerTo({ file, exportNames }: SchemaRequest): SchemaAnswer {
  try {
    // The project's own, or else this server's.
    const compiler = findCompiler([file, import.meta.url]);
    if (compiler === null) return { kind: 'no-compiler' };
    return { kind: 'schemas', schemas: readSchemas(compiler, file, exportNames) };
  } catch (error) {
    return { kind: 'failed', reason: error instanceof Error ? (error.stack ?? error.message) : String(error) };
  }
}

/** When processor or memory are short, this process is the one that goes without. */
function standBack(): void {
  setPriority(PRIORITY);
  if (process.platform !== 'linux') return;
  try {
    writeFileSync('/proc/self/oom_score_adj', '1000');
  } catch (error) {
    // A container may not let it be said; the kernel then judges by size, and this process is large.
    if (!['EACCES', 'EPERM', 'EROFS', 'ENOENT'].includes((error as NodeJS.ErrnoException).code ?? '')) throw error;
  }
}
