/** What a reader sees of a run: its log from a cursor, then live, to the seal; or the end from the row when the log is gone. */
import type { Logger } from 'pino';
import { RunledgerError } from '#src/errors.ts';
import { BEFORE_START, type Cursor, epochOf } from '#src/events/cursor.ts';
import type { Hub, Viewer } from '#src/events/hub.ts';
import type { EventLog } from '#src/events/log.ts';
import { sealOf } from './outcome.ts';
import type { RowWatch } from './row-watch.ts';
import { type Followed, isTerminal, type Run } from './run.ts';
import type { RunEnd } from './run-end.ts';

export interface FollowDeps {
  log: EventLog;
  hub: Hub;
  rows: RowWatch;
  logger: Logger;
}

/** A silent log is checked against the row this often. */
const IDLE_MS = 1_000;
/** How long a reader waits for the seal of a run whose row is terminal, before it ends from the row. */
const SEAL_WAIT_MS = 2_000;
/** A run that ended less than this long ago and has no log may be one whose seal, its only event, is on its way. */
const JUST_ENDED_MS = 5_000;

/**
 * Whether the run's stream can begin: always while the run lives; when it has ended, only if its log is still there.
 * A log that cannot be asked (Redis is away) is not a log that is gone: the stream begins and ends from the row.
 * @throws STREAM_EXPIRED {status}
 */
export async function assertReplayable(deps: Pick<FollowDeps, 'log' | 'rows' | 'logger'>, run: Run): Promise<void> {
  if (!isTerminal(run.status)) return;
  let last: Awaited<ReturnType<EventLog['last']>>;
  try {
    last = await deps.log.last(run.id);
  } catch (error) {
    deps.logger.warn({ err: error, runId: run.id }, 'log not readable; the stream will end from the row');
    return;
  }
  if (last !== null || (await deps.rows.endedWithin(run.id, JUST_ENDED_MS))) return;
  throw new RunledgerError('STREAM_EXPIRED', 'The events of this run are no longer kept; read the thread instead.', {
    details: { run_id: run.id, status: run.status },
  });
}

/**
 * Yields what comes after `after`, in order, and ends after `run.sealed`. Says `resync` where the log has a hole.
 * Readers never append: when the row is terminal and the seal is missing they wait 2 s, say resync, and end from the row.
 */
export async function* follow(
  deps: FollowDeps,
  run: Run,
  after: Cursor,
  signal: AbortSignal,
): AsyncGenerator<Followed, void, void> {
  if (run.log_end !== null && after >= run.log_end) {
    // The seal has been seen: there is no more. A cursor beyond it is none of this run's.
    if (after > run.log_end) yield* endFromRow(run);
    return;
  }
  let from = after;
  if (after !== BEFORE_START && epochOf(after) > run.epoch) {
    // No such epoch has begun, so no event can have had that id. The reader goes on after what there is.
    yield { kind: 'resync' };
    from = await endOf(deps, run.id, after);
  }
  // The row's epoch is the floor: what an older owner still publishes is none of this run's any more.
  const viewer = await deps.hub.attach(run.id, from, { floorEpoch: run.epoch });
  try {
    yield* untilSealed(deps, run, viewer, signal);
  } finally {
    viewer.close();
  }
}

async function* untilSealed(
  deps: FollowDeps,
  run: Run,
  viewer: Viewer,
  signal: AbortSignal,
): AsyncGenerator<Followed, void, void> {
  let terminalSinceMs: number | null = null;
  while (!signal.aborted) {
    const items = await viewer.next(IDLE_MS, signal);
    for (const item of items) {
      if (item.kind === 'entry') {
        yield { kind: 'event', ...item.entry, entry: item.entry };
        if (item.entry.event.type === 'run.sealed') return;
      } else {
        yield { kind: 'resync' };
      }
    }
    const lost = items.some((item) => item.kind === 'lost');
    if (items.length > 0 && !lost) {
      terminalSinceMs = null;
      continue;
    }
    if (signal.aborted) return;
    const row = await lookQuietly(deps, run.id);
    if (row === undefined) continue;
    if (row === null) return;
    if (!isTerminal(row.status) || row.log_end === null) continue;
    terminalSinceMs ??= performance.now();
    if (!lost && performance.now() - terminalSinceMs < SEAL_WAIT_MS) continue;
    yield* endFromRow(row, { resync: !lost });
    return;
  }
}

/** Where the log ends; when it cannot be asked, `otherwise`: the hub then turns the reader back once it can. */
async function endOf(deps: FollowDeps, runId: string, otherwise: Cursor): Promise<Cursor> {
  try {
    return (await deps.log.last(runId))?.cursor ?? BEFORE_START;
  } catch (error) {
    deps.logger.warn({ err: error, runId }, 'end of the log not readable for a reader with a cursor of the future');
    return otherwise;
  }
}

function* endFromRow(run: RunEnd, { resync } = { resync: true }): Generator<Followed, void, void> {
  if (resync) yield { kind: 'resync' };
  const event = sealOf(run);
  yield { kind: 'event', cursor: run.log_end ?? BEFORE_START, event, head: null, entry: event };
}

/** undefined: Postgres cannot say now. */
async function lookQuietly(deps: FollowDeps, runId: string): Promise<RunEnd | null | undefined> {
  try {
    return await deps.rows.look(runId);
  } catch (error) {
    deps.logger.warn({ err: error, runId }, 'row not readable while following');
    return undefined;
  }
}
