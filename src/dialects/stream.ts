/** The only loop between a run and an event stream: decide, follow, project, send. Every dialect's streams go through it. */
import type { Readable } from 'node:stream';
import type { FastifyBaseLogger, FastifyReply } from 'fastify';
import { BEFORE_START, type Cursor } from '#src/events/cursor.ts';
import type { Client } from '#src/http/client.ts';
import type { Sse } from '#src/http/sse.ts';
import { encodeFrames, type SseFrame } from '#src/http/sse-frame.ts';
import type { Run } from '#src/runs/run.ts';
import type { Followed, RunService } from '#src/runs/service.ts';
import type { FollowedEvent, Projector } from './dialect.ts';

export interface RunStreamRequest {
  reply: FastifyReply;
  /** Watched since before the first await of the handler. */
  client: Client;
  run: Run;
  /** Exclusive; BEFORE_START for everything. */
  after: Cursor;
  /** This response created or started the run: the client's leaving it counts for `on_disconnect`. */
  startedTheRun: boolean;
}

/** @throws RunledgerError STREAM_EXPIRED */
export type OpenRunStream = (request: RunStreamRequest) => Promise<Readable>;

/**
 * Makes the stream of one dialect. The result is for a handler to return: it refuses first, with a real status; then come
 * headers, then frames to the run's end.
 */
export function createRunStream(deps: {
  runs: Pick<RunService, 'openStream' | 'follow' | 'disconnected'>;
  sse: Sse;
  projector: Projector;
  logger: FastifyBaseLogger;
}): OpenRunStream {
  const { runs, sse, projector, logger } = deps;
  // Frames of an entry, made once for all its viewers; they live as long as the hub holds the entry.
  const rendered = new WeakMap<object, Buffer>();
  const resync = encodeFrames([projector.resync]);

  function render(item: FollowedEvent): Buffer {
    const cached = rendered.get(item.entry);
    if (cached !== undefined) return cached;
    const bytes = encodeFrames(projector.project(item));
    rendered.set(item.entry, bytes);
    return bytes;
  }

  /** Per stream: the head of a message can be lost with the start of a log. That is said once per message. */
  function encoder(): (item: Followed) => Buffer {
    let lostHeads: Set<Cursor> | null = null;
    return (item) => {
      if (item.kind === 'resync') return resync;
      const { event, head } = item;
      if ((event.type !== 'message.delta' && event.type !== 'message.chunk') || head !== null) return render(item);
      lostHeads ??= new Set();
      if (lostHeads.has(event.m)) return Buffer.alloc(0);
      lostHeads.add(event.m);
      return resync;
    };
  }

  /** A log that does not begin with its run (it ended while it was queued, or its start is lost) is given a beginning. */
  function beginning(run: Run, encode: (item: Followed) => Buffer): (item: Followed) => Buffer {
    let begun = false;
    return (item) => {
      const bytes = encode(item);
      if (begun || bytes.length === 0) return bytes;
      begun = true;
      const type = item.kind === 'event' ? item.event.type : null;
      if (type === 'run.started' || type === 'run.taken_over') return bytes;
      return Buffer.concat([encodeFrames(projector.opening(run)), bytes]);
    };
  }

  return async ({ reply, client, run, after, startedTheRun }) => {
    await runs.openStream(run);
    return sse.stream(reply, {
      client,
      items: (signal) => runs.follow(run, after, signal),
      encode: after === BEFORE_START ? beginning(run, encoder()) : encoder(),
      onEnd: (end) => {
        if (!startedTheRun || end !== 'client_left') return;
        runs.disconnected(run).catch((error: unknown) => {
          logger.error({ err: error, run_id: run.id }, 'a disconnect could not be acted on');
        });
      },
    });
  };
}

/** One reader of a run whose frames are folded from the beginning of its log. */
export interface FoldedStreamRequest {
  reply: FastifyReply;
  /** Watched since before the first await of the handler. */
  client: Client;
  run: Run;
  /** Called with every item in order; gives the frames to be sent, possibly none. */
  fold: (item: Followed) => readonly SseFrame[];
  /** @see SseSource.cutAtShutdown */
  cutAtShutdown: boolean;
  /** Called when the client left before the run had ended. */
  onLeft: () => Promise<void>;
}

/**
 * The same for a dialect whose frames depend on those before them. It reads the whole log, also for a reader that only wants
 * its end. @throws RunledgerError STREAM_EXPIRED
 */
export function createFoldedStream(deps: {
  runs: Pick<RunService, 'openStream' | 'follow'>;
  sse: Sse;
  logger: FastifyBaseLogger;
}): (request: FoldedStreamRequest) => Promise<Readable> {
  const { runs, sse, logger } = deps;
  return async ({ reply, client, run, fold, cutAtShutdown, onLeft }) => {
    await runs.openStream(run);
    return sse.stream(reply, {
      client,
      items: (signal) => runs.follow(run, BEFORE_START, signal),
      encode: (item) => encodeFrames(fold(item)),
      cutAtShutdown,
      onEnd: (end) => {
        if (end !== 'client_left') return;
        onLeft().catch((error: unknown) => {
          logger.error({ err: error, run_id: run.id }, 'a disconnect could not be acted on');
        });
      },
    });
  };
}
