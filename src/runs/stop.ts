/** Why an execution is stopped from outside; the abort reason its signal carries. */
export type StopKind =
  /** A person asked for it. */
  | 'cancel'
  /** Another worker owns the run now, or nobody knows: write nothing more. */
  | 'lost'
  /** The run's total time is over. */
  | 'timeout'
  /** This worker goes away: the run is handed back and goes on elsewhere. */
  | 'drain';

export class Stop extends Error {
  override readonly name = 'Stop';
  readonly kind: StopKind;

  constructor(kind: StopKind) {
    super(`execution stopped: ${kind}`);
    this.kind = kind;
  }
}

/** The kind of stop a signal carries; null while it is not aborted. */
export function stopOf(signal: AbortSignal): StopKind | null {
  if (!signal.aborted) return null;
  return signal.reason instanceof Stop ? signal.reason.kind : 'lost';
}

/** The promise, unless the signal aborts first; then the signal's reason is thrown and the promise is left alone. */
export async function orStopped<T>(promise: Promise<T>, signal: AbortSignal): Promise<T> {
  const stopped = Promise.withResolvers<never>();
  const onAbort = (): void => stopped.reject(signal.reason);
  signal.addEventListener('abort', onAbort, { once: true });
  if (signal.aborted) onAbort();
  try {
    return await Promise.race([promise, stopped.promise]);
  } finally {
    signal.removeEventListener('abort', onAbort);
    promise.catch(() => undefined);
  }
}

/** False when the signal aborted first. */
export function sleptThrough(ms: number, signal: AbortSignal): Promise<boolean> {
  return new Promise((resolve) => {
    const finish = (): void => {
      clearTimeout(timer);
      signal.removeEventListener('abort', finish);
      resolve(!signal.aborted);
    };
    const timer = setTimeout(finish, ms);
    signal.addEventListener('abort', finish, { once: true });
    if (signal.aborted) finish();
  });
}
