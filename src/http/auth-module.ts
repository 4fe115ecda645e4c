/**
 * Code of the operator that says who asks and what they may do: a module that exports an `Auth` of `@langchain/langgraph-sdk/auth`.
 * Its user's identity is the owner, so whatever its filters say, nobody sees what is another's.
 */
import { pathToFileURL } from 'node:url';
import type { FastifyBaseLogger, FastifyRequest } from 'fastify';
import { RunledgerError } from '#src/errors.ts';
import { type AuthEvent, type AuthUser, compiledFilter, type ResourceFilter, sentAway } from './access.ts';
import type { Authenticate, Principal } from './auth.ts';

/** The module cannot be used; for the person who starts the server. */
export class AuthModuleError extends Error {
  override readonly name = 'AuthModuleError';
}

export interface AuthModuleOptions {
  /** Absolute path of the module. */
  file: string;
  exportName: string;
  /** Whoever sends `x-auth-scheme: langsmith` is Studio's user, unchecked. */
  studio: boolean;
}

type Handler = (context: object) => unknown;
interface Handlers {
  authenticate?: (request: Request) => unknown;
  callbacks?: { [event: string]: Handler };
}

const STUDIO: AuthUser = {
  kind: 'StudioUser',
  identity: 'langgraph-studio-user',
  display_name: 'langgraph-studio-user',
  permissions: [],
  is_authenticated: true,
};

/** Owners are stored and logged: no control characters, and a length an index can take. */
const IDENTITY = /^[^\p{Cc}]{1,256}$/u;

/**
 * Loads the module.
 * @throws AuthModuleError when it cannot be loaded, or its export is no `Auth` with `authenticate`
 */
export async function loadAuthModule(options: AuthModuleOptions, logger: FastifyBaseLogger): Promise<Authenticate> {
  const handlers = await handlersOf(options);
  const { authenticate } = handlers;
  if (authenticate === undefined) throw new AuthModuleError(`auth: ${options.file} has no authenticate handler`);
  return async (headers, seen) => {
    if (options.studio && headers['x-auth-scheme'] === 'langsmith') return principalOf(STUDIO, handlers, logger);
    const user = await asked(() => authenticate(requestOf(headers, seen)), 'Unauthorized');
    return principalOf(userOf(user), handlers, logger);
  };
}

async function handlersOf({ file, exportName }: AuthModuleOptions): Promise<Handlers> {
  let module: { [name: string]: unknown };
  try {
    module = await import(pathToFileURL(file).href);
  } catch (error) {
    throw new AuthModuleError(`auth: the module ${file} could not be loaded`, { cause: error });
  }
  const found = module[exportName];
  // The SDK's own mark; also there on an Auth of another copy of the SDK.
  if (typeof found === 'object' && found !== null && '~handlerCache' in found)
    return found['~handlerCache'] as Handlers;
  throw new AuthModuleError(`auth: the export "${exportName}" of ${file} is no Auth of @langchain/langgraph-sdk/auth`);
}

/** The request without its body: who asks is decided before anybody unknown can make the server hold one. */
function requestOf(headers: FastifyRequest['headers'], { method, url }: { method: string; url: string }): Request {
  const init = new Headers();
  for (const [name, value] of Object.entries(headers)) {
    for (const one of Array.isArray(value) ? value : [value]) if (one !== undefined) init.append(name, one);
  }
  const whole = `http://${headers.host}${url}`;
  return new Request(URL.canParse(whole) ? whole : new URL(url, 'http://localhost'), { method, headers: init });
}

function principalOf(user: AuthUser, handlers: Handlers, logger: FastifyBaseLogger): Principal {
  return {
    owner: user.identity,
    access: { user, authorize: (event, value) => authorized(handlers, user, event, value, logger) },
  };
}

/** A name, or an object that has one. @throws TypeError for what is neither */
function userOf(answer: unknown): AuthUser {
  const given = typeof answer === 'string' ? { identity: answer } : answer;
  if (typeof given !== 'object' || given === null) throw new TypeError('the authenticate handler named no user');
  const { identity, permissions, is_authenticated, display_name, ...more } = given as { [field: string]: unknown };
  if (typeof identity !== 'string' || !IDENTITY.test(identity) || !identity.isWellFormed()) {
    throw new TypeError('the identity of a user must be 1 to 256 printable characters');
  }
  return {
    ...more,
    identity,
    permissions: Array.isArray(permissions) ? permissions.map(String) : [],
    is_authenticated: is_authenticated !== false,
    display_name: typeof display_name === 'string' ? display_name : identity,
  };
}

/** Exactly one handler answers: the most exact there is for the event. Without one everything of the user's own is allowed. */
async function authorized(
  { callbacks = {} }: Handlers,
  user: AuthUser,
  event: AuthEvent,
  value: { [field: string]: unknown },
  logger: FastifyBaseLogger,
): Promise<ResourceFilter> {
  const [resource = '', action = ''] = event.split(':');
  const handler = callbacks[event] ?? callbacks[resource] ?? callbacks[`*:${action}`] ?? callbacks['*'];
  if (handler === undefined) return [];
  const context = { event, resource, action, value, user, permissions: user.permissions };
  const answer = await asked(() => handler(context), 'Forbidden');
  if (answer === true || answer === null || answer === undefined) return [];
  if (answer === false) throw sentAway(403, '', {});
  if (typeof answer === 'object' && !Array.isArray(answer)) return compiledFilter(answer);
  logger.error({ event }, 'an auth handler answered with what is neither a boolean nor filters; refused');
  throw new RunledgerError('INTERNAL', 'An auth handler did not answer.');
}

/** @throws RunledgerError for the SDK's HTTPException: what it says is meant for the client. Anything else is a fault of the module. */
async function asked(question: () => unknown, fallback: string): Promise<unknown> {
  try {
    return await question();
  } catch (error) {
    if (!(error instanceof Error) || error.constructor.name !== 'HTTPException') throw error;
    if (!('status' in error) || !('headers' in error)) throw error;
    const { status } = error;
    if (typeof status !== 'number' || !Number.isInteger(status) || status < 400 || status > 599) throw error;
    const { message } = error;
    const headers = Object.fromEntries(new Headers(error.headers as { [name: string]: string }));
    throw sentAway(status, message === '' ? fallback : message, headers);
  }
}
