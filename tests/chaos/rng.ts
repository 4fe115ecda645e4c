/** Seeded randomness: the same seed makes the same choices, so a failing seed can be run again. */

export interface Rng {
  /** An integer from `min` to `max`, both included. */
  int(min: number, max: number): number;
  /** One of the items. @throws when there are none */
  pick<T>(items: readonly T[]): T;
  /** True with this probability (0 to 1). */
  chance(probability: number): boolean;
  /** The items in another order. */
  shuffle<T>(items: readonly T[]): T[];
}

/** A mulberry32 generator: small, fast, and good enough to choose faults. */
export function createRng(seed: number): Rng {
  let state = (seed * 0x9e3779b1) >>> 0;
  function unit(): number {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  }
  const int = (min: number, max: number): number => min + Math.floor(unit() * (max - min + 1));
  return {
    int,
    pick<T>(items: readonly T[]): T {
      if (items.length === 0) throw new Error('nothing to pick from');
      return items[int(0, items.length - 1)] as T;
    },
    chance: (probability) => unit() < probability,
    shuffle<T>(items: readonly T[]): T[] {
      const left = [...items];
      const shuffled: T[] = [];
      while (left.length > 0) shuffled.push(...left.splice(int(0, left.length - 1), 1));
      return shuffled;
    },
  };
}
