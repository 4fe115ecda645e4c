/**
 * The path of a token from LangGraph's part to the acknowledged append, alone in a process: parts made beforehand, the
 * real translator, log writer, hub and log, no graph and no client.
 */

import { hash, randomUUID } from 'node:crypto';
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
  /** Bytes of `work` for each token, in LangGraph's place. */
  workBytes: number;
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

/** What LangGraph itself takes for a token, about, measured beside this path; its place is taken by hashing. */
const LANGGRAPH_US = 70;
const block = Buffer.alloc(256 * 1024, 'token ');

/** Native work, so that what runs beside it does not change how fast it is; a clock would count other processes too. */
function work(bytes: number): void {
  hash('sha1', block.subarray(0, bytes), 'hex');
}

/** How many bytes `work` takes for LANGGRAPH_US. */
function calibrate(): number {
  const rounds = 2_000;
  const start = process.cpuUsage();
  for (let round = 0; round < rounds; round += 1) work(16 * 1024);
  return Math.min(block.length, Math.round((LANGGRAPH_US * 16 * 1024 * rounds) / process.cpuUsage(start).user));
}

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
  for (let given = 0; given < total; given += 1) {
    const run = given % load.runs;
    work(load.workBytes);
    sinks[run]?.part(parts[run]?.[Math.floor(given / load.runs)]);
    // Every run has had a part: the sockets have their turn.
    if (run === load.runs - 1) await new Promise((resolve) => setImmediate(resolve));
  }
  await Promise.all(sinks.map((sink) => sink.end()));
  const { user, system } = process.cpuUsage(start);
  return { cpuUsPerToken: (user + system) / total, wallMs: performance.now() - startMs };
}

answerParent({ eventPath, calibrate });
