/**
 * The path of a token from LangGraph's part to the acknowledged append, alone in a process: parts made beforehand, the
 * real translator, log writer, hub and log, no graph and no client.
 */

import { randomUUID } from 'node:crypto';
import { AIMessageChunk } from '@langchain/core/messages';
import { pino } from 'pino';
import { createHub } from '#src/events/live-hub.ts';
import { createLogWriter } from '#src/events/log-writer.ts';
import { createMemoryLog } from '#src/events/memory-log.ts';
import { createRedisLog } from '#src/events/redis-log.ts';
import { createTranslator } from '#src/graphs/translate.ts';
import { createRedis } from '#src/redis/clients.ts';
import { answerParent } from './ipc.ts';

export interface EventPathLoad {
  runs: number;
  tokensPerRun: number;
  /** Tokens a second of all runs together, or as fast as the event loop turns. */
  tokensPerSecond: number | null;
  /** False: the same loop with nothing behind it, to be subtracted. */
  withPath: boolean;
}

const logger = pino({ level: 'silent' });
const redisUrl = process.env.REDIS_URL;
const log =
  redisUrl === undefined
    ? createMemoryLog({ memoryLimitBytes: 512 * 1024 ** 2 })
    : createRedisLog({ redis: createRedis({ url: redisUrl, logger }), logger });
const hub = createHub({ log, logger });
const writer = createLogWriter({
  log,
  deliver: hub.deliver,
  limits: { maxEvents: 150_000, maxBytes: 64 * 1024 ** 2, unacknowledgedBytes: 16 * 1024 ** 2 },
  logger,
});

interface Sink {
  part(item: unknown): void;
  end(): Promise<void>;
}

const nothing: Sink = { part: () => undefined, end: async () => undefined };

function openRun(): Sink {
  const runId = randomUUID();
  const run = writer.open(runId, 1, () => undefined);
  const translator = createTranslator({ write: (event) => run.write(event) });
  return {
    part: translator.part,
    async end() {
      await run.flush(30_000);
      run.close();
      await log.remove(runId);
    },
  };
}

/** One run's parts, as LangGraph yields them: every chunk an object of its own, the metadata one object for the call. */
function partsOf(tokens: number): unknown[] {
  const metadata = {
    thread_id: randomUUID(),
    run_id: randomUUID(),
    graph_id: 'chat',
    langgraph_step: 1,
    langgraph_node: 'model',
    langgraph_triggers: ['branch:to:model'],
    langgraph_path: ['__pregel_pull', 'model'],
    langgraph_checkpoint_ns: `model:${randomUUID()}`,
    ls_provider: 'openai',
    ls_model_name: 'fake',
    ls_model_type: 'chat',
  };
  const id = `run-${randomUUID()}`;
  return Array.from({ length: tokens }, () => [
    [],
    'messages',
    [new AIMessageChunk({ id, content: 'token ', additional_kwargs: {}, response_metadata: {} }), metadata],
  ]);
}

async function eventPath(load: EventPathLoad): Promise<{ cpuUsPerToken: number; wallMs: number }> {
  const parts = Array.from({ length: load.runs }, () => partsOf(load.tokensPerRun));
  const sinks = parts.map(() => (load.withPath ? openRun() : nothing));
  const total = load.runs * load.tokensPerRun;
  const start = process.cpuUsage();
  const startMs = performance.now();
  let given = 0;
  while (given < total) {
    const due =
      load.tokensPerSecond === null
        ? given + load.runs
        : Math.ceil(((performance.now() - startMs) / 1000) * load.tokensPerSecond);
    for (; given < Math.min(due, total); given += 1) {
      const run = given % load.runs;
      sinks[run]?.part(parts[run]?.[Math.floor(given / load.runs)]);
    }
    await new Promise((resolve) => (load.tokensPerSecond === null ? setImmediate(resolve) : setTimeout(resolve, 1)));
  }
  await Promise.all(sinks.map((sink) => sink.end()));
  const { user, system } = process.cpuUsage(start);
  return { cpuUsPerToken: (user + system) / total, wallMs: performance.now() - startMs };
}

answerParent({ eventPath });
