/** What a webhook says of a run that has ended. */
import type { Json, JsonObject } from '#src/events/event.ts';
import { terminalFacts } from './outcome.ts';
import type { Run } from './run.ts';

/** @param values the state the run left; only for runs that a LangGraph client asked for */
export function webhookPayload(run: Run, values: Json): Json {
  return (run.assistant_id === null ? ownForm(run) : langgraphForm(run, run.assistant_id, values)) as JsonObject;
}

function ownForm(run: Run): object {
  const { error, ...facts } = terminalFacts(run);
  return {
    type: 'run.ended',
    run_id: run.id,
    thread_id: run.thread_id,
    turn_id: run.turn_id,
    ...facts,
    error: error === null ? null : { code: error.code, message: error.message, recovery: error.recovery },
  };
}

/** As LangGraph's own server sends it. It is sent later than it is made, so it does not say when. */
function langgraphForm(run: Run, assistantId: string, values: Json): object {
  const { error } = run;
  return {
    run_id: run.id,
    thread_id: run.thread_id,
    assistant_id: assistantId,
    created_at: run.created_at,
    updated_at: run.ended_at,
    status: langgraphStatus(run),
    metadata: run.config.metadata ?? {},
    multitask_strategy: run.wire?.multitask_strategy ?? 'reject',
    run_started_at: run.started_at,
    run_ended_at: run.ended_at,
    values,
    ...(error === null ? {} : { error: error.thrown ?? { error: error.code, message: error.message } }),
  };
}

function langgraphStatus({ status, error }: Run): string {
  if (status === 'failed') return error?.code === 'RUN_TIMEOUT' ? 'timeout' : 'error';
  return status === 'cancelled' ? 'interrupted' : 'success';
}
