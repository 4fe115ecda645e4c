/** Lets a bounded number of pieces of work go on at a time; the rest wait their turn, first come, first served. */
export type Turnstile = <T>(work: () => Promise<T>) => Promise<T>;

export function createTurnstile(limit: number): Turnstile {
  const waiting: (() => void)[] = [];
  let inside = 0;
  return async (work) => {
    // Whoever leaves hands over its place, so nobody can step in between.
    if (inside < limit) inside += 1;
    else await new Promise<void>((resolve) => waiting.push(resolve));
    try {
      return await work();
    } finally {
      const next = waiting.shift();
      if (next === undefined) inside -= 1;
      else next();
    }
  };
}
