/**
 * An HTTP app of the operator, whose routes come before ours and whose middleware is around them: a Hono app, or anything with a
 * `fetch`. We need no Hono of our own: the app is put into another of its own kind.
 */
import { pathToFileURL } from 'node:url';

/** The app cannot be used; for the person who starts the server. */
export class UserAppError extends Error {
  override readonly name = 'UserAppError';
}

/** Goes on to our own routes. `body`: what the request's body is by now, when somebody has read it; null when it is untouched. */
export type GoOn = (request: Request, body: Uint8Array | null) => Promise<Response>;

/** Answers the request, or has our own routes answer it. @throws what the app throws */
export type UserApp = (request: Request, goOn: GoOn) => Promise<Response>;

interface HonoContext {
  env: object;
  req: { raw: Request; bodyCache?: object; arrayBuffer(): Promise<ArrayBuffer> };
}
interface HonoApp {
  fetch(request: Request, env?: object): Response | Promise<Response>;
  route(path: string, app: HonoApp): unknown;
  all(path: string, handler: (context: HonoContext) => Promise<Response>): unknown;
}

/** @throws UserAppError when it cannot be loaded, or its export has no `fetch` */
export async function loadUserApp({ file, exportName }: { file: string; exportName: string }): Promise<UserApp> {
  let module: { [name: string]: unknown };
  try {
    module = await import(pathToFileURL(file).href);
  } catch (error) {
    throw new UserAppError(`http.app: the module ${file} could not be loaded`, { cause: error });
  }
  const app = module[exportName];
  if (isHono(app)) return aroundOurs(app);
  if (hasFetch(app)) return beforeOurs(app);
  throw new UserAppError(`http.app: the export "${exportName}" of ${file} is neither a Hono app nor has it a fetch`);
}

function hasFetch(app: unknown): app is Pick<HonoApp, 'fetch'> {
  const type = typeof app;
  return (
    (type === 'object' || type === 'function') &&
    app !== null &&
    typeof Reflect.get(app as object, 'fetch') === 'function'
  );
}

function isHono(app: unknown): app is HonoApp {
  return (
    hasFetch(app) && typeof Reflect.get(app, 'route') === 'function' && typeof Reflect.get(app, 'all') === 'function'
  );
}

/** Middleware of the app calls `next()`, and comes to our routes: they are the last of the same app. Its notFound never answers. */
function aroundOurs(app: HonoApp): UserApp {
  const Hono = app.constructor as new () => HonoApp;
  const whole = new Hono();
  const underWay = new WeakMap<object, { request: Request; goOn: GoOn }>();
  whole.route('/', app);
  whole.all('*', async (context) => {
    const { req, env } = context;
    const found = underWay.get(env);
    if (found === undefined) throw new Error('a request lost its way through an app');
    // Through Hono: middleware may have read the body, changed what it read, or put another request in its place.
    const isRead = req.raw !== found.request || req.raw.bodyUsed || Object.keys(req.bodyCache ?? {}).length > 0;
    return found.goOn(req.raw, isRead ? new Uint8Array(await req.arrayBuffer()) : null);
  });
  return async (request, goOn) => {
    const env = {};
    underWay.set(env, { request, goOn });
    return whole.fetch(request, env);
  };
}

/** What the app does not have (404) is ours. */
function beforeOurs(app: Pick<HonoApp, 'fetch'>): UserApp {
  return async (request, goOn) => {
    const copy = request.clone();
    const answer = await app.fetch(request);
    if (answer.status !== 404) return answer;
    await answer.body?.cancel();
    return goOn(copy, request.body === null ? null : new Uint8Array(await copy.arrayBuffer()));
  };
}
