/** The contract of a dialect: what it is given, and what it gives. README.md says how to add one. */
import type { FastifyBaseLogger } from 'fastify';
import type { RunledgerError } from '#src/errors.ts';
import type { Authenticate } from '#src/http/auth.ts';
import type { ErrorHandler, RefusalRenderer } from '#src/http/errors.ts';
import type { Sse } from '#src/http/sse.ts';
import type { SseFrame } from '#src/http/sse-frame.ts';
import type { Run } from '#src/runs/run.ts';
import type { Followed, RunService } from '#src/runs/service.ts';
import type { ThreadService } from '#src/threads/service.ts';

/** What every dialect is mounted with: `restDialect(deps)` is a Fastify plugin. */
export interface DialectDeps {
  runs: RunService;
  threads: ThreadService;
  /** Which graphs the server has. */
  graphs: { has(graphId: string): boolean };
  sse: Sse;
  authenticate: Authenticate;
  /** Aborts when the server begins to close, with the refusal that a waiting request is then answered with. */
  closing: AbortSignal;
  /** For the dialect's scope: every refusal in its form. */
  errorHandler(render: RefusalRenderer): ErrorHandler;
  logger: FastifyBaseLogger;
}

export type FollowedEvent = Extract<Followed, { kind: 'event' }>;

/**
 * From one thing a follower is told to this dialect's frames, possibly none. When it gives several, only the last carries
 * the `id`, so that a client never reconnects into the middle of an event. Pure: the same item always gives the same
 * frames, so they are made once for all viewers of a run. `head` of a delta is never null here (stream.ts sees to it).
 */
export interface Projector {
  project(item: FollowedEvent): readonly SseFrame[];
  /** What a whole stream begins with when its log does not tell it: a run that ended before it was executed. */
  opening(run: Run): readonly SseFrame[];
  /** What lies between two events cannot be replayed; the client must read the state again. */
  readonly resync: SseFrame;
}

/** One code's form in a dialect: a status, and the facts of `details` that its body and headers show. */
export interface RefusalRule {
  status: number;
  /** Fields of the body beyond code, message, request_id and path. */
  body?(details: RunledgerError['details']): { [field: string]: unknown };
  headers?(details: RunledgerError['details'], threadId: string | undefined): { [name: string]: string };
}
