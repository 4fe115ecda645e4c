/**
 * Channel versions. LangGraph only asks that they grow; it compares two numbers as numbers and anything else by
 * `localeCompare`. Ours are strings of fixed-width digits, `<16 digits of count>.<9 random digits>`: they order the same in
 * every locale, and two writers that continue the same checkpoint never give out the same one. The stock saver's are
 * integers; while a checkpoint is in memory they are shown as the count alone, so that both kinds compare right, and are
 * stored as the integers they were, because blobs are found by them.
 */
import type { Checkpoint } from '@langchain/langgraph-checkpoint';

type Version = number | string;
const COUNT_DIGITS = 16;

/** The version after `current`; `salt` (0 to 999,999,999) makes it unique. */
export function nextVersion(current: Version | undefined, salt: number): string {
  return `${padded(countOf(current) + 1)}.${String(salt).padStart(9, '0')}`;
}

/** True for a version an integer of the stock saver is shown as. Its blob is stored already. */
export function isLegacyVersion(version: Version): boolean {
  return typeof version === 'number' || !version.includes('.');
}

/** A checkpoint as LangGraph may see it: every version a string that compares with every other. */
export function unifyVersions(checkpoint: Checkpoint): Checkpoint {
  return mapVersions(checkpoint, (version) => (typeof version === 'number' ? padded(version) : version));
}

/** A checkpoint as it is stored: what `unifyVersions` showed as a count is the integer again. */
export function restoreVersions(checkpoint: Checkpoint): Checkpoint {
  return mapVersions(checkpoint, (version) =>
    typeof version === 'string' && isLegacyVersion(version) && version !== '' ? Number(version) : version,
  );
}

function mapVersions(checkpoint: Checkpoint, map: (version: Version) => Version): Checkpoint {
  const mapAll = (versions: Record<string, Version>) =>
    Object.fromEntries(Object.entries(versions).map(([name, version]) => [name, map(version)]));
  return {
    ...checkpoint,
    channel_versions: mapAll(checkpoint.channel_versions ?? {}),
    versions_seen: Object.fromEntries(
      Object.entries(checkpoint.versions_seen ?? {}).map(([node, seen]) => [node, mapAll(seen)]),
    ),
  };
}

function countOf(version: Version | undefined): number {
  if (version === undefined) return 0;
  return typeof version === 'number' ? version : Number.parseInt(version, 10) || 0;
}

function padded(count: number): string {
  return String(count).padStart(COUNT_DIGITS, '0');
}
