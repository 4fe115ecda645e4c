/** How work is offered: so many at a time until so many are done; and what is asked. */

export interface Load<T> {
  /** From the first start to the last end. */
  wallMs: number;
  results: T[];
}

/** @throws the first failure */
export async function atATime<T>(
  count: number,
  concurrency: number,
  work: (index: number) => Promise<T>,
): Promise<Load<T>> {
  const results: T[] = [];
  let next = 0;
  const startMs = performance.now();
  async function loop(): Promise<void> {
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
