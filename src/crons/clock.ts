/** Looks at the schedule: every worker does, and fires what is due. Which of them gets a slot is decided in Postgres. */
import { isUnavailable } from '#src/postgres/sqlstate.ts';
import { type FireDeps, type Fired, fire } from './fire.ts';
import { type DueCron, msToNextSlot, selectDue } from './queries.ts';

/** A cron made on another process is seen within this time. */
const POLL_MS = 1_000;
const BATCH = 100;
/** Slots fired at a time: each holds a connection while its run is admitted. */
const AT_ONCE = 4;

export interface CronClock {
  start(): void;
  /** Fires what is due now. Returns how many slots were fired here. */
  tick(): Promise<number>;
  /** Slots by what became of them here, since the start. */
  readonly counts: ReadonlyMap<Fired, number>;
  /** Fires nothing more, and waits for what is being fired. */
  stop(): Promise<void>;
}

/** How the slots ended here, for /metrics. */
export function cronReading({ counts }: Pick<CronClock, 'counts'>) {
  return {
    name: 'runledger_cron_slots_total',
    help: 'Slots of crons that came up on this process, by what became of them.',
    kind: 'counter' as const,
    labels: ['outcome'],
    read: () => [...counts].map(([outcome, value]) => ({ value, labels: { outcome } })),
  };
}

export function createCronClock(deps: FireDeps): CronClock {
  const { pool, logger } = deps;
  const counts = new Map<Fired, number>();
  let timer: NodeJS.Timeout | undefined;
  let ticking: Promise<unknown> = Promise.resolve();
  let stopped = false;

  async function tick(): Promise<number> {
    let fired = 0;
    for (;;) {
      const due = await selectDue(pool, BATCH);
      const ends = await fireAll(due);
      fired += ends.filter((end) => end === 'fired').length;
      // A full batch of which some were dealt with here: there may be more behind it.
      const settled = ends.some((end) => end !== 'postponed' && end !== 'lost');
      if (stopped || due.length < BATCH || !settled) return fired;
    }
  }

  async function fireAll(due: DueCron[]): Promise<Fired[]> {
    const left = due.values();
    const ends: Fired[] = [];
    const one = async (): Promise<void> => {
      for (const cron of left) {
        if (stopped) return;
        const end = await fire(deps, cron);
        counts.set(end, (counts.get(end) ?? 0) + 1);
        ends.push(end);
      }
    };
    await Promise.all(Array.from({ length: AT_ONCE }, one));
    return ends;
  }

  async function lookAndWait(): Promise<void> {
    let waitMs = POLL_MS;
    try {
      await tick();
      const nextMs = await msToNextSlot(pool);
      // One that is still due was postponed, or is another worker's at this moment.
      if (nextMs !== null && nextMs > 0) waitMs = Math.min(POLL_MS, nextMs);
    } catch (error) {
      logger[isUnavailable(error) ? 'debug' : 'error']({ err: error }, 'crons not looked at; the next look does');
    }
    schedule(waitMs);
  }

  function schedule(waitMs: number): void {
    if (stopped) return;
    timer = setTimeout(() => {
      ticking = lookAndWait();
    }, waitMs);
  }

  return {
    start: () => schedule(0),
    tick,
    counts,
    async stop() {
      stopped = true;
      clearTimeout(timer);
      await ticking;
    },
  };
}
