/** A gate in front of a resource: once closed it refuses new calls and waits for those in flight. */
export interface CallGate {
  /** Runs `work` unless the gate is closed. @throws what `refusal` makes */
  pass<T>(work: () => Promise<T>): Promise<T>;
  /** Closes the gate; resolves when the calls in flight have ended, well or not. Can be called again. */
  close(): Promise<void>;
}

export function createCallGate(refusal: () => Error): CallGate {
  const inFlight = new Set<Promise<unknown>>();
  let closed = false;
  return {
    async pass(work) {
      if (closed) throw refusal();
      const call = work();
      inFlight.add(call);
      try {
        return await call;
      } finally {
        inFlight.delete(call);
      }
    },
    async close() {
      closed = true;
      await Promise.allSettled(inFlight);
    },
  };
}
