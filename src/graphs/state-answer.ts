/** The answer as a graph's state tells it, for a run that showed none itself (it was taken over after its last node). */
import { isAIMessage, isBaseMessage } from '@langchain/core/messages';
import type { Json } from '#src/events/event.ts';
import { toJson } from './json.ts';

/** The state's last message when it is an AI message that calls no tool; null otherwise. `snapshot`: of `graph.getState`. */
export function answerInState(snapshot: unknown): { content: Json; stream_id: string | null } | null {
  const messages = (snapshot as { values?: { messages?: unknown } }).values?.messages;
  const last: unknown = Array.isArray(messages) ? messages.at(-1) : undefined;
  if (!isBaseMessage(last) || !isAIMessage(last) || (last.tool_calls?.length ?? 0) > 0) return null;
  return { content: toJson(last.content), stream_id: last.id ?? null };
}
