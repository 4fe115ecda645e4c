/** What a run knows of who asked for it. It is the run's own: not its thread's, whose later runs others may ask for, nor its checkpoints'. */
import type { JsonObject } from '#src/events/event.ts';

const OF_THE_USER = 'langgraph_auth_';

/** A configurable without it. */
export function withoutUserFacts(configurable: JsonObject | undefined): JsonObject {
  return Object.fromEntries(Object.entries(configurable ?? {}).filter(([key]) => !key.startsWith(OF_THE_USER)));
}
