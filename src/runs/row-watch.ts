/** Looks at rows on behalf of many readers: however many ask about a run, it is read at most once in `MIN_AGE_MS`. */
import type { Pool } from '#src/postgres/pool.ts';
import { findRun } from './queries.ts';
import type { Run } from './run.ts';

const MIN_AGE_MS = 500;

export interface RowWatch {
  /** The row as it was at most 500 ms ago; null when it is gone. Rejects with what Postgres throws. */
  look(runId: string): Promise<Run | null>;
}

export function createRowWatch(pool: Pool): RowWatch {
  const looks = new Map<string, Promise<Run | null>>();
  return {
    look(runId) {
      const recent = looks.get(runId);
      if (recent !== undefined) return recent;
      const look = findRun(pool, runId);
      looks.set(runId, look);
      const forget = (): void => {
        setTimeout(() => looks.delete(runId), MIN_AGE_MS).unref();
      };
      look.then(forget, () => looks.delete(runId));
      return look;
    },
  };
}
