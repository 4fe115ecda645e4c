/** What clients send. Keys that are not here are ignored, as this protocol has it; docs/langgraph.md says which have no effect. */
import { z } from 'zod';
import { ASSISTANT_ORDERS } from '#src/assistants/service.ts';
import { CRON_ORDERS, isSchedule, isTimezone } from '#src/crons/service.ts';
import type { Json, JsonObject } from '#src/events/event.ts';
import { THREAD_ORDERS } from '#src/threads/service.ts';
import { isPath } from './extract.ts';
import { STREAM_MODES } from './frames.ts';

/** Bodies were parsed as JSON, so whatever a client may put here is Json. */
const json = z.unknown() as unknown as z.ZodType<Json>;
const jsonObject: z.ZodType<JsonObject> = z.record(z.string(), json);
const uuid = z.uuid().transform((id) => id.toLowerCase());
const name = z.string().min(1);

/** Query values as clients write booleans. */
const flag = z
  .union([z.boolean(), z.enum(['true', 'false', '1', '0', ''])])
  .transform((value) => value === true || value === 'true' || value === '1');
const count = (fallback: number) => z.coerce.number().int().min(1).max(1000).default(fallback);
const offset = z.coerce.number().int().min(0).default(0);
const order = z.enum(['asc', 'desc']).default('desc');
/** One value, or several. */
const many = <T extends z.ZodType>(item: T) => z.union([item, z.array(item)]);
/** The same in a query: named several times, or as JSON, which is how older SDKs write a list. */
const manyInQuery = <T extends z.ZodType>(item: T) => z.preprocess(fromJsonList, many(item));

function fromJsonList(value: unknown): unknown {
  if (typeof value !== 'string' || !value.startsWith('[')) return value;
  try {
    return JSON.parse(value);
  } catch {
    return value;
  }
}

const config = z.object({
  tags: z.array(z.string()).exactOptional(),
  recursion_limit: z.int().min(1).exactOptional(),
  configurable: jsonObject.exactOptional(),
});

const checkpoint = z
  .object({
    checkpoint_id: z.string().nullish(),
    checkpoint_ns: z.string().nullish(),
    checkpoint_map: jsonObject.nullish(),
  })
  .transform(({ checkpoint_id, checkpoint_ns, checkpoint_map }) => ({
    ...(checkpoint_id == null ? {} : { checkpoint_id }),
    ...(checkpoint_ns == null ? {} : { checkpoint_ns }),
    ...(checkpoint_map == null ? {} : { checkpoint_map }),
  }));

export const assistantCreate = z.object({
  assistant_id: uuid.optional(),
  graph_id: name,
  config: jsonObject.nullish(),
  context: json.optional(),
  metadata: jsonObject.nullish(),
  if_exists: z.enum(['raise', 'do_nothing']).nullish(),
  name: z.string().nullish(),
  description: z.string().nullish(),
});

export const assistantUpdate = z.object({
  graph_id: name.nullish(),
  config: jsonObject.nullish(),
  context: json.optional(),
  metadata: jsonObject.nullish(),
  name: z.string().nullish(),
  description: z.string().nullish(),
});

export const assistantFilter = z.object({
  metadata: jsonObject.nullish(),
  graph_id: z.string().nullish(),
  name: z.string().nullish(),
});

export const assistantSearch = assistantFilter.extend({
  limit: count(10),
  offset,
  sort_by: z.enum(ASSISTANT_ORDERS).default('created_at'),
  sort_order: order,
  select: z.array(z.string()).nullish(),
});

export const assistantVersions = z.object({ limit: count(10), offset, metadata: jsonObject.nullish() });
export const assistantLatest = z.object({ version: z.int().min(1) });
export const assistantDelete = z.object({ delete_threads: flag.optional() });
export const graphQuery = z.object({ xray: z.union([z.coerce.number().int(), flag]).optional() });
export const subgraphsQuery = z.object({ recurse: flag.optional() });

const command = z.object({ goto: json.optional(), update: json.optional(), resume: json.optional() }).transform(
  ({ goto: target, update, resume }): JsonObject => ({
    ...(target == null ? {} : { goto: target }),
    ...(update == null ? {} : { update }),
    ...(resume === undefined ? {} : { resume }),
  }),
);

const stateUpdate = z.object({ values: json.optional(), command: command.nullish(), as_node: z.string().nullish() });

