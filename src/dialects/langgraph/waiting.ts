/** Answers that wait for the end of a run: whitespace while it goes on, so that nobody takes the connection for dead. */
import { Readable } from 'node:stream';
import type { FastifyReply } from 'fastify';
import { RunledgerError } from '#src/errors.ts';
import type { Json, JsonObject } from '#src/events/event.ts';
import type { Client } from '#src/http/client.ts';
import type { Run } from '#src/runs/run.ts';
import { filled } from './frames.ts';
import { errorData } from './project.ts';
import type { LangGraphDeps } from './route.ts';

const BLANK_EVERY_MS = 1_000;

/** @param onLeft called when the client closed the response before it was complete */
export type Wait = (reply: FastifyReply, client: Client, run: Run, onLeft: () => Promise<void>) => Readable;

export function createWait(deps: LangGraphDeps): Wait {
  return (reply, client, run, onLeft) => {
    const signal = AbortSignal.any([client.signal, deps.closing]);
    reply.raw.once('close', () => {
      if (!client.left) return;
      onLeft().catch((error: unknown) => {
        deps.logger.error({ err: error, run_id: run.id }, 'a disconnect could not be acted on');
      });
    });
    reply.type('application/json; charset=utf-8');
    return Readable.from(body(deps, run, signal));
  };
}

async function* body(deps: LangGraphDeps, run: Run, signal: AbortSignal): AsyncGenerator<string> {
  const ending = ended(deps, run, signal).then(JSON.stringify, (error: unknown) => {
    if (signal.aborted) return null;
    deps.logger.error({ err: error, run_id: run.id }, 'the end of a run could not be told');
    return JSON.stringify(failed({ code: 'INTERNAL', message: 'The server failed to read the result.' }));
  });
  for (;;) {
    const text = await within(BLANK_EVERY_MS, ending);
    if (text === null) return;
    yield text ?? '\n';
    if (text !== undefined) return;
  }
}

/** undefined when the time is over first. */
async function within<T>(ms: number, promise: Promise<T>): Promise<T | undefined> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<undefined>((resolve) => {
    timer = setTimeout(() => resolve(undefined), ms);
  });
  try {
    return await Promise.race([promise, late]);
  } finally {
    clearTimeout(timer);
  }
}

/** What the run left: the state's values, with what it asks; or how it failed. */
async function ended({ runs, states }: LangGraphDeps, run: Run, signal: AbortSignal): Promise<Json> {
  try {
    const end = await runs.wait(run.owner, run.id, signal);
    if (end.error !== null) return failed(end.error);
    const { values } = await states.leftBy(run);
    if (end.status !== 'interrupted') return filled(values);
    const asked = filled(end.interrupts as unknown as Json);
    return { ...(filled(values) as JsonObject), __interrupt__: asked };
  } catch (error) {
    if (!(error instanceof RunledgerError) || !GONE.has(error.code)) throw error;
    return failed({ code: 'RunRolledBack', message: 'The run is gone: it was rolled back, or deleted.' });
  }
}

/** Of a run that there is no more, or whose thread there is no more. */
const GONE = new Set<RunledgerError['code']>(['RUN_NOT_FOUND', 'THREAD_NOT_FOUND']);

/** Clients read the message as JSON of its own. */
function failed(error: Parameters<typeof errorData>[0]): JsonObject {
  return { __error__: { error: 'Error', message: JSON.stringify(errorData(error)) } };
}
