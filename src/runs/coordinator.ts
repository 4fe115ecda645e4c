/** The engine of a worker: claims queued runs, executes them side by side, finalizes each; and stops those it must. */
import type { Pool } from '#src/postgres/pool.ts';
import { type CarryOutDeps, type Claimed, carryOut } from './carry-out.ts';
import { type ClaimedRun, claim } from './claim.ts';
import { handBack } from './put-back.ts';
import { Stop } from './stop.ts';
import type { OwnedRun } from './worker.ts';

/** How often the queue is looked at without any hint. */
const POLL_MS = 1_000;
const AFTER_AN_END_MS = 20;
/** How long stopped executions may take to close before the process goes; what is left is recovered by a peer. */
const CLOSE_MS = 5_000;
/** A longer timer would fire at once. */
const LONGEST_TIMER_MS = 2 ** 31 - 1;

export interface Coordinator {
  start(): void;
  /** A run may be claimable. During a claim it repeats the claim. */
  poke(): void;
  /** Whether this worker would take another run now. */
  hasRoom(): boolean;
  /** Nothing more is claimed; what runs goes on. */
  stopClaiming(): void;
  /** What the ledger said at a renewal sent at `sentAtMs`: runs not in it are lost, runs in it may be asked to stop. */
  reconcile(owned: OwnedRun[], sentAtMs: number): void;
  /** Executing runs. */
  readonly running: number;
  /**
   * Claims nothing more, and lets what runs end. After `timeoutMs` the rest is stopped and handed back, so that another
   * worker goes on with it. Resolves when nothing of this worker runs any more.
   */
  drain(timeoutMs: number): Promise<void>;
}

export interface CoordinatorDeps extends CarryOutDeps {
  workerId: string;
  pool: Pool;
  concurrency: number;
  runTimeoutMs: number;
  /** Whether peers take this worker for alive; nothing is claimed otherwise. */
  present: () => boolean;
}

interface Active extends Claimed {
  claimedAtMs: number;
}

export function createCoordinator(deps: CoordinatorDeps): Coordinator {
  const { logger } = deps;
  const active = new Map<string, Active>();
  const idle: (() => void)[] = [];
  let strays = new Map<string, { epoch: number; claims: number }>();
  let stopping = false;
  let claiming = false;
  /** Claims that have been answered, well or not. */
  let claims = 0;
  let lastClaim: Promise<void> = Promise.resolve();
  let again = false;
  let poll: NodeJS.Timeout | undefined;
  let afterAnEnd: NodeJS.Timeout | undefined;

  function poke(): void {
    if (stopping) return;
    if (claiming) {
      again = true;
      return;
    }
    claiming = true;
    clearTimeout(poll);
    lastClaim = claimWhileThereIsWork()
      .catch((error: unknown) => logger.warn({ err: error }, 'claim failed; the next poll tries again'))
      .finally(() => {
        claiming = false;
        if (stopping) return;
        poll = setTimeout(poke, again ? 0 : POLL_MS);
        again = false;
      });
  }

  function pokeAfterAnEnd(): void {
    afterAnEnd ??= setTimeout(() => {
      afterAnEnd = undefined;
      poke();
    }, AFTER_AN_END_MS);
  }

  async function claimWhileThereIsWork(): Promise<void> {
    for (;;) {
      again = false;
      const room = deps.concurrency - active.size;
      if (room <= 0 || stopping || !deps.present()) return;
      const runs = await claim(deps.pool, deps.workerId, room, (error) =>
        logger.error({ err: error }, 'a claim was refused; others went through'),
      ).finally(() => {
        claims += 1;
      });
      for (const run of runs) begin(run);
      if (runs.length < room && !again) return;
    }
  }

  function begin(run: ClaimedRun): void {
    const entry: Active = { run, abort: new AbortController(), claimedAtMs: performance.now() };
    // Put back by a peer and claimed again here, while our former execution of it still winds down: that one is over.
    active.get(run.id)?.abort.abort(new Stop('lost'));
    active.set(run.id, entry);
    logger.info({ runId: run.id, threadId: run.thread_id, epoch: run.epoch }, 'run claimed');
    const leftMs = Math.min(Math.max(deps.runTimeoutMs - run.age_ms, 0), LONGEST_TIMER_MS);
    const timer = setTimeout(() => entry.abort.abort(new Stop('timeout')), leftMs);
    carryOut(deps, entry)
      .catch((error: unknown) => logger.error({ err: error, runId: run.id }, 'run not carried out'))
      .finally(() => {
        clearTimeout(timer);
        const wasFull = active.size >= deps.concurrency;
        if (active.get(run.id) === entry) active.delete(run.id);
        if (active.size === 0) for (const resolve of idle.splice(0)) resolve();
        // Only a full worker is known to be waited for; for what waits behind this run's thread, ends that come together
        // share a claim.
        if (wasFull) poke();
        else pokeAfterAnEnd();
      });
  }

  /**
   * Runs the ledger says are ours but nothing here executes: the answer to a claim was lost, or an end could not be
   * stored. Seen at two renewals in a row, and not while the answer to a claim may be on its way: two renewals can follow
   * each other at once.
   */
  function returnStrays(owned: OwnedRun[]): void {
    const seen = strays;
    strays = new Map();
    for (const { id, epoch } of owned) {
      if (active.has(id)) continue;
      const before = seen.get(id);
      const known = before?.epoch === epoch;
      strays.set(id, known ? before : { epoch, claims });
      if (!known || (claiming && before.claims === claims)) continue;
      logger.warn({ runId: id, epoch }, 'own run that is not executed; handing it back');
      handBack(deps.putBack, { id, epoch })
        .then((run) => run !== null && deps.onHandedBack())
        .catch((error: unknown) =>
          logger.warn({ err: error, runId: id }, 'not handed back; the next renewal tries again'),
        );
    }
  }

  function stopClaiming(): void {
    stopping = true;
    clearTimeout(poll);
    clearTimeout(afterAnEnd);
  }

  function untilIdle(timeoutMs: number): Promise<void> {
    if (active.size === 0) return Promise.resolve();
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, timeoutMs);
      idle.push(() => {
        clearTimeout(timer);
        resolve();
      });
    });
  }

  return {
    start: poke,
    poke,
    hasRoom: () => !stopping && active.size < deps.concurrency && deps.present(),
    reconcile(owned, sentAtMs) {
      const ledger = new Map(owned.map((run) => [run.id, run]));
      for (const { run, abort, claimedAtMs } of active.values()) {
        const known = ledger.get(run.id);
        if (known?.epoch === run.epoch) {
          if (known.cancel_requested) abort.abort(new Stop('cancel'));
        } else if (claimedAtMs < sentAtMs) {
          abort.abort(new Stop('lost'));
        }
      }
      returnStrays(owned);
    },
    get running() {
      return active.size;
    },
    stopClaiming,
    async drain(timeoutMs) {
      stopClaiming();
      await lastClaim;
      await untilIdle(timeoutMs);
      for (const entry of active.values()) entry.abort.abort(new Stop('drain'));
      await untilIdle(CLOSE_MS);
    },
  };
}
