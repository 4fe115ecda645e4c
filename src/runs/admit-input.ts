/** Admission of a run of a graph with any input or command: -> queued, beside, after or instead of what runs on the thread. */
import { randomUUID } from 'node:crypto';
import { RunledgerError } from '#src/errors.ts';
import type { Json, JsonObject } from '#src/events/event.ts';
import { hasCheckpoint } from '#src/graphs/checkpoint-rows.ts';
import { assertWebhookUrl } from '#src/outbox/webhook-url.ts';
import type { Queryable, Tx } from '#src/postgres/pool.ts';
import { inTransaction } from '#src/postgres/transaction.ts';
import { answerInterrupts, type ConfiguredThread, insertThreadIfNew, lockConfiguredThread } from '#src/threads/open.ts';
import { type AdmitDeps, firstWithKey, refuseWhileLive, threadNotFound } from './admission.ts';
import { requestHash } from './hash.ts';
import { type RunRow, runColumns, toRun } from './queries.ts';
import { resumed } from './resume.ts';
import type { Run, RunConfig, RunKind, StartRequest } from './run.ts';
import { withoutUserFacts } from './user-facts.ts';

/** A hundred years, which `interval` can hold. */
const LONGEST_DELAY_MS = 100 * 366 * 86_400_000;

/** The admitted run, and those of its thread that it has asked to stop: none when its key was admitted before. */
export interface Started {
  run: Run;
  cancelled: Run[];
}

/**
 * Guard: the thread's row; strategy `reject` refuses beside a live run that nobody has asked to stop, the others come after it.
 * Interrupts that a new input leaves unanswered are closed when the run ends, not here: a rollback leaves them open.
 * The requests to stop the others are stamped in the same transaction: no crash can let both run to their ends.
 * @throws THREAD_NOT_FOUND, GRAPH_NOT_FOUND, RUN_IN_PROGRESS {run_id}, INTERRUPT_AMBIGUOUS, INTERRUPT_ANSWERED, INVALID_REQUEST
 */
export async function admitInput(deps: AdmitDeps, request: StartRequest): Promise<Started> {
  const webhook = assertAdmissible(deps, request);
  return inTransaction(deps.pool, (tx) => admitIn(tx, deps, request, webhook));
}

/**
 * The same in one transaction with `first`, which comes before it; after a conflict both are done again.
 * @returns null when `first` said no: then nothing is admitted
 */
export async function admitInputWith(
  deps: AdmitDeps,
  request: StartRequest,
  first: (tx: Tx) => Promise<boolean>,
): Promise<Started | null> {
  const webhook = assertAdmissible(deps, request);
  return inTransaction(deps.pool, async (tx) => ((await first(tx)) ? admitIn(tx, deps, request, webhook) : null));
}

/** What can be said without the thread. Returns the webhook as it is stored. @throws GRAPH_NOT_FOUND, INVALID_REQUEST */
function assertAdmissible(deps: AdmitDeps, request: StartRequest): string | null {
  if (!deps.graphs.has(request.graph_id)) {
    throw new RunledgerError('GRAPH_NOT_FOUND', `This server has no graph ${JSON.stringify(request.graph_id)}.`);
  }
  if (request.delay_ms > LONGEST_DELAY_MS) {
    throw new RunledgerError('INVALID_REQUEST', 'The run would begin too far in the future.', {
      path: 'after_seconds',
    });
  }
  return request.webhook === undefined ? null : assertWebhookUrl(request.webhook, deps.webhooks);
}

async function admitIn(tx: Tx, deps: AdmitDeps, request: StartRequest, webhook: string | null): Promise<Started> {
  const hash = requestHash(request.request_key, { kind: 'start' });
  const admitted = await firstWithKey(tx, request.owner, request.request_key, hash);
  if (admitted !== null) return { run: admitted.run, cancelled: [] };
  const thread = await threadOf(tx, request);
  // Who stops a run and goes on at once need not wait for its end: the new run does.
  if (request.strategy === 'reject') await refuseWhileLive(tx, thread.id, { besideStopping: true });
  const placed = await place(tx, deps, request, thread);
  await refuseUnknownCheckpoint(tx, placed.lineageId, request.config);
  const id = randomUUID();
  const config = configOf(request, thread);
  const row = await insert(tx, { id, request, thread, placed, config, webhook, hash });
  if (placed.answers.length > 0) await answerInterrupts(tx, placed.lineageId, placed.answers, id);
  const cancelled = await stopOthers(tx, request, thread.id, id);
  return { run: toRun(row), cancelled };
}

