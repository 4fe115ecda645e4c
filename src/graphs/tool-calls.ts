/** Tool calls between the model's answer and the tools: what can be trusted of a call, and one task per call. */
import { randomUUID } from 'node:crypto';
import { AIMessage, type AIMessageChunk, ToolMessage } from '@langchain/core/messages';
import type { ToolCall } from '@langchain/core/messages/tool';
import type { RunnableConfig } from '@langchain/core/runnables';
import type { StructuredToolInterface } from '@langchain/core/tools';
import { isGraphBubbleUp } from '@langchain/langgraph';

/** Input of the tools node: one call, and what is wrong with it, if anything. */
export interface ToolTask {
  call: ToolCall;
  problem: string | null;
}

const BROKEN_ARGUMENTS = 'The arguments of this call are not valid JSON. Nothing was done.';

/**
 * The model's answer as it is stored. Every call gets an id, and a call whose arguments are not whole (LangChain completes
 * broken JSON, which would run a tool with half its arguments) stays a call, with empty arguments, and is listed in
 * `invalid_tool_calls` with the text the model sent. So each call can be answered, as providers demand.
 */
export function storedAnswer(answer: AIMessageChunk): AIMessage {
  const text = new Map((answer.tool_call_chunks ?? []).map((chunk) => [chunk.id, chunk.args ?? '']));
  const calls = [...(answer.tool_calls ?? []), ...(answer.invalid_tool_calls ?? [])];
  const invalid: NonNullable<AIMessage['invalid_tool_calls']> = [];
  const settled = calls.map((call): ToolCall => {
    const id = call.id ?? `call_${randomUUID()}`;
    const sent = typeof call.args === 'string' ? call.args : text.get(call.id);
    if (typeof call.args === 'object' && (sent === undefined || isWholeJson(sent))) {
      return { type: 'tool_call', id, name: call.name ?? '', args: call.args };
    }
    invalid.push({ type: 'invalid_tool_call', id, name: call.name ?? '', args: sent ?? '', error: BROKEN_ARGUMENTS });
    return { type: 'tool_call', id, name: call.name ?? '', args: {} };
  });
  const { tool_calls: _repeated, ...kwargs } = answer.additional_kwargs;
  return new AIMessage({
    ...(answer.id === undefined ? {} : { id: answer.id }),
    content: answer.content,
    additional_kwargs: kwargs,
    response_metadata: answer.response_metadata,
    ...(answer.usage_metadata === undefined ? {} : { usage_metadata: answer.usage_metadata }),
    tool_calls: settled,
    invalid_tool_calls: invalid,
  });
}

/** One task per call of the answer: interrupts in one task would share an id. */
export function toolTasks(answer: AIMessage): ToolTask[] {
  const invalid = new Set(answer.invalid_tool_calls?.map((call) => call.id));
  return (answer.tool_calls ?? []).map((call) => ({ call, problem: invalid.has(call.id) ? BROKEN_ARGUMENTS : null }));
}

/**
 * Runs one tool call. What a tool throws becomes its result, for the model to read; an interrupt and an abort pass through.
 */
export async function runToolTask(
  tools: StructuredToolInterface[],
  task: ToolTask,
  config: RunnableConfig,
): Promise<ToolMessage> {
  const { call, problem } = task;
  if (problem !== null) return failedCall(call, problem);
  const tool = tools.find((candidate) => candidate.name === call.name);
  if (tool === undefined) return failedCall(call, `There is no tool with the name ${JSON.stringify(call.name)}.`);
  try {
    return (await tool.invoke({ ...call, type: 'tool_call' }, config)) as ToolMessage;
  } catch (error) {
    config.signal?.throwIfAborted();
    if (isGraphBubbleUp(error as Parameters<typeof isGraphBubbleUp>[0])) throw error;
    return failedCall(call, error instanceof Error ? error.message : String(error));
  }
}

function failedCall(call: ToolCall, content: string): ToolMessage {
  return new ToolMessage({ tool_call_id: call.id ?? '', name: call.name, content, status: 'error' });
}

/** An empty text is a call without arguments. */
function isWholeJson(text: string): boolean {
  if (text.trim() === '') return true;
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}