/** Minutes alone mean that the thread is deleted then. */
const threadTtl = z
  .union([
    z.object({ ttl: z.number().positive(), strategy: z.enum(['delete', 'keep_latest']).default('delete') }),
    z.number().positive(),
  ])
  .transform((given) => (typeof given === 'number' ? { ttl: given, strategy: 'delete' as const } : given))
  .transform(({ ttl: minutes, strategy }) => ({ minutes: Math.min(minutes, LONGEST_TTL_MINUTES), strategy }));
/** A hundred years, which timestamps can hold. */
const LONGEST_TTL_MINUTES = 100 * 366 * 1_440;

export const threadCreate = z.object({
  thread_id: uuid.nullish(),
  metadata: jsonObject.nullish(),
  if_exists: z.enum(['raise', 'do_nothing']).nullish(),
  supersteps: z.array(z.object({ updates: z.array(stateUpdate) })).nullish(),
  ttl: threadTtl.nullish(),
});

export const threadFilter = z.object({
  ids: z.array(uuid).nullish(),
  metadata: jsonObject.nullish(),
  status: z.enum(['idle', 'busy', 'interrupted', 'error']).nullish(),
  values: jsonObject.nullish(),
});

const MOST_PATHS = 10;
export const threadSearch = threadFilter.extend({
  limit: count(10),
  offset,
  sort_by: z.enum(THREAD_ORDERS).nullish(),
  sort_order: order.nullish(),
  select: z.array(z.string()).nullish(),
  extract: z
    .record(z.string(), z.string().max(500).refine(isPath, 'must be a path such as values.messages[-1].content'))
    .refine((paths) => Object.keys(paths).length <= MOST_PATHS, `must have at most ${MOST_PATHS} paths`)
    .nullish(),
});

export const threadPrune = z.object({
  thread_ids: z.array(uuid).max(1000),
  strategy: z.enum(['delete', 'keep_latest']).default('delete'),
});

export const threadUpdate = z.object({ metadata: jsonObject.nullish(), ttl: threadTtl.nullish() });
export const threadQuery = z.object({ include: manyInQuery(z.string()).optional() });

const selection = manyInQuery(z.string()).optional();

export const stateQuery = z.object({ subgraphs: flag.optional(), select: selection });
export const stateAt = z.object({ checkpoint, subgraphs: z.boolean().nullish() });
export const stateWrite = z.object({
  values: json.optional(),
  as_node: z.string().nullish(),
  checkpoint_id: z.string().nullish(),
  checkpoint: checkpoint.nullish(),
});
export const statePatch = z.object({ metadata: jsonObject });
export const historyQuery = z.object({ limit: count(10), before: z.string().optional(), select: selection });
export const historyBody = z.object({
  limit: count(10),
  // An id, or the config of the checkpoint, as the SDK types it.
  before: z.union([z.string(), z.object({ configurable: checkpoint.optional() }), checkpoint]).nullish(),
  metadata: jsonObject.nullish(),
  checkpoint: checkpoint.nullish(),
  select: z.array(z.string()).nullish(),
});

const nodes = z.union([z.literal('*'), z.array(z.string())]);
/** What SDK 1.15 types beyond the modes of this protocol is accepted, and nothing is streamed for it. */
const mode = z.enum([...STREAM_MODES, 'lifecycle']);

export const runCreate = z.object({
  assistant_id: name,
  checkpoint_id: z.string().nullish(),
  checkpoint: checkpoint.nullish(),
  input: json.optional(),
  command: command.nullish(),
  metadata: jsonObject.nullish(),
  context: json.optional(),
  config: z.looseObject({ ...config.shape, metadata: jsonObject.exactOptional() }).nullish(),
  webhook: z.string().nullish(),
  interrupt_before: nodes.nullish(),
  interrupt_after: nodes.nullish(),
  on_disconnect: z.enum(['cancel', 'continue']).nullish(),
  multitask_strategy: z.enum(['reject', 'rollback', 'interrupt', 'enqueue']).nullish(),
  stream_mode: many(mode).nullish(),
  stream_subgraphs: z.boolean().nullish(),
  stream_resumable: z.boolean().nullish(),
  after_seconds: z.number().min(0).nullish(),
  if_not_exists: z.enum(['reject', 'create']).nullish(),
  on_completion: z.enum(['delete', 'keep', 'complete', 'continue']).nullish(),
  feedback_keys: z.array(z.string()).nullish(),
  durability: z.enum(['sync', 'async', 'exit']).nullish(),
  checkpoint_during: z.boolean().nullish(),
});
export type RunCreate = z.output<typeof runCreate>;

