/** Values of a thread by their paths: names joined by dots, places of lists in brackets, from the end when negative. */
import type { Json, JsonObject } from '#src/events/event.ts';

const STEP = /(?:^|\.)([^.[\]]+)|\[(-?\d+)\]/y;

/** The steps of a path; null when it is none. */
function stepsOf(path: string): (string | number)[] | null {
  const steps: (string | number)[] = [];
  STEP.lastIndex = 0;
  for (let at = 0; at < path.length; at = STEP.lastIndex) {
    STEP.lastIndex = at;
    const match = STEP.exec(path);
    if (match === null) return null;
    steps.push(match[1] ?? Number(match[2]));
  }
  return steps.length === 0 ? null : steps;
}

export function isPath(path: string): boolean {
  return stepsOf(path) !== null;
}

/** What is at each path; null where there is nothing. */
export function extracted(from: JsonObject, paths: { [alias: string]: string }): JsonObject {
  return Object.fromEntries(Object.entries(paths).map(([alias, path]) => [alias, valueAt(from, stepsOf(path) ?? [])]));
}

function valueAt(from: Json, steps: (string | number)[]): Json {
  let value: Json | undefined = from;
  for (const step of steps) {
    if (typeof value !== 'object' || value === null) return null;
    if (Array.isArray(value)) value = typeof step === 'number' ? value.at(step) : undefined;
    else value = typeof step === 'string' && Object.hasOwn(value, step) ? value[step] : undefined;
  }
  return value ?? null;
}
