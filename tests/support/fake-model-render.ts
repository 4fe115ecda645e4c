/** The bytes of the OpenAI chat completions API. */
import type { ChatRequest, Reply, Step, TokenUsage } from './fake-model-script.ts';
import { DEFAULT_USAGE } from './fake-model-script.ts';

export interface Envelope {
  id: string;
  model: string;
  created: number;
}

/** One `chat.completion.chunk` as an SSE frame. */
export function chunkFrame(envelope: Envelope, choice: object | null, usage?: TokenUsage): string {
  return `data: ${JSON.stringify({
    id: envelope.id,
    object: 'chat.completion.chunk',
    created: envelope.created,
    model: envelope.model,
    choices: choice === null ? [] : [{ index: 0, logprobs: null, finish_reason: null, ...choice }],
    ...(usage === undefined ? {} : { usage }),
  })}\n\n`;
}

/** The `delta` of a step, or null when the step sends no chunk. */
export function deltaOf(step: Step): Record<string, unknown> | null {
  switch (step.do) {
    case 'text':
      return { content: step.text };
    case 'reasoning':
      return { [step.field ?? 'reasoning_content']: step.text };
    case 'tool_call':
      return { tool_calls: [toolCallPart(step)] };
    case 'delta':
      return step.delta;
    default:
      return null;
  }
}

function toolCallPart(step: Extract<Step, { do: 'tool_call' }>): object {
  const fn = {
    ...(step.name === undefined ? {} : { name: step.name }),
    ...(step.args === undefined ? {} : { arguments: step.args }),
  };
  return {
    index: step.index,
    ...(step.id === undefined ? {} : { id: step.id, type: 'function' }),
    function: fn,
  };
}

/** Cumulative usage after `done` of `total` chunks: the prompt is known at once, the answer grows. */
export function cumulativeUsage(reply: Reply, done: number, total: number): TokenUsage {
  const whole = reply.usage ?? DEFAULT_USAGE;
  const completion = done >= total ? whole.completion_tokens : Math.floor((whole.completion_tokens * done) / total);
  return { ...whole, completion_tokens: completion, total_tokens: whole.prompt_tokens + completion };
}

/** The whole answer as one `chat.completion` (no streaming). */
export function completion(envelope: Envelope, request: ChatRequest, reply: Reply): string {
  let content = '';
  let reasoning = '';
  let finish = 'stop';
  const calls = new Map<number, { id: string; type: 'function'; function: { name: string; arguments: string } }>();
  for (const step of reply.steps) {
    if (step.do === 'text') content += step.text;
    if (step.do === 'reasoning') reasoning += step.text;
    if (step.do === 'finish') finish = step.reason;
    if (step.do !== 'tool_call') continue;
    const call = calls.get(step.index) ?? { id: '', type: 'function', function: { name: '', arguments: '' } };
    call.id = step.id ?? call.id;
    call.function.name = step.name ?? call.function.name;
    call.function.arguments += step.args ?? '';
    calls.set(step.index, call);
  }
  const message = {
    role: 'assistant',
    content: calls.size > 0 && content === '' ? null : content,
    ...(reasoning === '' ? {} : { reasoning_content: reasoning }),
    ...(calls.size === 0 ? {} : { tool_calls: [...calls.values()] }),
  };
  return JSON.stringify({
    id: envelope.id,
    object: 'chat.completion',
    created: envelope.created,
    model: request.model,
    choices: [{ index: 0, message, logprobs: null, finish_reason: finish }],
    ...(reply.reportUsage === 'none' ? {} : { usage: reply.usage ?? DEFAULT_USAGE }),
  });
}
