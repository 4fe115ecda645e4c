/**
 * Delivers what is due in the outbox. Every process may run one: a delivery belongs to the process that took it until its
 * lease runs out, and its outcome is stored only while it still does. One slow target holds up nothing but its own lane.
 */
import type { Logger } from 'pino';
import type { Pool } from '#src/postgres/pool.ts';
import { isUnavailable } from '#src/postgres/sqlstate.ts';
import { backoffMs, type Delivery, type Settlement, settle, takeDue } from './outbox.ts';

/** retry: may work later; dead: will not. `error` is shown to the owner, so it holds no text of the target's. */
export type DeliveryResult =
  | { outcome: 'delivered' }
  | { outcome: 'retry'; error: string }
  | { outcome: 'dead'; error: string };

/**
 * Delivers one effect. It must end within `leaseMs` of the drain, and soon after `signal` aborts. What it throws is a
 * fault of ours: logged, and tried again.
 */
export type DeliveryHandler = (delivery: Delivery, signal: AbortSignal) => Promise<DeliveryResult>;

export interface DrainDeps {
  pool: Pool;
  /** By kind. Kinds without a handler here are left to processes that have one. */
  handlers: { readonly [kind: string]: DeliveryHandler };
  /** How often to look without being poked. */
  intervalMs: number;
  /** Deliveries at a time in this process, and of one lane. */
  concurrency: number;
  perLane: number;
  /** How long a delivery may take before another process takes it over. */
  leaseMs: number;
  /** Tries before an effect is given up. */
  maxAttempts: number;
  logger: Logger;
}

export interface Drain {
  start(): void;
  /** Something may be due: looks now. */
  poke(): void;
  /**
   * Takes nothing more and waits for the deliveries in flight; those that have not ended after `graceMs` are cut short
   * and left to other processes.
   */
  stop(graceMs?: number): Promise<void>;
}

const STOP_GRACE_MS = 5_000;
/** For handlers to notice that they were cut short, and for that to be stored. */
const CUT_GRACE_MS = 2_000;

export function createDrain(deps: DrainDeps): Drain {
  const { pool, logger } = deps;
  const kinds = Object.keys(deps.handlers);
  const busy = new Map<string, number>();
  const inFlight = new Set<Promise<void>>();
  const cut = new AbortController();
  let timer: NodeJS.Timeout | undefined;
  let looking: Promise<void> | null = null;
  let again = false;
  /** The last look may have left something behind for want of room: the end of a delivery is a reason to look again. */
  let more = false;
  let stopped = false;

  /** One look at a time; a poke during one repeats it. */
  function poke(): void {
    if (stopped || kinds.length === 0) return;
    if (looking !== null) {
      again = true;
      return;
    }
    clearTimeout(timer);
    again = false;
    looking = look()
      .catch((error: unknown) => {
        logger[isUnavailable(error) ? 'debug' : 'error']({ err: error }, 'outbox not read; the next look tries again');
      })
      .finally(() => {
        looking = null;
        if (again) poke();
        else if (!stopped) timer = setTimeout(poke, deps.intervalMs);
      });
  }

  async function look(): Promise<void> {
    const limit = deps.concurrency - inFlight.size;
    if (limit === 0) return;
    const { perLane, leaseMs } = deps;
    const taken = await takeDue(pool, { kinds, limit, perLane, busy, leaseMs });
    for (const delivery of taken) launch(delivery);
    more = taken.length === limit || [...busy.values()].some((deliveries) => deliveries >= perLane);
  }

  function launch(delivery: Delivery): void {
    const { lane } = delivery;
    busy.set(lane, (busy.get(lane) ?? 0) + 1);
    const work = deliver(delivery).finally(() => {
      inFlight.delete(work);
      const left = (busy.get(lane) ?? 1) - 1;
      if (left === 0) busy.delete(lane);
      else busy.set(lane, left);
      // What ends during a look may have made room that the look did not see.
      if (more || looking !== null) poke();
    });
    inFlight.add(work);
  }

  async function deliver(delivery: Delivery): Promise<void> {
    const startedAtMs = performance.now();
    const settlement = settlementOf(delivery, await attempt(delivery));
    const facts = {
      deliveryId: delivery.id,
      kind: delivery.kind,
      runId: delivery.run_id,
      attempts: delivery.attempts,
      durationMs: Math.round(performance.now() - startedAtMs),
      ...settlement,
    };
    try {
      if (await settle(pool, delivery, settlement)) {
        logger[settlement.outcome === 'dead' ? 'warn' : 'info'](facts, 'effect settled');
      } else {
        logger.warn(facts, 'effect not settled: its lease had run out and another process took it');
      }
    } catch (error) {
      logger.warn({ ...facts, err: error }, 'effect not settled; it is delivered again when its lease has run out');
    }
  }

  async function attempt(delivery: Delivery): Promise<DeliveryResult> {
    const handler = deps.handlers[delivery.kind];
    try {
      if (handler === undefined) throw new Error(`took an effect of kind ${delivery.kind} without a handler`);
      return await handler(delivery, cut.signal);
    } catch (error) {
      logger.error({ err: error, deliveryId: delivery.id, kind: delivery.kind }, 'delivery failed inside this server');
      return { outcome: 'retry', error: 'the server failed to deliver it' };
    }
  }

  function settlementOf({ attempt: number }: Delivery, result: DeliveryResult): Settlement {
    if (result.outcome !== 'retry') return result;
    if (cut.signal.aborted) return { outcome: 'released' };
    if (number >= deps.maxAttempts) return { outcome: 'dead', error: result.error };
    return { outcome: 'retry', error: result.error, delayMs: backoffMs(number) };
  }

  return {
    start: poke,
    poke,
    async stop(graceMs = STOP_GRACE_MS) {
      stopped = true;
      clearTimeout(timer);
      await looking;
      if (await endedWithin(inFlight, graceMs)) return;
      cut.abort();
      if (!(await endedWithin(inFlight, CUT_GRACE_MS))) {
        logger.warn(
          { deliveries: inFlight.size },
          'deliveries did not end; others take them when their leases run out',
        );
      }
    },
  };
}

async function endedWithin(work: ReadonlySet<Promise<void>>, limitMs: number): Promise<boolean> {
  if (work.size === 0) return true;
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<false>((resolve) => {
    timer = setTimeout(() => resolve(false), limitMs);
  });
  const ended = Promise.allSettled(work).then(() => true);
  return await Promise.race([ended, late]).finally(() => clearTimeout(timer));
}