export const runBatch = z.array(z.preprocess(snakeNamed, runCreate)).min(1).max(100);

/** Of a batch alone SDKs write the fields' names as their methods take them. */
function snakeNamed(value: unknown): unknown {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return value;
  const snake = (key: string): string => key.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
  return { ...Object.fromEntries(Object.entries(value).map(([key, field]) => [snake(key), field])), ...value };
}

/** What of a run's request a cron keeps; its metadata are the cron's own. */
const cronRun = runCreate
  .pick({
    input: true,
    config: true,
    context: true,
    webhook: true,
    interrupt_before: true,
    interrupt_after: true,
    multitask_strategy: true,
    stream_mode: true,
    stream_subgraphs: true,
    stream_resumable: true,
    durability: true,
    checkpoint_during: true,
  })
  .partial();

const SCHEDULE = 'must be five cron fields, six with seconds first, or a name such as @daily';
const schedule = z.string().max(200).refine(isSchedule, SCHEDULE);
const timezone = z.string().max(100).refine(isTimezone, 'must be an IANA time zone, such as Europe/Berlin').nullish();
/** Without an offset it is UTC. */
const endTime = z
  .union([z.iso.datetime({ offset: true }), z.iso.datetime({ local: true }).transform((text) => `${text}Z`)])
  .transform((text) => new Date(text).toISOString())
  .nullish();
const cronRules = {
  timezone,
  end_time: endTime,
  enabled: z.boolean().nullish(),
  on_run_completed: z.enum(['delete', 'keep']).nullish(),
  metadata: jsonObject.nullish(),
};

export const cronCreate = z.object({ assistant_id: name, schedule, ...cronRules, ...cronRun.shape });
export const cronUpdate = z.object({ schedule: schedule.nullish(), ...cronRules, ...cronRun.shape });
export const cronFilter = z.object({
  assistant_id: name.nullish(),
  thread_id: uuid.nullish(),
  enabled: z.boolean().nullish(),
  metadata: jsonObject.nullish(),
});
export const cronSearch = cronFilter.extend({
  limit: count(10),
  offset,
  sort_by: z.enum(CRON_ORDERS).default('created_at'),
  sort_order: order,
  select: z.array(z.string()).nullish(),
});

export const runList = z.object({
  limit: count(10),
  offset,
  status: z.enum(['pending', 'running', 'error', 'success', 'timeout', 'interrupted']).optional(),
  select: selection,
  metadata: z
    .string()
    .transform((text, context) => {
      try {
        return jsonObject.parse(JSON.parse(text));
      } catch {
        context.addIssue({ code: 'custom', message: 'must be a JSON object' });
        return z.NEVER;
      }
    })
    .optional(),
});

export const joinQuery = z.object({
  cancel_on_disconnect: flag.optional(),
  stream_mode: manyInQuery(z.string()).optional(),
});
const threadMode = z.enum(['run_modes', 'lifecycle', 'state_update']);
export const threadStreamQuery = z.object({ stream_mode: manyInQuery(threadMode).default('run_modes') });
export const cancelQuery = z.object({ wait: flag.optional(), action: z.enum(['interrupt', 'rollback']).optional() });
export const cancelMany = z.object({
  thread_id: uuid.nullish(),
  run_ids: z.array(uuid).nullish(),
  status: z.enum(['pending', 'running', 'all']).nullish(),
});

const labels = z.array(z.string());
/** In a query the labels are joined by dots; in SDK 1.15 they may also be repeated. */
const dotted = z.union([labels, z.string().transform((text) => (text === '' ? [] : text.split('.')))]);
const key = z.string().min(1);

export const storePut = z.object({ namespace: labels, key, value: jsonObject, ttl: z.number().positive().nullish() });
export const storeGet = z.object({ namespace: dotted.default([]), key, refresh_ttl: flag.optional() });
export const storeDelete = z.object({ namespace: labels, key });
export const storeSearch = z.object({
  namespace_prefix: labels.default([]),
  filter: jsonObject.nullish(),
  limit: count(10),
  offset,
  refresh_ttl: z.boolean().nullish(),
});
export const storeNamespaces = z.object({
  prefix: labels.nullish(),
  suffix: labels.nullish(),
  max_depth: z.int().min(1).nullish(),
  limit: count(100),
  offset,
});

const part = z.boolean().default(false);
export const truncateBody = z.object({ runs: part, threads: part, assistants: part, checkpointer: part, store: part });
