/**
 * Watches a run's model calls through LangChain's callbacks: what each finished call used, also when the call streams
 * nothing (tag `nostream`), and which errors came from a model.
 */
import { BaseCallbackHandler } from '@langchain/core/callbacks/base';
import type { LLMResult } from '@langchain/core/outputs';
import type { Namespace, Usage } from '#src/events/event.ts';
import { foldUsage, readUsage } from './usage.ts';

/** A model call that ended well. */
export interface FinishedCall {
  message_id: string;
  ns: Namespace;
  model: string | null;
  /** Null when the provider reported none. */
  usage: Usage | null;
  /** Message parts the stream carries for this call: its chunks, or 1 for a whole message, or 0 when it streams nothing. */
  parts: number;
}

export interface ModelCalls {
  /** For `callbacks` of graph.stream; subgraphs and tools inherit it. */
  handler: BaseCallbackHandler;
  /** True when this very error object was thrown by a model call of the run. */
  threw(error: unknown): boolean;
}

interface OpenCall {
  streams: boolean;
  ns: Namespace;
  model: string | null;
  chunks: number;
  firstId: string | undefined;
  usage: Usage | null;
}

interface Generated {
  message?: { id?: string; usage_metadata?: unknown; response_metadata?: Record<string, unknown> };
}

// LangChain queues callbacks behind one another, process-wide, unless told not to. LangGraph's own handler, which makes
// the parts of mode `messages`, would then lag behind the graph, and what is still queued when a run ends is lost.
// Awaited, a part exists before the node goes on, and each token costs less.
process.env.LANGCHAIN_CALLBACKS_BACKGROUND ??= 'false';

const NO_STREAM = ['nostream', 'langsmith:nostream'];

/** @param onFinished called once per finished call, before LangChain returns the answer to the node */
export function createModelCalls(onFinished: (call: FinishedCall) => void): ModelCalls {
  const open = new Map<string, OpenCall>();
  const errors = new WeakSet<object>();

  const handler = BaseCallbackHandler.fromMethods({
    handleChatModelStart(_llm, _messages, runId, _parentRunId, _extra, tags, metadata) {
      open.set(runId, openCall(tags, metadata));
    },
    handleLLMNewToken(_token, _index, runId, _parentRunId, _tags, fields) {
      const call = open.get(runId);
      if (call === undefined) return;
      call.chunks += 1;
      const message = (fields?.chunk as Generated | undefined)?.message;
      if (message === undefined) return;
      call.firstId ??= message.id;
      if (message.usage_metadata === undefined) return;
      const report = readUsage(message.usage_metadata);
      if (report !== null) call.usage = foldUsage(call.usage, report);
    },
    handleLLMEnd(output, runId) {
      const call = open.get(runId);
      open.delete(runId);
      if (call !== undefined) onFinished(finishedCall(call, output, runId));
    },
    handleLLMError(error: unknown, runId) {
      open.delete(runId);
      if (typeof error === 'object' && error !== null) errors.add(error);
    },
  });
  handler.name = 'RunledgerModelCalls';
  handler.ignoreChain = true;
  handler.ignoreAgent = true;
  handler.awaitHandlers = true; // whatever the environment says: the executor ends the translator when the stream has ended
  return { handler, threw: (error) => typeof error === 'object' && error !== null && errors.has(error) };
}

function openCall(tags: string[] | undefined, metadata: Record<string, unknown> | undefined): OpenCall {
  const ns = metadata?.langgraph_checkpoint_ns ?? metadata?.checkpoint_ns;
  const inGraph = typeof ns === 'string' && ns !== '';
  const model = metadata?.ls_model_name;
  return {
    streams: inGraph && tags?.some((tag) => NO_STREAM.includes(tag)) !== true,
    // The last element is the task that called the model; the namespace is the graph it belongs to.
    ns: inGraph ? ns.split('|').slice(0, -1) : [],
    model: typeof model === 'string' ? model : null,
    chunks: 0,
    firstId: undefined,
    usage: null,
  };
}

function finishedCall(call: OpenCall, output: LLMResult, runId: string): FinishedCall {
  const message = (output.generations[0]?.[0] as Generated | undefined)?.message;
  const model = message?.response_metadata?.model_name;
  return {
    message_id: call.firstId ?? message?.id ?? `run-${runId}`,
    ns: call.ns,
    model: typeof model === 'string' && model !== '' ? model : call.model,
    usage: call.usage ?? readUsage(message?.usage_metadata),
    parts: call.streams ? Math.max(call.chunks, 1) : 0,
  };
}
