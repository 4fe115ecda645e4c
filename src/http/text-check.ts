/**
 * Text that Postgres cannot store is refused at the edge: NUL, and surrogates without their partner. One check for every
 * body, query and path, so no route can forget it.
 */
import { RunledgerError } from '#src/errors.ts';

/** Deeper JSON than this is refused: later stages walk values recursively, and no honest request comes near it. */
const MAX_DEPTH = 128;

/**
 * Looks at every string and every object key of a parsed JSON value.
 * @throws RunledgerError INVALID_CHARACTER with the dotted path of the first offending text; INVALID_REQUEST when the
 *   value is nested more than 128 levels deep
 */
export function refuseBadText(value: unknown): void {
  check(value, []);
}

function check(value: unknown, path: string[]): void {
  if (typeof value === 'string') {
    if (isBad(value)) throw badCharacter(path);
    return;
  }
  if (typeof value !== 'object' || value === null) return;
  if (path.length >= MAX_DEPTH) {
    throw new RunledgerError('INVALID_REQUEST', `The value is nested more than ${MAX_DEPTH} levels deep.`, {
      path: path.slice(0, 4).join('.'),
    });
  }
  if (Array.isArray(value)) {
    for (let index = 0; index < value.length; index += 1) checkInner(String(index), value[index], path);
    return;
  }
  for (const key of Object.keys(value)) {
    if (isBad(key)) throw badCharacter([...path, key]);
    checkInner(key, (value as { [key: string]: unknown })[key], path);
  }
}

function checkInner(key: string, inner: unknown, path: string[]): void {
  if (typeof inner !== 'string' && typeof inner !== 'object') return;
  path.push(key);
  check(inner, path);
  path.pop();
}

function isBad(text: string): boolean {
  return text.includes('\0') || !text.isWellFormed();
}

function badCharacter(path: string[]): RunledgerError {
  return new RunledgerError('INVALID_CHARACTER', 'The text holds a NUL or an incomplete surrogate pair.', {
    // The path may end in the offending key itself; what is echoed must be storable and printable.
    path: path.join('.').toWellFormed().replaceAll('\0', '\uFFFD'),
  });
}
