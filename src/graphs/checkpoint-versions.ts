/**
 * Channel versions. LangGraph asks only that they grow; it compares two numbers as numbers and two strings by
 * `localeCompare`, and a thread never mixes the two. Ours are unique, so that two writers which continue the same
 * checkpoint (a fork, a zombie) never share a blob: a blob is found by its version, and the first one stored stays.
 *
 * A new lineage gets strings of fixed-width digits, `<16 digits of count>.<8 random digits>`, which order the same in every
 * locale. A lineage the stock saver began has integers; it goes on with numbers, `<count>.<random digits>`.
 */
type Version = number | string;

const COUNT_DIGITS = 16;
const SALT_DIGITS = 8;
export const SALTS = 10 ** SALT_DIGITS;

/** The version after `current` (undefined for the first). `salt`: an integer from 1 to SALTS - 1. */
export function nextVersion(current: Version | undefined, salt: number): Version {
  const fraction = String(salt).padStart(SALT_DIGITS, '0');
  if (typeof current === 'number') return Number(`${Math.floor(current) + 1}.${fraction}`);
  const count = current === undefined ? 0 : Number.parseInt(current, 10);
  return `${String(count + 1).padStart(COUNT_DIGITS, '0')}.${fraction}`;
}
