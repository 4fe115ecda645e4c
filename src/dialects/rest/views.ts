/** What clients get: rows of the core as the REST dialect shows them, and the schemas that document them. */
import { z } from 'zod';
import { type Admitted, type CancelResult, isTerminal, type Run } from '#src/runs/run.ts';
import type { Thread, Turn } from '#src/threads/service.ts';
import { streamPath } from './links.ts';

const json = z.unknown();
const jsonObject = z.record(z.string(), json);
const runStatus = z.enum(['prepared', 'queued', 'running', 'succeeded', 'interrupted', 'failed', 'cancelled']);
const threadStatus = z
  .enum(['idle', ...runStatus.options])
  .describe('The status of the latest run; idle: there is none.');
const time = z.string().describe("ISO 8601, by the database's clock.");
const interrupt = z.object({ id: z.string(), value: json });
const failure = z.object({
  code: z.string(),
  message: z.string(),
  recovery: z
    .enum(['retry', 'resend', 'none'])
    .describe('retry: the server holds the input; resend: only the client does.'),
});

export const refusalView = z
  .looseObject({
    code: z.string(),
    message: z.string(),
    request_id: z.string(),
    path: z.string().optional().describe('The field of the request that is wrong, dotted.'),
  })
  .describe('A refusal; the code is stable, the message is for people.');

export const threadView = z.object({
  id: z.string(),
  title: z.string().nullable(),
  graph: z.string().nullable(),
  metadata: jsonObject,
  archived: z.boolean(),
  pinned: z.boolean(),
  status: threadStatus,
  latest_run_id: z.string().nullable(),
  created_at: time,
  updated_at: time,
});

export const threadListView = z.object({
  threads: z.array(threadView),
  next_cursor: z.string().nullable().describe('null on the last page.'),
});

export const runView = z.object({
  id: z.string(),
  thread_id: z.string(),
  turn_id: z.string().nullable(),
  graph: z.string(),
  kind: z
    .string()
    .describe('message: a new turn; answer: answers interrupts; rerun: a turn tried again; plain: no turn.'),
  status: runStatus,
  takeovers: z.number().describe('How often another worker went on with it without progress since.'),
  on_disconnect: z.enum(['continue', 'cancel']),
  cancel_requested_at: time.nullable(),
  error: failure.nullable(),
  reason: z.string().nullable().describe('Why it was cancelled, when it was not a person.'),
  usage: jsonObject.nullable().describe('Token counts, summed over the run.'),
  interrupts: z.array(interrupt),
  stream_url: z.string(),
  created_at: time,
  started_at: time.nullable(),
  ended_at: time.nullable(),
});

export const statusView = z.object({
  thread_id: z.string(),
  status: threadStatus,
  active_run_id: z.string().nullable().describe('The run that can be followed and cancelled now.'),
  run: runView.nullable().describe('The latest run.'),
});

export const turnListView = z.object({
  turns: z.array(
    z.object({
      id: z.string(),
      ordinal: z.number(),
      question: z.object({ id: z.string(), content: json, created_at: time }).nullable(),
      answer: z
        .object({
          id: z.string(),
          content: json,
          partial: z.boolean().describe('The run did not complete it.'),
          stream_id: z.string().nullable().describe('The `message_id` it was streamed with.'),
          created_at: time,
        })
        .nullable(),
      status: threadStatus,
      active_run_id: z.string().nullable(),
      latest_run_id: z.string().nullable(),
      interrupts: z.array(interrupt).describe('Open questions.'),
      error: failure.nullable(),
      is_latest: z.boolean(),
      can_rerun: z.boolean(),
      created_at: time,
    }),
  ),
});

export const acceptedView = z.object({
  thread_id: z.string(),
  turn_id: z.string().nullable(),
  run_id: z.string(),
  message_id: z.string().nullable().describe('The message of this request; null for an answer.'),
  stream_url: z.string(),
});

export const cancelView = z.object({
  outcome: z
    .enum(['stopping', 'stopped', 'idle'])
    .describe('stopping: stored, the worker will see it; stopped: the run has ended; idle: nothing was live.'),
  run_id: z.string().nullable(),
  status: runStatus.nullable(),
});

export function threadOf(thread: Thread): z.output<typeof threadView> {
  const { owner: _owner, graph_id, ...rest } = thread;
  return { ...rest, graph: graph_id };
}

export function turnOf(turn: Turn): z.output<typeof turnListView>['turns'][number] {
  return turn;
}

export function runOf(run: Run): z.output<typeof runView> {
  return {
    id: run.id,
    thread_id: run.thread_id,
    turn_id: run.turn_id,
    graph: run.graph_id,
    kind: run.kind,
    status: run.status,
    takeovers: run.takeovers,
    on_disconnect: run.on_disconnect,
    cancel_requested_at: run.cancel_requested_at,
    error: run.error,
    reason: run.reason,
    usage: run.usage === null ? null : { ...run.usage },
    interrupts: run.interrupts,
    stream_url: streamPath(run.thread_id, run.id),
    created_at: run.created_at,
    started_at: run.started_at,
    ended_at: run.ended_at,
  };
}

/** @param run the thread's latest run, null when it has none */
export function statusOf(threadId: string, run: Run | null): z.output<typeof statusView> {
  if (run === null) return { thread_id: threadId, status: 'idle', active_run_id: null, run: null };
  const live = run.status !== 'prepared' && !isTerminal(run.status);
  return { thread_id: threadId, status: run.status, active_run_id: live ? run.id : null, run: runOf(run) };
}

export function acceptedOf({ run, message_id }: Admitted): z.output<typeof acceptedView> {
  return {
    thread_id: run.thread_id,
    turn_id: run.turn_id,
    run_id: run.id,
    message_id,
    stream_url: streamPath(run.thread_id, run.id),
  };
}

export function cancelledOf({ outcome, run }: CancelResult): z.output<typeof cancelView> {
  return { outcome, run_id: run?.id ?? null, status: run?.status ?? null };
}