async function threadOf(tx: Tx, request: StartRequest): Promise<ConfiguredThread> {
  const { owner, thread_id: asked } = request;
  if (asked !== null && request.if_missing === 'reject') {
    const thread = await lockConfiguredThread(tx, owner, asked);
    if (thread === null) throw threadNotFound();
    return thread;
  }
  const id = asked ?? randomUUID();
  await insertThreadIfNew(tx, {
    id,
    owner,
    temporary: request.temporary,
    metadata: request.thread_metadata ?? {},
    ttl: request.temporary ? null : request.thread_ttl,
  });
  const thread = await lockConfiguredThread(tx, owner, id);
  // The id is another owner's.
  if (thread === null) throw threadNotFound();
  return thread;
}

interface Placed {
  kind: RunKind;
  turnId: string | null;
  lineageId: string;
  /** The turn, or its lineage, is made with the run. */
  opens: { turn: boolean; lineage: boolean };
  input: Json;
  command: JsonObject | null;
  answers: string[];
  question: { id: string; content: Json } | null;
}

/** Where the run belongs: the turn that asked, a new turn, or none; and the lineage it continues. */
async function place(tx: Tx, deps: AdmitDeps, request: StartRequest, thread: ConfiguredThread): Promise<Placed> {
  const none = { opens: { turn: false, lineage: false }, answers: [] as string[], question: null, turnId: null };
  const own = deps.graphs.contextOf(request.graph_id) === 'transcript';
  if (request.command !== null) {
    const waits = request.strategy === 'enqueue';
    const where = { threadId: thread.id, checkpointId: request.config.checkpoint?.checkpoint_id, waits };
    const { command, answered } = await resumed(tx, where, request.command);
    const [asked] = answered;
    const lineageId = asked?.lineage_id ?? (await latestLineage(tx, thread.id));
    const base = { ...none, lineageId, input: request.input, command };
    if (asked === undefined) return { ...base, kind: 'plain' };
    return { ...base, kind: 'answer', turnId: asked.turn_id, answers: answered.map(({ id }) => id) };
  }
  const question = request.temporary ? null : questionIn(request.input);
  if (question === null) {
    const lineageId = own ? await latestLineage(tx, thread.id) : thread.id;
    return { ...none, kind: 'plain', lineageId, input: request.input, command: null };
  }
  return {
    kind: 'message',
    turnId: randomUUID(),
    lineageId: own ? randomUUID() : thread.id,
    opens: { turn: true, lineage: own },
    input: question.input,
    command: null,
    answers: [],
    question: { id: question.id, content: question.content },
  };
}

const LATEST_LINEAGE = `
  select lineage_id as id from runs where thread_id = $1::uuid and kind <> 'edit' and not hidden order by ordinal desc limit 1`;

async function latestLineage(db: Queryable, threadId: string): Promise<string> {
  const { rows } = await db.query<{ id: string }>(LATEST_LINEAGE, [threadId]);
  return rows[0]?.id ?? threadId;
}

const HUMAN = new Set(['human', 'user']);

/** The message of a person the input ends in; it is given our id when it has none, so that people find it again. */
function questionIn(input: Json): { input: Json; id: string; content: Json } | null {
  if (!isObject(input) || !Array.isArray(input.messages)) return null;
  const last = input.messages.at(-1);
  if (!isObject(last) || last.content === undefined) return null;
  if (!HUMAN.has(String(last.type ?? last.role))) return null;
  const id = randomUUID();
  if (last.id !== undefined && last.id !== null) return { input, id, content: last.content };
  return {
    input: { ...input, messages: [...input.messages.slice(0, -1), { ...last, id }] },
    id,
    content: last.content,
  };
}

/** LangGraph would begin an empty state at a checkpoint it does not find. @throws INVALID_REQUEST */
async function refuseUnknownCheckpoint(tx: Tx, lineageId: string, { checkpoint }: RunConfig): Promise<void> {
  const id = checkpoint?.checkpoint_id;
  if (id === undefined || (await hasCheckpoint(tx, lineageId, checkpoint?.checkpoint_ns ?? '', id))) return;
  throw new RunledgerError('INVALID_REQUEST', 'The thread has no such checkpoint.', { path: 'checkpoint_id' });
}

