/**
 * Waits for a condition instead of sleeping. Polls every 10 ms; a truthy result ends the wait and is returned.
 * @param options.timeoutMs 10 s by default
 * @param options.message what was waited for, in words; it and the last failure are in the error
 * @throws Error when the time is over. A condition that throws counts as not yet true.
 */
export async function until<T>(
  condition: () => T | Promise<T>,
  options: { timeoutMs?: number; message: string },
): Promise<Exclude<T, false | null | undefined | 0 | ''>> {
  const timeoutMs = options.timeoutMs ?? 10_000;
  const deadline = performance.now() + timeoutMs;
  let last: unknown;
  for (;;) {
    try {
      last = await condition();
      if (last) return last as Exclude<T, false | null | undefined | 0 | ''>;
    } catch (error) {
      last = error;
    }
    if (performance.now() >= deadline) break;
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
  throw new Error(`waited ${timeoutMs} ms in vain: ${options.message} (last: ${describe(last)})`, {
    ...(last instanceof Error ? { cause: last } : {}),
  });
}

function describe(value: unknown): string {
  if (value instanceof Error) return value.message;
  return String(JSON.stringify(value) ?? value).slice(0, 500);
}
