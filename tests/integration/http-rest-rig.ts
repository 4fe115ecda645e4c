/** The REST dialect on a server, over a core that answers what the test says. */
import { randomUUID } from 'node:crypto';
import { restDialect } from '#src/dialects/rest/index.ts';
import { REST_PREFIX } from '#src/dialects/rest/links.ts';
import { RunledgerError } from '#src/errors.ts';
import type { EventOf, RunEvent } from '#src/events/event.ts';
import { createAuthenticate } from '#src/http/auth.ts';
import type { Run } from '#src/runs/run.ts';
import type { Followed, RunService } from '#src/runs/service.ts';
import type { Thread, ThreadService } from '#src/threads/service.ts';
import { openSse } from '#tests/support/sse.ts';
import { startRig } from './http-rig.ts';

export const THREAD = randomUUID();
export const RUN = randomUUID();
export const NOW = '2026-11-02T10:00:00.000Z';
export const STREAM = `/api/v1/threads/${THREAD}/messages/stream?run_id=${RUN}`;

export function run(change: Partial<Run> = {}): Run {
  return {
    id: RUN,
    owner: 'ada',
    thread_id: THREAD,
    turn_id: 'turn',
    lineage_id: THREAD,
    graph_id: 'chat',
    kind: 'message',
    status: 'running',
    epoch: 1,
    ordinal: 1,
    takeovers: 0,
    input: { secret: 'input' },
    command: null,
    config: {},
    assistant_id: null,
    wire: null,
    stream_modes: [],
    on_disconnect: 'continue',
    request_key: null,
    webhook: null,
    cancel_requested_at: null,
    cancel_action: null,
    error: null,
    reason: null,
    usage: null,
    interrupts: [],
    log_end: null,
    created_at: NOW,
    started_at: NOW,
    ended_at: null,
    ...change,
  };
}

export const thread: Thread = {
  id: THREAD,
  owner: 'ada',
  title: null,
  graph_id: 'chat',
  metadata: { a: [1] },
  archived: false,
  pinned: false,
  created_at: NOW,
  updated_at: NOW,
  status: 'running',
  latest_run_id: RUN,
};

export const ended: EventOf<'run.sealed'> = {
  type: 'run.sealed',
  status: 'succeeded',
  error: null,
  usage: null,
  interrupts: [],
  reason: null,
};
const started: RunEvent = {
  type: 'run.started',
  run_id: RUN,
  thread_id: THREAD,
  turn_id: 'turn',
  graph_id: 'chat',
};
const head: EventOf<'message.head'> = {
  type: 'message.head',
  ns: [],
  message: { id: 'ai', type: 'ai', content: 'Hi' },
  metadata: {},
};

export function seen(cursor: number, event: RunEvent, itsHead: EventOf<'message.head'> | null = null): Followed {
  return { kind: 'event', cursor, event, head: itsHead, entry: {} };
}

export const STORY: Followed[] = [
  seen(0, started),
  seen(1, head),
  seen(2, { type: 'message.delta', m: 1, kind: 'text', text: ' there' }, head),
  seen(3, ended),
];

type Calls = { [name: string]: unknown[][] };

/** Answers what the test gives; anything else it is asked for is an error of the test. */
function scripted<T extends object>(answers: Partial<T>, calls: Calls): T {
  return new Proxy(answers, {
    get(target, name) {
      const answer: unknown = Reflect.get(target, name);
      return (...parameters: unknown[]) => {
        if (typeof answer !== 'function') throw new Error(`the core was not expected to be asked for ${String(name)}`);
        calls[String(name)] = [...(calls[String(name)] ?? []), parameters];
        return answer(...parameters) as unknown;
      };
    },
  }) as T;
}

export async function start(
  core: { runs?: Partial<RunService>; threads?: Partial<ThreadService> } = {},
  options: object = {},
) {
  const calls: Calls = {};
  const runs = scripted<RunService>({ openStream: async () => undefined, ...core.runs }, calls);
  const threads = scripted<ThreadService>({ ...core.threads }, calls);
  const jwt = { secret: null, jwksUrl: null, issuer: null, audience: null, algorithms: null, ownerClaim: 'sub' };
  const rig = await startRig(
    { cors: { origins: ['https://app.example'], credentials: false }, ...options },
    async (server) => {
      const deps = { ...server, runs, threads, graphs: { has: (id: string) => id === 'chat' } };
      await server.app.register(restDialect({ ...deps, authenticate: createAuthenticate({ mode: 'dev', jwt }) }), {
        prefix: REST_PREFIX,
      });
    },
  );
  const ask = async (method: string, path: string, body?: unknown, headers: Record<string, string> = {}) => {
    const response = await fetch(`${rig.url}${path}`, {
      method,
      headers: { 'x-dev-user': 'ada', ...(body !== undefined && { 'content-type': 'application/json' }), ...headers },
      ...(body !== undefined && { body: JSON.stringify(body) }),
    });
    const text = await response.text();
    return {
      status: response.status,
      headers: response.headers,
      body: text === '' ? null : (JSON.parse(text) as unknown),
    };
  };
  const open = (path: string, init: { body?: unknown; headers?: Record<string, string> } = {}) =>
    openSse(`${rig.url}${path}`, { ...init, headers: { 'x-dev-user': 'ada', ...init.headers } });
  return { ...rig, calls, ask, open };
}

export async function* follow(_run: Run, after: number): AsyncGenerator<Followed, void, void> {
  for (const item of STORY) if (item.kind === 'event' && item.cursor > after) yield item;
}

export const admitted = { run: run(), message_id: 'message', replayed: false };
export const refuse =
  (code: RunledgerError['code'], details: object = {}) =>
  async () => {
    throw new RunledgerError(code, 'Refused.', { details: { ...details } });
  };
