/** From a client's request for a run to the core's: assistant, thread and run put together. */
import type { FastifyRequest } from 'fastify';
import type { Assistant } from '#src/assistants/service.ts';
import type { Cron } from '#src/crons/service.ts';
import { RunledgerError } from '#src/errors.ts';
import type { GraphMode, Json, JsonObject } from '#src/events/event.ts';
import type { CheckpointRef, RunConfig, StartRequest } from '#src/runs/run.ts';
import { userFacts } from '../user-facts.ts';
import { type HeaderRules, headersToldOf } from './headers.ts';
import { type LangGraphDeps, parsed } from './route.ts';
import { type RunCreate, runCreate } from './wire.ts';

/**
 * @param threadId null for a run without a thread: then it gets one of its own, which is removed some time after its end
 *   unless the client wants to keep it
 * @throws RunledgerError ASSISTANT_NOT_FOUND
 */
export function startRequestOf(
  deps: Pick<LangGraphDeps, 'assistants' | 'threadTtl' | 'headerRules'>,
  request: FastifyRequest,
  threadId: string | null,
  body: RunCreate,
): Promise<StartRequest> {
  return requestOf(deps, { owner: request.principal.owner, facts: factsOf(request, deps.headerRules), threadId, body });
}

/**
 * What a cron asks for at each of its slots. Its assistant is looked up then: it may have changed, or be gone. Nobody asks at that
 * moment: an Auth module was asked when the cron was made.
 * @throws RunledgerError ASSISTANT_NOT_FOUND, INVALID_REQUEST
 */
export async function cronRequestOf(
  deps: Pick<LangGraphDeps, 'assistants' | 'threadTtl'>,
  cron: Cron,
): Promise<StartRequest> {
  const { owner, thread_id: threadId, assistant_id, metadata, on_run_completed: on_completion } = cron;
  const body = parsed(runCreate, { ...cron.payload, assistant_id, metadata, on_completion });
  const request = await requestOf(deps, { owner, facts: NO_FACTS, threadId, body });
  return { ...request, thread_metadata: { ...metadata, cron_id: cron.id } };
}

async function requestOf(
  { assistants, threadTtl }: Pick<LangGraphDeps, 'assistants' | 'threadTtl'>,
  asked: { owner: string; facts: Facts; threadId: string | null; body: RunCreate },
): Promise<StartRequest> {
  const { owner, facts, threadId, body } = asked;
  const assistant = await assistantOf(assistants, owner, body.assistant_id);
  const temporary = threadId === null && (body.on_completion ?? 'delete') !== 'keep';
  const modes = modesOf(body);
  return {
    owner,
    thread_id: threadId,
    if_missing: threadId === null ? 'create' : (body.if_not_exists ?? 'reject'),
    temporary,
    thread_ttl: threadTtl,
    graph_id: assistant.graph_id,
    assistant: {
      id: assistant.id,
      config: configOf(assistant.config),
      context: Object.keys(objectOf(assistant.context)).length === 0 ? null : assistant.context,
      metadata: assistant.metadata,
    },
    input: body.input ?? null,
    command: body.command ?? null,
    config: { ...runConfigOf(facts, body), ...(modes.some((mode) => CHUNKED.has(mode)) && { keeps_chunks: true }) },
    strategy: body.multitask_strategy ?? 'reject',
    delay_ms: Math.round((body.after_seconds ?? 0) * 1_000),
    stream_modes: recordedModes(modes),
    on_disconnect: body.on_disconnect ?? 'continue',
    webhook: body.webhook ?? undefined,
    wire: {
      stream_mode: modes,
      stream_subgraphs: body.stream_subgraphs ?? false,
      stream_resumable: body.stream_resumable ?? false,
      multitask_strategy: body.multitask_strategy ?? 'reject',
      ...(body.feedback_keys == null ? {} : { feedback_keys: body.feedback_keys }),
      ...(threadId === null ? { stateless: true } : {}),
      temporary,
    },
  };
}

/** @throws RunledgerError ASSISTANT_NOT_FOUND */
export async function assistantOf(
  assistants: LangGraphDeps['assistants'],
  owner: string,
  id: string,
): Promise<Assistant> {
  try {
    return await assistants.get(owner, id);
  } catch (error) {
    if (!(error instanceof RunledgerError) || error.code !== 'ASSISTANT_NOT_FOUND') throw error;
    const hint = 'Make sure the assistant ID is for a valid assistant or a valid graph ID.';
    throw new RunledgerError('ASSISTANT_NOT_FOUND', `No assistant found for "${id}". ${hint}`);
  }
}

