/** What of a lineage can go when some of its checkpoints are to stay. Pure: it decides from what is stored, not from the graph. */

export interface StoredCheckpoint {
  id: string;
  parent: string | null;
  /** Formats 3 and older find their pending sends in their parent's writes. */
  old_format: boolean;
  /** How many steps its branch has had. */
  step: number;
  /** Channel -> version, as the versions of blobs are written. */
  versions: { [channel: string]: string };
}

/** The root namespace of a lineage. */
export interface StoredLineage {
  /** Newest first. */
  checkpoints: StoredCheckpoint[];
  /** `holds_value`: false for one that only says the channel was empty at this version. */
  blobs: { channel: string; version: string; holds_value: boolean }[];
  writes: { checkpoint_id: string; channel: string }[];
}

/** A value that is to be stored of a channel, at the version it has in a checkpoint. */
export interface Snapshot {
  checkpointId: string;
  channel: string;
  version: string;
}

export interface PrunePlan {
  /** Ids that can go, newest first. */
  checkpoints: string[];
  /** What no remaining checkpoint refers to, once all of them are gone. */
  blobs: { channel: string; version: string }[];
}

/**
 * Keeps `roots` and what they are built from. A channel that a checkpoint stores no value of is followed to its ancestors,
 * up to the nearest that stores one. If there are writes to it on the way, its value is made of them, and the whole way is
 * needed. What is kept because others need it can be read too, so the same holds for it.
 */
export function planPrune(lineage: StoredLineage, roots: Iterable<string>): PrunePlan {
  const ancestry = ancestryOf(lineage);
  const kept = new Set<string>();
  const waiting = [...roots];
  for (let id = waiting.pop(); id !== undefined; id = waiting.pop()) {
    const checkpoint = ancestry.get(id);
    if (checkpoint === undefined || kept.has(id)) continue;
    kept.add(id);
    if (checkpoint.old_format && checkpoint.parent !== null) waiting.push(checkpoint.parent);
    for (const channel of ancestry.channels) waiting.push(...ancestry.rebuiltFrom(checkpoint, channel));
  }
  const used = new Set<string>();
  for (const { id, versions } of lineage.checkpoints) {
    if (kept.has(id)) for (const [channel, version] of Object.entries(versions)) used.add(pair(channel, version));
  }
  return {
    checkpoints: lineage.checkpoints.flatMap(({ id }) => (kept.has(id) ? [] : [id])),
    blobs: lineage.blobs.filter(({ channel, version }) => !used.has(pair(channel, version))),
  };
}

/**
 * Which of `roots` need a value of their own of which channel, so that nothing but the roots has to stay: those whose
 * parent does not stay.
 */
export function snapshotsFor(lineage: StoredLineage, roots: Iterable<string>, channels: Iterable<string>): Snapshot[] {
  const kept = new Set(roots);
  const values = valuesOf(lineage);
  const names = [...channels];
  return lineage.checkpoints.flatMap(({ id, parent, versions }) => {
    if (!kept.has(id) || parent === null || kept.has(parent)) return [];
    return names.flatMap((channel): Snapshot[] => {
      const version = versions[channel];
      return version === undefined || values.has(pair(channel, version))
        ? []
        : [{ checkpointId: id, channel, version }];
    });
  });
}

/** The lineage as it is once these are stored. */
export function withSnapshots(lineage: StoredLineage, snapshots: Snapshot[]): StoredLineage {
  const stored = snapshots.map(({ channel, version }) => ({ channel, version, holds_value: true }));
  const told = new Set(stored.map(({ channel, version }) => pair(channel, version)));
  return {
    ...lineage,
    blobs: [...lineage.blobs.filter(({ channel, version }) => !told.has(pair(channel, version))), ...stored],
  };
}

function valuesOf({ blobs }: StoredLineage): Set<string> {
  return new Set(blobs.flatMap(({ channel, version, holds_value }) => (holds_value ? [pair(channel, version)] : [])));
}

function ancestryOf(lineage: StoredLineage) {
  const byId = new Map(lineage.checkpoints.map((checkpoint) => [checkpoint.id, checkpoint]));
  const values = valuesOf(lineage);
  const written = new Set(lineage.writes.map(({ checkpoint_id, channel }) => pair(checkpoint_id, channel)));
  const channels = new Set(lineage.writes.map(({ channel }) => channel));
  const walked = new Set<string>();

  const parentOf = ({ parent }: StoredCheckpoint) => (parent === null ? undefined : byId.get(parent));

  function lacksValue({ versions }: StoredCheckpoint, channel: string): boolean {
    const version = versions[channel];
    // LangGraph's own marks (errors, interrupts, answers) are written like channels and have no version.
    if (version === undefined) return !channel.startsWith('__');
    return !values.has(pair(channel, version));
  }

  return {
    channels,
    get: (id: string) => byId.get(id),
    /** Ancestors that the checkpoint's value of the channel is made from, without those an earlier call returned. */
    rebuiltFrom(checkpoint: StoredCheckpoint, channel: string): string[] {
      const way: string[] = [];
      let made = false;
      for (let at = checkpoint; lacksValue(at, channel); ) {
        const parent = parentOf(at);
        if (parent === undefined) break;
        // Everything above was returned for another checkpoint, so there are writes above.
        made ||= walked.has(pair(parent.id, channel)) || written.has(pair(parent.id, channel));
        if (walked.has(pair(parent.id, channel))) break;
        way.push(parent.id);
        at = parent;
      }
      if (!made) return [];
      for (const id of way) walked.add(pair(id, channel));
      return way;
    },
  };
}

function pair(a: string, b: string): string {
  return `${a}\u0000${b}`;
}
