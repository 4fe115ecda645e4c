/** The faults that are armed in a process: which one a hit of a point sets off, and what it then does. */
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { type Fault, type FaultPoint, reachedLine } from './fault-points.ts';

export interface Hit {
  action: Fault['action'];
  /** Kills, stops, blocks or skews at once. Resolves when the program may go on; null when it may at once. */
  act(): Promise<void> | null;
}

export interface Armory {
  /** In place of what was armed before in this group; whoever is held by the group goes on. */
  arm(faults: Fault[], group?: string): void;
  /** Counts a hit; the fault it sets off, or null. */
  hit(point: FaultPoint, when: 'before' | 'after'): Hit | null;
  /** Whether any fault waits for this point: the wraps look closer only then. */
  waitsFor(point: FaultPoint, when: 'before' | 'after'): boolean;
}

interface Armed {
  fault: Fault;
  group: string;
  hits: number;
  spent: boolean;
  /** Resolves when its group is armed anew. */
  released: PromiseWithResolvers<void>;
}

export function armory(say: (line: string) => void): Armory {
  let armed: Armed[] = [];

  const fits = ({ fault, spent }: Armed, point: FaultPoint | 'now', when: 'before' | 'after'): boolean =>
    !spent && fault.point === point && (fault.when ?? 'before') === when;

  function act({ fault, released }: Armed): Promise<void> | null {
    say(reachedLine(fault));
    switch (fault.action) {
      case 'kill':
        process.kill(process.pid, 'SIGKILL');
        return new Promise(() => undefined);
      case 'stop':
        process.kill(process.pid, 'SIGSTOP');
        return null;
      case 'block':
        for (const endMs = performance.now() + fault.ms; performance.now() < endMs; );
        return null;
      case 'skew':
        skew(fault.ms);
        return null;
      case 'collect':
        collectGarbage();
        return null;
      case 'delay':
        return new Promise((resolve) => setTimeout(resolve, fault.ms));
      case 'hold':
        return released.promise;
      case 'lose-reply':
        return null;
      default:
        return fault satisfies never;
    }
  }

  return {
    arm(faults, group = 'main') {
      for (const entry of armed) if (entry.group === group) entry.released.resolve();
      const released = Promise.withResolvers<void>();
      const fresh = faults.map((fault): Armed => ({ fault, group, hits: 0, spent: false, released }));
      armed = [...armed.filter((entry) => entry.group !== group), ...fresh];
      for (const entry of fresh) if (fits(entry, 'now', entry.fault.when ?? 'before')) void act(entry);
    },
    waitsFor: (point, when) => armed.some((entry) => fits(entry, point, when)),
    hit(point, when) {
      for (const entry of armed) {
        if (!fits(entry, point, when)) continue;
        entry.hits += 1;
        if (entry.hits < (entry.fault.nth ?? 1)) continue;
        entry.spent = entry.fault.every !== true;
        return { action: entry.fault.action, act: () => act(entry) };
      }
      return null;
    },
  };
}

/** `Date` of this process is off by `ms`, on top of what it was. */
function skew(ms: number): void {
  const Honest = Date;
  class Skewed extends Honest {
    constructor(...args: ConstructorParameters<DateConstructor> | []) {
      if (args.length === 0) super(Honest.now() + ms);
      else super(...(args as [number]));
    }
    static override now(): number {
      return Honest.now() + ms;
    }
  }
  globalThis.Date = Skewed as DateConstructor;
}

function collectGarbage(): void {
  setFlagsFromString('--expose-gc');
  const collect = runInNewContext('gc') as () => void;
  // What a round finds dead may keep buffers that only the next one frees.
  for (let round = 0; round < 3; round += 1) collect();
}