/** Modes whose frames are chunks as the model gave them. */
const CHUNKED = new Set(['messages', 'messages-tuple']);

function modesOf({ stream_mode: asked }: RunCreate): string[] {
  const modes = asked == null ? ['values'] : Array.isArray(asked) ? asked : [asked];
  return modes.length === 0 ? ['values'] : [...new Set(modes)];
}

/** What must be recorded for these: `messages` tells complete messages from the values. The rest always is. */
function recordedModes(modes: string[]): GraphMode[] {
  const asked = new Set<string>(modes);
  const recorded: GraphMode[] = ['values', 'tasks', 'debug', 'checkpoints', 'events', 'tools'];
  return recorded.filter((mode) => asked.has(mode) || (mode === 'values' && asked.has('messages')));
}

function runConfigOf(facts: Facts, body: RunCreate): RunConfig {
  const { interrupt_before: before, interrupt_after: after, durability, context, metadata } = body;
  const given = configOf((body.config ?? {}) as JsonObject);
  const checkpoint = checkpointOf(body);
  return {
    ...given,
    configurable: { ...facts.headers, ...given.configurable, ...facts.user },
    metadata: { ...given.metadata, ...metadata },
    ...(context == null ? {} : { context }),
    ...(before == null ? {} : { interrupt_before: before }),
    ...(after == null ? {} : { interrupt_after: after }),
    ...(durability == null ? {} : { durability }),
    ...(checkpoint === null ? {} : { checkpoint }),
  };
}

/** Ids of ours, and LangGraph's own: the server sets them. */
const RESERVED = new Set([
  'thread_id',
  'run_id',
  'graph_id',
  'assistant_id',
  'checkpoint_id',
  'checkpoint_ns',
  'checkpoint_map',
  'langgraph_auth_user',
  'langgraph_auth_user_id',
  'langgraph_auth_permissions',
]);

/** What a client may put into a run's configurable. */
function freeOf(configurable: JsonObject): JsonObject {
  return Object.fromEntries(
    Object.entries(configurable).filter(([key]) => !RESERVED.has(key) && !key.startsWith('__')),
  );
}

/** A config as the core takes it: what it does not know is left out. */
function configOf(config: JsonObject): RunConfig {
  const { tags, recursion_limit: limit, configurable, metadata } = config;
  const free = freeOf(objectOf(configurable ?? null));
  return {
    ...(Array.isArray(tags) ? { tags: tags.map(String) } : {}),
    ...(typeof limit === 'number' ? { recursion_limit: limit } : {}),
    ...(Object.keys(free).length === 0 ? {} : { configurable: free }),
    ...(metadata === undefined ? {} : { metadata: objectOf(metadata) }),
  };
}

/** Of the body's own fields, or of the config as older clients send it. */
function checkpointOf(body: RunCreate): CheckpointRef | null {
  const { checkpoint_id, checkpoint_ns, checkpoint_map } = objectOf((body.config?.configurable ?? null) as Json);
  const checkpoint: CheckpointRef = {
    ...(typeof checkpoint_id === 'string' ? { checkpoint_id } : {}),
    ...(typeof checkpoint_ns === 'string' && checkpoint_ns !== '' ? { checkpoint_ns } : {}),
    ...(checkpoint_map == null ? {} : { checkpoint_map: objectOf(checkpoint_map) }),
    ...body.checkpoint,
    ...(body.checkpoint_id == null ? {} : { checkpoint_id: body.checkpoint_id }),
  };
  return Object.keys(checkpoint).length === 0 ? null : checkpoint;
}

/** What the request itself tells the graph: headers, which its configurable may replace, and who asks, which it may not. */
interface Facts {
  headers: JsonObject;
  user: JsonObject;
}

const NO_FACTS: Facts = { headers: {}, user: {} };

function factsOf(request: FastifyRequest, rules: HeaderRules): Facts {
  return { headers: freeOf(headersToldOf(request.headers, rules)), user: userFacts(request) ?? {} };
}

function objectOf(value: Json): JsonObject {
  return typeof value === 'object' && value !== null && !Array.isArray(value) ? value : {};
}
