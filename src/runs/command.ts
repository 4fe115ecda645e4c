/** A command as it travels, as LangGraph takes it: a goto with an input becomes a Send. */
import { type CommandParams, Send } from '@langchain/langgraph';
import type { Json, JsonObject } from '#src/events/event.ts';

/** @param command `{resume?, update?, goto?}`; goto is a node's name, `{node, input}`, or a list of them */
export function commandOf(command: JsonObject): CommandParams<Json> {
  const { goto: target, resume, update } = command;
  const targets = target === undefined || target === null ? [] : Array.isArray(target) ? target : [target];
  return {
    ...(resume === undefined ? {} : { resume }),
    ...(update === undefined || update === null ? {} : { update: update as JsonObject }),
    ...(targets.length === 0 ? {} : { goto: targets.map(targetOf) }),
  };
}

function targetOf(target: Json): string | Send {
  if (typeof target === 'object' && target !== null && !Array.isArray(target)) {
    return new Send(String(target.node), target.input ?? null);
  }
  return String(target);
}
