/** How work is offered: so many at a time until so many are done; and what is asked. */

export interface Load<T> {
  /** From the first start to the last end. */
  wallMs: number;
  results: T[];
}

/** @param staggerMs the first ones begin this long after one another. @throws the first failure */
export async function atATime<T>(
  count: number,
  concurrency: number,
  work: (index: number) => Promise<T>,
  staggerMs = 0,
): Promise<Load<T>> {
  const results: T[] = [];
  let next = 0;
  const startMs = performance.now();
  async function loop(_: unknown, place: number): Promise<void> {
    if (staggerMs > 0) await new Promise((resolve) => setTimeout(resolve, place * staggerMs));
    while (next < count) {
      const index = next;
      next += 1;
      results.push(await work(index));
    }
  }
  await Promise.all(Array.from({ length: Math.min(concurrency, count) }, loop));
  return { wallMs: performance.now() - startMs, results };
}

/** About 1 KB, as a person's message that carries some text. */
export const LONG_QUESTION = 'What is it that you would like to know about the matter at hand? '.repeat(16);
export const SHORT_QUESTION = 'Hello';
