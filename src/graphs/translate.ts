/** What LangGraph yields -> events. The only reader of LangGraph's parts: everything after it sees `RunEvent`s. */
import type { BaseCallbackHandler } from '@langchain/core/callbacks/base';
import type { GraphMode, Json, JsonObject, Namespace, RunEvent, Usage } from '#src/events/event.ts';
import { createAnswerFold } from './answer.ts';
import type { Translator, WriteEvent } from './graph.ts';
import { toJson } from './json.ts';
import { isMessage, type MessageView, partJson } from './message-fields.ts';
import { createMessageFold } from './message-fold.ts';
import { createModelCalls } from './model-calls.ts';
import { interruptsIn, isCached, isGraphMode, tellsInterrupt, withoutInternals } from './part-data.ts';
import { addUsage } from './usage.ts';

/** A translator and what the executor passes to LangGraph for it. */
export interface RunTranslator extends Translator {
  /** For `callbacks` of graph.stream: sees calls that stream nothing, and when a call has ended. */
  readonly usageCallback: BaseCallbackHandler;
}

export interface TranslatorOptions {
  write: WriteEvent;
  /**
   * True when the graph goes on within a step (a takeover, an answer): LangGraph then repeats the updates of the step's
   * finished tasks, marked cached, and they are dropped. Default false.
   */
  continued?: boolean;
}

/** One per run and epoch. */
export function createTranslator({ write, continued = false }: TranslatorOptions): RunTranslator {
  const answers = createAnswerFold(toJson);
  const messages = createMessageFold(write, answers);
  const repeats = createRepeats(continued);
  const held: RunEvent[] = [];
  const interrupts = new Map<string, Json>();
  let paused = false;
  let total: Usage | null = null;

  const calls = createModelCalls((call) => {
    if (call.usage !== null) total = addUsage(total, call.usage);
    messages.finished(call);
  });

  function graphPart(ns: Namespace, mode: GraphMode, data: unknown): void {
    const found: MessageView[] = [];
    const json = withoutInternals(
      mode,
      partJson(data, mode === 'updates' ? (message) => found.push(message) : undefined),
    );
    const event = { type: 'graph.part', mode, ns, data: json } as const;
    if (tellsInterrupt(mode, json)) {
      held.push(event);
      if (mode === 'updates' && ns.length === 0) noteInterrupts(json);
      return;
    }
    for (const message of found) messages.returned(ns, message);
    if (mode === 'updates' && repeats.drops(ns, json)) return;
    write(event);
  }

  function noteInterrupts(data: Json): void {
    paused = true;
    for (const { id, value } of interruptsIn(data)) interrupts.set(id, value);
  }

  return {
    held,
    usageCallback: calls.handler,
    get interrupts() {
      return Array.from(interrupts, ([id, value]) => ({ id, value }));
    },
    get paused() {
      return paused;
    },
    part(item) {
      if (!Array.isArray(item)) return;
      const [ns, mode, data] = item as [Namespace, unknown, unknown];
      if (mode !== 'messages') {
        if (isGraphMode(mode)) graphPart(ns, mode, data);
        return;
      }
      const [message, metadata] = data as [unknown, JsonObject];
      if (isMessage(message)) messages.part(ns, message, metadata);
    },
    answer: answers.current,
    unfinished: messages.unfinished,
    partials: messages.partials,
    forgetUnfinished() {
      const ids = messages.unfinished();
      messages.forget();
      repeats.expect();
      held.length = 0; // a task that asked will ask again
      interrupts.clear();
      paused = false;
      return ids;
    },
    end: messages.end,
    usage: () => total,
    fromModel: calls.threw,
  };
}

/**
 * Which updates are repetitions. LangGraph repeats those of finished tasks when it goes on within a step, before anything
 * else of that namespace; a cached update after that comes from a node's own cache and is news.
 */
function createRepeats(expected: boolean) {
  let begun = new Set<string>();
  let expecting = expected;
  return {
    drops(ns: Namespace, data: Json): boolean {
      if (!expecting) return false;
      const key = ns.join('|');
      if (isCached(data) && !begun.has(key)) return true;
      begun.add(key);
      return false;
    },
    expect(): void {
      begun = new Set();
      expecting = true;
    },
  };
}
