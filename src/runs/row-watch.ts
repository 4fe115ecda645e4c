/** Looks at rows on behalf of many readers: however many ask, a run is read at most once in `MIN_AGE_MS`, and many in one query. */
import type { Pool } from '#src/postgres/pool.ts';
import { endedWithin, findEnds, type RunEnd } from './run-end.ts';

const MIN_AGE_MS = 500;
/** Readers of many runs ask at about the same time; whoever asks within this is answered by the same query. */
const GATHER_MS = 20;

export interface RowWatch {
  /** The end of the run as it was at most half a second ago; null when it is gone. Rejects with what Postgres throws. */
  look(runId: string): Promise<RunEnd | null>;
  /** Whether the run ended less than this long ago, by Postgres' clock. */
  endedWithin(runId: string, ms: number): Promise<boolean>;
}

export function createRowWatch(pool: Pool): RowWatch {
  const looks = new Map<string, Promise<RunEnd | null>>();
  let gathered = new Set<string>();
  let answer: Promise<Map<string, RunEnd>> | null = null;

  /** One query for all that are asked for before it is sent. */
  function ask(runId: string): Promise<Map<string, RunEnd>> {
    gathered.add(runId);
    answer ??= new Promise((resolve, reject) => {
      setTimeout(() => {
        const runIds = [...gathered];
        gathered = new Set();
        answer = null;
        findEnds(pool, runIds).then(resolve, reject);
      }, GATHER_MS);
    });
    return answer;
  }

  return {
    look(runId) {
      const recent = looks.get(runId);
      if (recent !== undefined) return recent;
      const look = ask(runId).then((ends) => ends.get(runId) ?? null);
      looks.set(runId, look);
      const forget = (): void => {
        setTimeout(() => looks.delete(runId), MIN_AGE_MS).unref();
      };
      look.then(forget, () => looks.delete(runId));
      return look;
    },
    endedWithin: (runId, ms) => endedWithin(pool, runId, ms),
  };
}
