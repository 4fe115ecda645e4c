/** A reader's frames as a client puts them together. */
import type { ReaderFrame } from './history.ts';

export interface Folded {
  /** Text of the root graph's messages by message id, in order of appearance; what the server took back is gone. */
  texts: Map<string, string>;
  /** It was told that it may have missed something: it must read the thread for what came before. */
  resynced: boolean;
  /** The status in run_end. */
  status: string | null;
}

export function fold(frames: readonly Pick<ReaderFrame, 'event' | 'data'>[]): Folded {
  const folded: Folded = { texts: new Map(), resynced: false, status: null };
  for (const { event, data } of frames) {
    const body = JSON.parse(data) as FrameBody;
    if (event === 'message_chunk' && body.type === 'text' && body.ns === undefined) {
      const id = body.message_id ?? '';
      folded.texts.set(id, (folded.texts.get(id) ?? '') + (body.delta ?? ''));
    }
    if (event === 'metadata' || event === 'retry') for (const id of body.dropped ?? []) folded.texts.delete(id);
    if (event === 'resync_required') folded.resynced = true;
    if (event === 'run_end') folded.status = body.status ?? null;
  }
  return folded;
}

interface FrameBody {
  type?: string;
  ns?: string[];
  message_id?: string;
  delta?: string;
  dropped?: string[];
  status?: string;
}
