/** What a run is told of who asks for it, by an Auth module's word. */
import type { FastifyRequest } from 'fastify';
import type { Json, JsonObject } from '#src/events/event.ts';

/** For the graph's configurable: the names LangGraph's own server gives these. Undefined without a module. */
export function userFacts(request: Pick<FastifyRequest, 'principal'>): JsonObject | undefined {
  const user = request.principal.access?.user;
  if (user === undefined) return undefined;
  return {
    langgraph_auth_user: JSON.parse(JSON.stringify(user)) as Json,
    langgraph_auth_user_id: user.identity,
    langgraph_auth_permissions: [...user.permissions],
  };
}
