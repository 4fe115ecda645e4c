/** What the routes of this dialect have in common. */
import type { FastifyInstance, FastifyRequest } from 'fastify';
import { z } from 'zod';
import type { AssistantService } from '#src/assistants/service.ts';
import type { CronService } from '#src/crons/service.ts';
import { RunledgerError } from '#src/errors.ts';
import type { JsonObject } from '#src/events/event.ts';
import type { Components } from '#src/http/user-components.ts';
import type { StateService } from '#src/runs/state.ts';
import type { StoreService } from '#src/store/service.ts';
import type { ThreadTtl } from '#src/threads/service.ts';
import type { DialectDeps } from '../dialect.ts';
import type { Form } from './errors.ts';
import type { HeaderRules } from './headers.ts';

export interface DisabledRoutes {
  assistants: boolean;
  threads: boolean;
  /** Crons are runs, too. */
  runs: boolean;
  store: boolean;
  /** `/ok` and `/info`. */
  meta: boolean;
}

export interface LangGraphDeps extends DialectDeps {
  assistants: AssistantService;
  states: StateService;
  store: StoreService;
  crons: CronService;
  /** For threads that clients make without saying; null: they are kept. */
  threadTtl: ThreadTtl | null;
  /** Which headers of its request a run is told of. */
  headerRules: HeaderRules;
  version: string;
  /** Of a project that has some. */
  components: Components | null;
  /** Groups of routes that are not there. */
  disabled?: DisabledRoutes | null;
  /** Empties the server; null unless it runs in test mode. */
  truncate:
    | ((what: {
        runs: boolean;
        threads: boolean;
        assistants: boolean;
        checkpointer: boolean;
        store: boolean;
      }) => Promise<void>)
    | null;
}

export type LangGraphApp = FastifyInstance;

/**
 * A part of a request as the schema reads it; what is not there counts as empty.
 * @throws RunledgerError INVALID_REQUEST {issues}
 */
export function parsed<T extends z.ZodType>(schema: T, value: unknown): z.output<T> {
  const result = schema.safeParse(value ?? {});
  if (result.success) return result.data;
  const { issues } = result.error;
  throw new RunledgerError('INVALID_REQUEST', 'The request does not fit its schema.', { details: { issues } });
}

/** What a client has said; what it left out is left out. */
export function given(fields: object): JsonObject {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined)) as JsonObject;
}

const UUID = /^[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i;
const params = z.record(z.string(), z.string());

/** A path's parameter, decoded. */
export function param(request: Pick<FastifyRequest, 'params'>, name: string): string {
  return parsed(params, request.params)[name] ?? '';
}

/** The thread's id in the path. What is no UUID names nothing: @throws RunledgerError THREAD_NOT_FOUND */
export function threadParam(request: Pick<FastifyRequest, 'params'>): string {
  const id = param(request, 'thread_id');
  if (UUID.test(id)) return id.toLowerCase();
  throw new RunledgerError('THREAD_NOT_FOUND', 'There is no such thread.', { details: { thread_id: id } });
}

/** The run's id in the path. @throws RunledgerError RUN_NOT_FOUND */
export function runParam(request: Pick<FastifyRequest, 'params'>): string {
  const id = param(request, 'run_id');
  if (UUID.test(id)) return id.toLowerCase();
  throw new RunledgerError('RUN_NOT_FOUND', 'There is no such run.');
}

/** The cron's id in the path. @throws RunledgerError CRON_NOT_FOUND */
export function cronParam(request: Pick<FastifyRequest, 'params'>): string {
  const id = param(request, 'cron_id');
  if (UUID.test(id)) return id.toLowerCase();
  throw new RunledgerError('CRON_NOT_FOUND', 'Cron not found');
}

/** Whether it is an assistant's own id, and not that of a graph. */
export function isUuid(id: string): boolean {
  return UUID.test(id);
}

/** What `work` gives; what is wrong with a field that it names is told as the schema would tell it. */
export async function naming<T>(work: () => Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (error) {
    if (!(error instanceof RunledgerError) || error.code !== 'INVALID_REQUEST' || error.path === undefined) throw error;
    const issues = [{ code: 'custom', path: error.path.split('.'), message: error.message }];
    throw new RunledgerError('INVALID_REQUEST', error.message, { path: error.path, details: { issues }, cause: error });
  }
}

/** What `work` gives; a refusal with one of these codes is answered in another form, or names the thread. */
export async function answering<T>(
  work: () => T | Promise<T>,
  forms: { threadId?: string; of?: { [code in RunledgerError['code']]?: Form } },
): Promise<T> {
  try {
    return await work();
  } catch (error) {
    if (!(error instanceof RunledgerError)) throw error;
    const form = forms.of?.[error.code];
    const details = {
      ...error.details,
      ...(form === undefined ? {} : { form }),
      ...(forms.threadId === undefined ? {} : { thread_id: forms.threadId }),
    };
    throw new RunledgerError(error.code, error.message, {
      details,
      cause: error.cause,
      ...(error.path === undefined ? {} : { path: error.path }),
    });
  }
}
