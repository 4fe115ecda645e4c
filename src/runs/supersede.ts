/** prepared -> cancelled: something else was admitted on the thread, or the thread is deleted. */
import { type FinalizeDeps, finalize } from './finalize.ts';
import { emptyOutcome } from './outcome.ts';

/**
 * Ends prepared runs. None of them can be started meanwhile: what was admitted after it keeps a run from that.
 * What fails is logged and left to the sweep.
 */
export async function supersede(deps: FinalizeDeps, runIds: string[]): Promise<void> {
  for (const runId of runIds) {
    try {
      // A prepared run has had no owner.
      const by = { owner: false, epoch: 0, status: 'prepared' } as const;
      await finalize(deps, runId, by, emptyOutcome('cancelled', { reason: 'SUPERSEDED' }));
    } catch (error) {
      deps.logger.warn({ err: error, runId }, 'prepared run not cancelled; the sweep does it');
    }
  }
}
