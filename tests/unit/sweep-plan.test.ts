import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { planPrune, type StoredLineage } from '#src/runs/sweep-plan.ts';

/** `id < parent: channel@version ...`; `*` behind a version: its value is stored here; `+channel`: there are writes to it. Newest first. */
function lineage(...lines: string[]): StoredLineage {
  const result: StoredLineage = { checkpoints: [], blobs: [], writes: [] };
  for (const line of lines) {
    const [head = '', tail = ''] = line.split(':');
    const [id = '', parent] = head.split('<').map((part) => part.trim());
    const versions: Record<string, string> = {};
    for (const word of tail.trim().split(' ').filter(Boolean)) {
      if (word.startsWith('+')) result.writes.push({ checkpoint_id: id, channel: word.slice(1) });
      const [channel = '', version] = word.split('@');
      if (version === undefined) continue;
      const bare = version.replace('*', '');
      versions[channel] = bare;
      if (version.endsWith('*')) result.blobs.push({ channel, version: bare, holds_value: true });
    }
    result.checkpoints.push({ id, parent: parent ?? null, old_format: false, step: 0, versions });
  }
  return result;
}

describe('what can go', () => {
  test('is everything but the roots when each stores its values', () => {
    const stored = lineage('c < b: x@3*', 'b < a: x@2* +x', 'a: x@1* +x');
    expect(planPrune(stored, ['c'])).toEqual({
      checkpoints: ['b', 'a'],
      blobs: [
        { channel: 'x', version: '2', holds_value: true },
        { channel: 'x', version: '1', holds_value: true },
      ],
    });
  });

  test('is what lies behind the value that the differences begin with', () => {
    const stored = lineage('e < d: x@4', 'd < c: x@3 +x', 'c < b: x@2* +x', 'b < a: x@1* +x', 'a: +x');
    expect(planPrune(stored, ['e']).checkpoints).toEqual(['b', 'a']);
  });

  test('is not what two branches share, nor the way there', () => {
    const shared = ['p < s: x@2', 's < o: x@1* +x', 'o: x@0* +x'];
    const stored = lineage('x2 < q: x@2', 'q < p: x@2', 'x1 < p: x@2', ...shared);
    for (const roots of [
      ['x1', 'x2'],
      ['x2', 'x1'],
    ]) {
      expect(planPrune(stored, roots).checkpoints).toEqual(['o']);
    }
  });

  test('is an emptied channel’s past, which has no writes on the way', () => {
    const stored = lineage('d < c: go@3', 'c < b: go@3', 'b < a: go@2*', 'a: go@1 +go');
    expect(planPrune(stored, ['d']).checkpoints).toEqual(['c', 'b', 'a']);
  });

  test('is not what a channel without a version was written with, unless it is a mark of LangGraph’s', () => {
    expect(planPrune(lineage('b < a:', 'a: +x'), ['b']).checkpoints).toEqual([]);
    expect(planPrune(lineage('b < a:', 'a: +__interrupt__'), ['b']).checkpoints).toEqual(['a']);
  });

  test('copes with roots and parents that are not there', () => {
    expect(planPrune(lineage('b < gone: x@2', 'a < gone: x@1'), ['b', 'lost']).checkpoints).toEqual(['a']);
  });
});

/** The value of a channel as LangGraph makes it: the nearest stored one, and the writes since, or nothing. */
function madeFrom(stored: StoredLineage, id: string, channel: string): string[] {
  const byId = new Map(stored.checkpoints.map((checkpoint) => [checkpoint.id, checkpoint]));
  const storedAs = (at: string) =>
    stored.blobs.find((blob) => blob.channel === channel && blob.version === byId.get(at)?.versions[channel]);
  const made: string[] = [];
  for (let at: string | null | undefined = id; at; at = byId.get(at)?.parent) {
    if (at !== id && stored.writes.some((write) => write.checkpoint_id === at && write.channel === channel)) {
      made.unshift(`written at ${at}`);
    }
    const blob = byId.has(at) ? storedAs(at) : undefined;
    if (blob !== undefined) return [`stored as ${blob.version}`, ...made];
  }
  return made;
}

// Each checkpoint: which earlier one it follows, and per channel whether it is written there and whether the child stores it.
const steps = fc.array(
  fc.record({ parent: fc.nat(), wrote: fc.tuple(fc.boolean(), fc.boolean()), stores: fc.tuple(fc.nat(4), fc.nat(4)) }),
  { minLength: 1, maxLength: 25 },
);

test('whatever the tree, all that is left has the values it had, and only unused blobs go', () => {
  fc.assert(
    fc.property(steps, fc.array(fc.nat(), { minLength: 1, maxLength: 4 }), (made, picks) => {
      const stored: StoredLineage = { checkpoints: [], blobs: [], writes: [] };
      const wroteAt = new Map<string, boolean[]>();
      const oldestFirst: StoredLineage['checkpoints'] = [];
      for (const [n, { parent, wrote, stores }] of made.entries()) {
        const before = n === 0 ? undefined : oldestFirst[parent % n];
        const versions: Record<string, string> = {};
        for (const [index, channel] of ['x', 'y'].entries()) {
          const former = before?.versions[channel];
          const stays = former !== undefined && wroteAt.get(before?.id ?? '')?.[index] === false;
          const version = stays ? former : `${n}`;
          versions[channel] = version;
          if (!stays && stores[index] === 0) stored.blobs.push({ channel, version, holds_value: true });
          if (wrote[index]) stored.writes.push({ checkpoint_id: `c${n}`, channel });
        }
        wroteAt.set(`c${n}`, wrote);
        oldestFirst.push({ id: `c${n}`, parent: before?.id ?? null, old_format: false, step: 0, versions });
      }
      stored.checkpoints = oldestFirst.toReversed();
      const roots = picks.map((pick) => `c${pick % made.length}`);
      const plan = planPrune(stored, roots);
      const gone = new Set(plan.checkpoints);
      const left: StoredLineage = {
        checkpoints: stored.checkpoints.filter(({ id }) => !gone.has(id)),
        blobs: stored.blobs.filter((blob) => !plan.blobs.includes(blob)),
        writes: stored.writes.filter(({ checkpoint_id }) => !gone.has(checkpoint_id)),
      };
      expect(left.checkpoints.map(({ id }) => id)).toEqual(expect.arrayContaining(roots));
      for (const { id } of left.checkpoints) {
        for (const channel of ['x', 'y']) expect(madeFrom(left, id, channel)).toEqual(madeFrom(stored, id, channel));
      }
    }),
    { numRuns: 500 },
  );
});
