/** What LangGraph yields -> events. The only reader of LangGraph's parts: everything after it sees `RunEvent`s. */
import type { BaseCallbackHandler } from '@langchain/core/callbacks/base';
import type { GraphMode, Json, JsonObject, Namespace, RunEvent, Usage } from '#src/events/event.ts';
import { createAnswerFold } from './answer.ts';
import type { Translator, WriteEvent } from './graph.ts';
import { toJson } from './json.ts';
import { eventJson, isMessage, type MessageView, partJson } from './message-fields.ts';
import { createMessageFold } from './message-fold.ts';
import { createModelCalls } from './model-calls.ts';
import { interruptsIn, isCached, isGraphMode, tellsInterrupt, withoutInternals } from './part-data.ts';
import { createTold, type Told } from './told.ts';
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
  /** Whether chunks that are stored as one can be told apart. Default false. */
  cuts?: boolean;
  /** What former epochs told, if it is known: a repeated update that they did not tell is then told, with its messages. */
  told?: Told;
}

/** One per run and epoch. */
export function createTranslator({ write, continued = false, told, cuts = false }: TranslatorOptions): RunTranslator {
  const known = told ?? createTold();
  const answers = createAnswerFold(toJson);
  const messages = createMessageFold(write, answers, known, cuts);
  const repeats = createRepeats(continued, told, known);
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
    const whole =
      mode === 'events'
        ? eventJson(data)
        : partJson(data, mode === 'updates' ? (message) => found.push(message) : undefined);
    const json = withoutInternals(mode, whole);
    const event = { type: 'graph.part', mode, ns, data: json } as const;
    if (tellsInterrupt(mode, json)) {
      held.push(event);
      if (mode === 'updates' && ns.length === 0) noteInterrupts(json);
      return;
    }
    const judged = mode === 'updates' ? repeats.judge(ns, json) : 'news';
    if (judged === 'told' || judged === 'missed') messages.retell(ns, found);
    for (const message of found) messages.returned(ns, message);
    if (mode === 'updates') known.note(event);
    if (judged === 'news' || judged === 'missed') write(event);
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
      messages.forget(ids);
      repeats.expect();
      held.length = 0; // a task that asked will ask again
      interrupts.clear();
      paused = false;
      return ids;
    },
    shown: known.shown,
    forget: messages.forget,
    end: messages.end,
    usage: () => total,
    fromModel: calls.threw,
  };
}

/**
 * Tells repetitions from news. LangGraph repeats the updates of finished tasks when it goes on within a step, before anything
 * else of that namespace; a cached update after that comes from a node's own cache and is news.
 */
function createRepeats(expected: boolean, told: Told | undefined, known: Told) {
  let begun = new Set<string>();
  let expecting = expected;
  /** What was told before is not known; repetitions are then dropped as they are. */
  let blind = told === undefined;
  return {
    /** told, missed: a repetition of an update that was told, or was not. repeated: a repetition, and no more is known. */
    judge(ns: Namespace, data: Json): 'news' | 'told' | 'missed' | 'repeated' {
      const key = ns.join('|');
      if (!expecting || !isCached(data) || begun.has(key)) {
        if (expecting) begun.add(key);
        return 'news';
      }
      if (blind) return 'repeated';
      return known.hasUpdate(ns, data) ? 'told' : 'missed';
    },
    /** From here on what was told is known: this translator told it. */
    expect(): void {
      begun = new Set();
      expecting = true;
      blind = false;
    },
  };
}
