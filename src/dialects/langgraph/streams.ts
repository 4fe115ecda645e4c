/** The event stream of a run in this dialect, from its beginning or after an id, and what a run leaves when its log is gone. */
import type { Readable } from 'node:stream';
import type { FastifyReply, FastifyRequest } from 'fastify';
import { RunledgerError } from '#src/errors.ts';
import type { JsonObject } from '#src/events/event.ts';
import type { Client } from '#src/http/client.ts';
import { encodeFrames } from '#src/http/sse-frame.ts';
import type { Run } from '#src/runs/run.ts';
import { createFoldedStream } from '../stream.ts';
import { type Frame, filled, STREAM_MODES, type StreamMode } from './frames.ts';
import { createFold, errorData, type Seen } from './project.ts';
import type { LangGraphDeps } from './route.ts';

export interface StreamRequest {
  reply: FastifyReply;
  client: Client;
  run: Run;
  /** The last ordinal the client has; -1 for everything. */
  after: number;
  /** This response created the run: the client's leaving it counts for `on_disconnect`. */
  startedTheRun: boolean;
  /** Whether the client's leaving stops the run, whatever its creator said. */
  cancelOnLeave: boolean;
  /** Of the run's own modes, those the client wants; null for all. */
  only: ReadonlySet<string> | null;
}

export type OpenStream = (request: StreamRequest) => Promise<Readable>;

export function createStreams(deps: LangGraphDeps): OpenStream {
  const { runs, states, sse, logger } = deps;
  const openFolded = createFoldedStream({ runs, sse, logger });

  return async (request) => {
    const { reply, client, run } = request;
    const fold = createFold({ runId: run.id, ...viewOf(run) });
    const leave = async (): Promise<void> => {
      if (request.cancelOnLeave) await runs.cancel(run.owner, run.thread_id, { runId: run.id });
      else if (request.startedTheRun) await runs.disconnected(run);
    };
    const frames = (item: Seen): Frame[] => fold(item).filter((frame) => isWanted(frame, request));
    try {
      return await openFolded({ reply, client, run, fold: frames, cutAtShutdown: true, onLeft: leave });
    } catch (error) {
      if (!(error instanceof RunledgerError) || error.code !== 'STREAM_EXPIRED') throw error;
    }
    const left = await leftOf(run);
    return sse.stream(reply, {
      client,
      items: async function* () {
        yield left.filter((frame) => isWanted(frame, request));
      },
      encode: encodeFrames,
    });
  };

  /** What can still be said of a run whose events are no longer kept: from its row, and the state it left. */
  async function leftOf(run: Run): Promise<Frame[]> {
    const frames: Frame[] = [{ event: 'metadata', data: { run_id: run.id, attempt: 1 } }];
    const { values } = await states.leftBy(run);
    if (viewOf(run).modes.has('values')) frames.push({ event: 'values', data: filled(values) });
    if (run.error !== null) frames.push({ event: 'error', data: errorData(run.error) });
    return frames;
  }
}

const KNOWN = new Set<string>(STREAM_MODES);
/** A run that another dialect admitted records these; its own creator named no modes of this one. */
const OF_OTHERS: StreamMode[] = ['messages-tuple', 'updates', 'custom'];

/** What the run's creator asked to see. */
export function viewOf(run: Run): { modes: ReadonlySet<StreamMode>; subgraphs: boolean } {
  const { stream_mode: asked, stream_subgraphs: subgraphs } = run.wire ?? ({} as JsonObject);
  const modes = Array.isArray(asked) ? asked.filter((mode) => KNOWN.has(String(mode))) : OF_OTHERS;
  return { modes: new Set(modes as StreamMode[]), subgraphs: subgraphs === true };
}

/** `messages` is the event of mode `messages-tuple`; mode `messages` has events of its own. */
function isWanted(frame: Frame, { after, only }: StreamRequest): boolean {
  if (frame.id !== undefined && Number(frame.id) <= after) return false;
  if (only === null) return true;
  const [mode = ''] = frame.event.split('|', 1);
  if (!KNOWN.has(mode) && !mode.startsWith('messages/')) return true;
  if (mode === 'messages') return only.has('messages-tuple');
  return only.has(mode.startsWith('messages/') ? 'messages' : mode);
}

/**
 * The last id a client has seen; -1, nothing, or what is no number: from the start.
 * @throws RunledgerError INVALID_CURSOR
 */
export function lastIdOf(request: FastifyRequest): number {
  const { last_event_id: inQuery } = (request.query ?? {}) as { last_event_id?: unknown };
  const text = String(inQuery ?? request.headers['last-event-id'] ?? '').trim();
  if (text === '' || text === '-1') return -1;
  if (/^\d{1,15}$/.test(text)) return Number(text);
  throw new RunledgerError('INVALID_CURSOR', 'Last-Event-ID must be an id this server gave, or -1.');
}
