/**
 * A valid history after an abnormal end: what a person saw is kept, and every tool call has a result, because a model
 * provider answers 400 to a call without one. Pure; what it makes has ids derived from the run and the call, so that
 * repairing twice changes nothing.
 */
import { AIMessage, type BaseMessage, isAIMessage, isToolMessage, ToolMessage } from '@langchain/core/messages';

/** An AI message that was streamed and that no node returned. */
export interface PartialMessage {
  id: string;
  text: string;
}

const NOT_COMPLETED = 'This tool call was not completed: the run was stopped before it had a result.';

/**
 * @param messages the lineage's messages
 * @param partials text that was streamed and is in none of them
 * @returns the repaired list, or null when nothing is to be repaired
 */
export function repairHistory(
  messages: readonly BaseMessage[],
  partials: readonly PartialMessage[],
  runId: string,
): BaseMessage[] | null {
  const known = new Set(messages.map((message) => message.id));
  const repaired: BaseMessage[] = [];
  let changed = false;
  for (let at = 0; at < messages.length; ) {
    const message = messages[at] as BaseMessage;
    repaired.push(message);
    at += 1;
    if (!isAIMessage(message)) continue;
    const open = new Map(toolCallsOf(message).map((call) => [call.id, call.name]));
    for (let next = messages[at]; next !== undefined && isToolMessage(next); next = messages[at]) {
      open.delete(next.tool_call_id);
      repaired.push(next);
      at += 1;
    }
    for (const [id, name] of open) {
      repaired.push(closedCall(runId, id, name));
      changed = true;
    }
  }
  for (const { id, text } of partials) {
    if (known.has(id) || text === '') continue;
    repaired.push(new AIMessage({ id, content: text, response_metadata: { partial: true, run_id: runId } }));
    changed = true;
  }
  return changed ? repaired : null;
}

function closedCall(runId: string, toolCallId: string, name: string | undefined): ToolMessage {
  return new ToolMessage({
    id: `${runId}-${toolCallId}`,
    tool_call_id: toolCallId,
    ...(name === undefined ? {} : { name }),
    content: NOT_COMPLETED,
    status: 'error',
  });
}

/** Calls a provider will be told of: parsed ones, and those whose arguments were no JSON, which are sent as they came. */
function toolCallsOf(message: AIMessage): { id: string; name: string | undefined }[] {
  const calls: { id: string; name: string | undefined }[] = [];
  for (const call of [...(message.tool_calls ?? []), ...(message.invalid_tool_calls ?? [])]) {
    if (call.id !== undefined) calls.push({ id: call.id, name: call.name });
  }
  for (const call of message.additional_kwargs.tool_calls ?? []) calls.push({ id: call.id, name: call.function.name });
  return calls;
}
