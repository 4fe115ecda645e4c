/** /livez: the process answers. /readyz: it can serve. Neither needs authentication, and neither says why. */
import type { FastifyBaseLogger, FastifyInstance } from 'fastify';

export interface HealthDeps {
  /** Resolve when the service answers; reject, or take longer than the deadline, when it does not. */
  checks: { postgres: () => Promise<unknown>; log: () => Promise<unknown> };
  /** True from the moment the process wants no more work. */
  isDraining: () => boolean;
  logger: FastifyBaseLogger;
  /** How long a check may take, in milliseconds. */
  deadlineMs?: number;
}

const DEFAULT_DEADLINE_MS = 2000;

/** Adds the two routes. 503 from /readyz tells a load balancer to send requests elsewhere; the body says what is down. */
export function registerHealth(app: FastifyInstance, deps: HealthDeps): void {
  const deadlineMs = deps.deadlineMs ?? DEFAULT_DEADLINE_MS;

  async function state(name: string, check: () => Promise<unknown>): Promise<'ok' | 'down'> {
    const late = Promise.withResolvers<never>();
    const timer = setTimeout(() => late.reject(new Error(`no answer in ${deadlineMs} ms`)), deadlineMs);
    try {
      await Promise.race([check(), late.promise]);
      return 'ok';
    } catch (error) {
      deps.logger.warn({ err: error, check: name }, 'readiness check failed');
      return 'down';
    } finally {
      clearTimeout(timer);
    }
  }

  app.get('/livez', async () => ({ status: 'ok' }));

  app.get('/readyz', async (_request, reply) => {
    const [postgres, log] = await Promise.all([state('postgres', deps.checks.postgres), state('log', deps.checks.log)]);
    const draining = deps.isDraining();
    const ready = postgres === 'ok' && log === 'ok' && !draining;
    return reply.code(ready ? 200 : 503).send({
      status: ready ? 'ready' : 'unavailable',
      checks: { postgres, log, draining },
    });
  });
}
