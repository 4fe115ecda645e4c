/** Finds the message.head that a delta names. */
import { decodeEvent } from './codec.ts';
import type { Cursor } from './cursor.ts';
import type { EventOf } from './event.ts';
import type { EventLog, LogEntry } from './log.ts';

type Head = EventOf<'message.head'>;

export interface Heads {
  note(cursor: Cursor, head: Head): void;
  /** undefined: not known here; ask `fetch`. null: the log does not have it. */
  known(cursor: Cursor): Head | null | undefined;
  /** From the log, once for all who ask at the same time. @throws LogUnavailable */
  fetch(cursor: Cursor): Promise<Head | null>;
}

/** Beyond this many the oldest is forgotten and, if it is named again, read again. */
const MAX_HEADS = 256;

function headOf(entry: LogEntry): Head | null {
  try {
    const event = decodeEvent(entry.payload);
    return event?.type === 'message.head' ? event : null;
  } catch {
    // Reported where the entry itself is shown.
    return null;
  }
}

export function createHeads(log: EventLog, runId: string): Heads {
  const heads = new Map<Cursor, Head | null>();
  const fetching = new Map<Cursor, Promise<Head | null>>();

  function note(cursor: Cursor, head: Head | null): void {
    heads.delete(cursor);
    heads.set(cursor, head);
    if (heads.size <= MAX_HEADS) return;
    const oldest = heads.keys().next();
    if (!oldest.done) heads.delete(oldest.value);
  }

  async function read(cursor: Cursor): Promise<Head | null> {
    const entry = await log.readOne(runId, cursor);
    const head = entry === null ? null : headOf(entry);
    note(cursor, head);
    return head;
  }

  return {
    note,
    known: (cursor) => heads.get(cursor),
    fetch(cursor) {
      const running = fetching.get(cursor) ?? read(cursor).finally(() => fetching.delete(cursor));
      fetching.set(cursor, running);
      return running;
    },
  };
}
