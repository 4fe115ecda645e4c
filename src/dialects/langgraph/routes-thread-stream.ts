/** The stream of a whole thread: its runs one after the other, those that come later too, and updates of its state. */
import type { FastifyRequest } from 'fastify';
import { RunledgerError } from '#src/errors.ts';
import { BEFORE_START, type Cursor } from '#src/events/cursor.ts';
import type { Json } from '#src/events/event.ts';
import { watchClient } from '#src/http/client.ts';
import { encodeFrames } from '#src/http/sse-frame.ts';
import type { Run } from '#src/runs/run.ts';
import type { Followed, ThreadFrom } from '#src/runs/service.ts';
import { type Frame, RESYNC } from './frames.ts';
import { createFold } from './project.ts';
import { answering, type LangGraphApp, type LangGraphDeps, parsed, threadParam } from './route.ts';
import { viewOf } from './streams.ts';
import { stateOf, statusOf } from './views.ts';
import { threadStreamQuery } from './wire.ts';

/** A frame's id is that of its event in the whole thread: the run's place in it, and the event's in the run's log. */
const PER_RUN = 1_000_000_000;

/** What the client has seen: everything up to this event of this run. */
interface Seen {
  ordinal: number;
  cursor: Cursor;
}

type Modes = ReadonlySet<string>;

export function addThreadStreamRoute(app: LangGraphApp, deps: LangGraphDeps): void {
  const { threads, sse } = deps;
  app.get('/threads/:thread_id/stream', { exposeHeadRoute: false }, async (request, reply) => {
    const client = watchClient(reply);
    const threadId = threadParam(request);
    const { stream_mode: asked } = parsed(threadStreamQuery, request.query);
    const from = fromOf(request);
    const { owner } = request.principal;
    await answering(() => threads.listed(owner, threadId), { threadId });
    // Clients join again where the first response says, with the id they have.
    reply.header('location', `/threads/${threadId}/stream`);
    const modes = new Set<string>(Array.isArray(asked) ? asked : [asked]);
    return sse.stream(reply, {
      client,
      items: (signal) => framesOf(deps, { owner, threadId, from, modes }, signal),
      encode: encodeFrames,
      cutAtShutdown: true,
    });
  });
}

interface Joined {
  owner: string;
  threadId: string;
  from: Seen | 'start' | 'live';
  modes: Modes;
}

async function* framesOf(deps: LangGraphDeps, joined: Joined, signal: AbortSignal): AsyncGenerator<Frame[]> {
  const { threadId, from, modes } = joined;
  let tell: (item: Followed) => Frame[] = () => [];
  for await (const told of deps.runs.followThread(
    { id: threadId, owner: joined.owner },
    from satisfies ThreadFrom,
    signal,
  )) {
    if (told.kind === 'lost') {
      yield [RESYNC];
      continue;
    }
    const { run } = told;
    const after = typeof from === 'object' && from.ordinal === run.ordinal ? from.cursor : BEFORE_START;
    if (told.kind === 'item') yield tell(told.item);
    else if (told.kind === 'expired') yield forgotten(run, modes, after);
    else if (run.kind !== 'edit') tell = teller(run, modes, after);
    else if (after === BEFORE_START && modes.has('state_update')) yield [await updated(deps, joined, run)];
  }
}

/** The frames of one run, from its first event on; those the client has are left out. */
function teller(run: Run, modes: Modes, after: Cursor): (item: Followed) => Frame[] {
  const fold = createFold({ runId: run.id, ...viewOf(run) });
  return (item) => {
    const made = fold(item).map(({ event, data }): Frame => ({ event, data }));
    if (item.kind === 'resync') return modes.has('run_modes') ? made : [];
    const { cursor, event } = item;
    if (event.type === 'run.sealed') made.push(done(run, statusOf(event)));
    return cursor <= after ? [] : withId(made.filter(isWanted(modes)), run, cursor);
  };
}

/** A run whose events are no longer kept: that it was, that what it said is not told, and how it ended. */
function forgotten(run: Run, modes: Modes, after: Cursor): Frame[] {
  const end = run.log_end ?? 0;
  if (after >= end) return [];
  const begins = { event: 'metadata', data: { run_id: run.id, attempt: 1 } };
  const frames = [...(after === BEFORE_START ? [begins] : []), RESYNC, done(run, statusOf(run))];
  return withId(frames.filter(isWanted(modes)), run, end);
}

function done(run: Run, runStatus: string): Frame {
  return { event: 'metadata', data: { status: 'run_done', run_id: run.id, run_status: runStatus } };
}

function isWanted(modes: Modes): (frame: Frame) => boolean {
  return ({ event }) => modes.has('run_modes') || (event === 'metadata' && modes.has('lifecycle'));
}

/** Only the last has it: a client that comes again never begins in the middle of an event. */
function withId(frames: Frame[], run: Run, cursor: Cursor): Frame[] {
  const id = String(run.ordinal * PER_RUN + cursor);
  return frames.map((frame, index) => (index === frames.length - 1 ? { ...frame, id } : frame));
}

/** The state as it is now, which may be newer than this update: the client is told of the newer one next. */
async function updated(deps: LangGraphDeps, { owner, threadId }: Joined, run: Run): Promise<Frame> {
  const state = await stateNow(deps, owner, threadId);
  return { event: 'state_update', data: { thread_id: threadId, state }, id: String(run.ordinal * PER_RUN) };
}

async function stateNow({ states, logger }: LangGraphDeps, owner: string, threadId: string): Promise<Json> {
  try {
    return stateOf(await states.read(owner, threadId));
  } catch (error) {
    if (!(error instanceof RunledgerError)) throw error;
    logger.warn({ err: error, thread_id: threadId }, 'state of a followed thread not readable');
    return null;
  }
}

/**
 * What comes after the id; everything for -1; without one what runs now, and what comes.
 * @throws RunledgerError INVALID_CURSOR
 */
function fromOf(request: FastifyRequest): Joined['from'] {
  const { last_event_id: inQuery } = (request.query ?? {}) as { last_event_id?: unknown };
  const text = String(inQuery ?? request.headers['last-event-id'] ?? '').trim();
  if (text === '') return 'live';
  if (text === '-1' || text === '-') return 'start';
  const id = Number(text);
  if (/^\d+$/.test(text) && Number.isSafeInteger(id) && id >= PER_RUN) {
    return { ordinal: Math.floor(id / PER_RUN), cursor: id % PER_RUN };
  }
  throw new RunledgerError('INVALID_CURSOR', 'Last-Event-ID must be an id this stream gave, or -1.');
}
