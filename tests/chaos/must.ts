/** Expectations of scenarios: violated ones are errors that say what was seen. */

/** @throws Error with the sentence when the condition does not hold */
export function must(condition: boolean, sentence: string): asserts condition {
  if (!condition) throw new Error(sentence);
}

/** @throws Error naming both when they differ as JSON */
export function mustEqual(what: string, seen: unknown, expected: unknown): void {
  const [left, right] = [JSON.stringify(seen), JSON.stringify(expected)];
  must(left === right, `${what}: ${cut(left)}, expected ${cut(right)}`);
}

/** A 500 is no answer to a service that is away or busy. @throws Error when there is one among the statuses */
export function mustNotFault(statuses: readonly number[]): void {
  must(!statuses.includes(500), `a request was answered with 500 (${statuses.join(', ')})`);
}

function cut(text: string | undefined): string {
  return (text ?? 'undefined').slice(0, 600);
}
