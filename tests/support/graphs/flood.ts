/**
 * Says a lot, fast: `configurable.count` numbered custom events of `configurable.bytes` that no compression makes smaller. Then
 * it waits for an answer of `configurable.url`, if there is one.
 */
import { randomBytes } from 'node:crypto';
import { setImmediate as turn } from 'node:timers/promises';
import { MessagesAnnotation, START, StateGraph } from '@langchain/langgraph';
import type { GraphConfig } from '#src/graphs/registry.ts';

export function flood(config: GraphConfig) {
  const { count, bytes, url } = config.configurable as { count: number; bytes: number; url?: string };
  return new StateGraph(MessagesAnnotation)
    .addNode('speaks', async (_state, { writer }) => {
      for (let at = 0; at < count; at += 1) {
        writer?.({ at, text: randomBytes(Math.ceil((bytes * 3) / 4)).toString('base64') });
        await turn();
      }
      if (url !== undefined) await fetch(url);
      return {};
    })
    .addEdge(START, 'speaks');
}