/** Assistant < thread < run. */
function configOf(request: StartRequest, thread: ConfiguredThread): RunConfig {
  const { assistant, config } = request;
  const context = merged(assistant.context, config.context ?? null);
  return {
    ...assistant.config,
    ...config,
    configurable: { ...assistant.config.configurable, ...thread.config.configurable, ...config.configurable },
    metadata: { ...assistant.metadata, ...thread.metadata, ...config.metadata },
    ...(context === null ? {} : { context }),
  };
}

function merged(base: Json, over: Json): Json {
  return isObject(base) && isObject(over) ? { ...base, ...over } : (over ?? base);
}

const INSERT = `
  with counted as (
    update threads
    set run_count = run_count + 1, turn_count = turn_count + $16::int, active_at = clock_timestamp(),
        graph_id = coalesce(graph_id, $6), config = $17::json, metadata = metadata || $18::jsonb
    where id = $3::uuid
    returning run_count, turn_count),
  lineage as (
    insert into lineages (id, thread_id, turn_id)
    select $5::uuid, $3::uuid, $4::uuid from counted where $19::boolean),
  turn as (
    insert into turns (id, thread_id, ordinal, lineage_id)
    select $4::uuid, $3::uuid, turn_count, $5::uuid from counted where $16::int = 1),
  question as (
    insert into messages (id, thread_id, turn_id, run_id, role, content)
    select $20::uuid, $3::uuid, $4::uuid, $1::uuid, 'user', $21::json from counted where $20::uuid is not null)
  insert into runs (id, owner, thread_id, turn_id, lineage_id, graph_id, kind, status, ordinal, input, command, config,
                    stream_modes, on_disconnect, webhook, assistant_id, wire, durability, message_id, available_at, request_key,
                    request_hash)
  select $1::uuid, $2, $3::uuid, $4::uuid, $5::uuid, $6, $7, 'queued', run_count, $8::json, $9::json, $10::json,
         $11::text[], $12, $13, $14::uuid, $15::json, $22, $20::uuid, clock_timestamp() + $23 * interval '1 ms',
         $24, $25
  from counted
  returning ${runColumns('runs')}`;

async function insert(
  tx: Tx,
  parts: {
    id: string;
    request: StartRequest;
    thread: ConfiguredThread;
    placed: Placed;
    config: RunConfig;
    webhook: string | null;
    hash: string | null;
  },
): Promise<RunRow> {
  const { request, thread, placed, config } = parts;
  const threadConfig = { ...thread.config, configurable: withoutUserFacts(config.configurable) };
  const { rows } = await tx.query<RunRow>({
    name: 'admit_input',
    text: INSERT,
    values: [
      parts.id,
      request.owner,
      thread.id,
      placed.turnId,
      placed.lineageId,
      request.graph_id,
      placed.kind,
      jsonOrNull(placed.input),
      jsonOrNull(placed.command),
      JSON.stringify(config),
      request.stream_modes,
      request.on_disconnect,
      parts.webhook,
      request.assistant.id,
      JSON.stringify(request.wire),
      placed.opens.turn ? 1 : 0,
      JSON.stringify(threadConfig),
      JSON.stringify(request.assistant.id === null ? {} : { assistant_id: request.assistant.id }),
      placed.opens.lineage,
      placed.question?.id ?? null,
      jsonOrNull(placed.question?.content ?? null),
      config.durability ?? 'sync',
      request.delay_ms,
      request.request_key ?? null,
      parts.hash,
    ],
  });
  const [row] = rows;
  if (row === undefined) throw new Error(`thread ${thread.id} slipped away under its lock`);
  return row;
}

const STOP = `
  update runs
  set cancel_requested_at = coalesce(cancel_requested_at, clock_timestamp()), cancel_action = coalesce(cancel_action, $3)
  where thread_id = $1::uuid and id <> $2::uuid
    -- guard: a terminal run keeps its end
    and status in ('prepared', 'queued', 'running')
  returning ${runColumns('runs')}`;

async function stopOthers(tx: Tx, request: StartRequest, threadId: string, runId: string): Promise<Run[]> {
  if (request.strategy !== 'interrupt' && request.strategy !== 'rollback') return [];
  const { rows } = await tx.query<RunRow>(STOP, [threadId, runId, request.strategy]);
  return rows.map(toRun);
}

function jsonOrNull(value: Json): string | null {
  return value === null ? null : JSON.stringify(value);
}

function isObject(value: Json | undefined): value is JsonObject {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}
