/**
 * What LangGraph does alone: the same graphs and the same model client in one process with the stock Postgres saver,
 * durability `async`, no server, no event log, no status. The yardstick.
 */
import { randomUUID } from 'node:crypto';
import { PostgresSaver } from '@langchain/langgraph-checkpoint-postgres';
import pg from 'pg';
import { createChatModel } from '#src/graphs/models.ts';
import type { GraphRuntime } from '#src/graphs/registry.ts';
import { chat, deltaNotes, notes, trivial } from './graphs.ts';
import { answerParent } from './ipc.ts';
import { atATime, LONG_QUESTION, SHORT_QUESTION } from './loads.ts';
import { createStampReader } from './stamps.ts';

const { BARE_DATABASE_URL, OPENAI_BASE_URL = null } = process.env;
const pool = new pg.Pool({ connectionString: BARE_DATABASE_URL, max: 10, application_name: 'bare' });
const saver = new PostgresSaver(pool);
const runtime: GraphRuntime = {
  createModel: (configurable) =>
    createChatModel({
      model: { apiKey: null, baseUrl: OPENAI_BASE_URL, name: 'fake', chunkTimeoutMs: 60_000, callTimeoutMs: 600_000 },
      ...(configurable === undefined ? {} : { configurable }),
    }),
  accessContext: 'threads.create_run',
  executionRuntime: { context: undefined },
};
const graphs = { trivial, notes, deltaNotes };

/** The input as the server gives it. */
function inputOf(content: string) {
  return { messages: [{ type: 'human', id: randomUUID(), content }] };
}

export interface ChatRun {
  firstMs: number;
  totalMs: number;
  tokens: number;
  delaysMs: number[];
}

/** One run of the chat graph, its tokens read as they come. */
async function chatRun(model: string): Promise<ChatRun> {
  const startMs = performance.now();
  const stamps = createStampReader();
  let firstMs = 0;
  let tokens = 0;
  const configurable = { thread_id: randomUUID(), model };
  const stream = await chat({ configurable }, runtime)
    .compile({ checkpointer: saver })
    .stream(inputOf(SHORT_QUESTION), { configurable, streamMode: 'messages', durability: 'async' });
  for await (const [message] of stream) {
    if (typeof message.content !== 'string' || message.content === '') continue;
    if (tokens === 0) firstMs = performance.now() - startMs;
    tokens += 1;
    stamps.read(message.content);
  }
  return { firstMs, totalMs: performance.now() - startMs, tokens, delaysMs: stamps.delaysMs };
}

async function plainRun(graph: keyof typeof graphs, threadId: string, text: string): Promise<number> {
  const startMs = performance.now();
  const bound = Object.assign(Object.create(graphs[graph]), { checkpointer: saver }) as typeof trivial;
  await bound.invoke(inputOf(text), { configurable: { thread_id: threadId }, durability: 'async' });
  return performance.now() - startMs;
}

answerParent({
  setup: () => saver.setup(),
  async chat(load: { runs: number; concurrency: number; model: string; staggerMs?: number }) {
    return atATime(load.runs, load.concurrency, () => chatRun(load.model), load.staggerMs);
  },
  async trivial({ runs, concurrency }: { runs: number; concurrency: number }) {
    return atATime(runs, concurrency, () => plainRun('trivial', randomUUID(), SHORT_QUESTION));
  },
  turn: ({ graph, threadId }: { graph: keyof typeof graphs; threadId: string }) =>
    plainRun(graph, threadId, LONG_QUESTION),
});
