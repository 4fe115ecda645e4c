/** Collects the facts of a world once its runs have ended: from Postgres, Redis, the servers and the clients. */
import { readFileSync } from 'node:fs';
import { Redis } from 'ioredis';
import { fromEntryId } from '#src/events/cursor.ts';
import { logKey } from '#src/events/keys.ts';
import { fromStored } from '#src/events/stored-bytes.ts';
import { query } from '#tests/support/postgres.ts';
import { openSse } from '#tests/support/sse.ts';
import { until } from '#tests/support/until.ts';
import type { Facts, LogFact, ReplayFact, RunFact, ServerFact, StatusFact, WriteFact } from './facts.ts';
import { askedIn } from './questions.ts';
import type { ChaosServer, Stage } from './stage.ts';
import type { World } from './world.ts';

/** However bad it was: in this time an admitted run has ended, its log is sealed, and its webhook told. */
const END_MS = 60_000;
const SETTLE_MS = 45_000;

const RUNS = `
  select r.id, r.thread_id as "threadId", r.lineage_id as "lineageId", r.graph_id as "graphId", r.status, r.epoch, r.takeovers,
         r.request_key as "requestKey", r.log_end::float8 as "logEnd", r.webhook is not null as "hasWebhook",
         coalesce(q.content #>> '{}', '') as question, a.content #>> '{}' as answer, a.partial
  from runs r
  left join lateral (
    select content from messages m where m.turn_id = r.turn_id and m.role = 'user' order by seq limit 1) q on true
  left join lateral (
    select content, partial from messages m where m.run_id = r.id and m.role = 'assistant' order by seq desc limit 1) a on true
  where r.owner = $1 and r.kind <> 'edit'
  order by r.seq`;
const STATUSES = `
  select s.run_id as "runId", s.from_status as "from", s.to_status as "to", s.from_epoch as "fromEpoch", s.to_epoch as "toEpoch",
         w.pid as owner, s.writer::int as writer
  from chaos.status s join runs r on r.id = s.run_id left join chaos.worker w on w.id = s.worker_id
  where r.owner = $1 order by s.seq`;
const WRITES = `
  select c.run_id as "runId", c.kind, c.checkpoint_id as "checkpointId", c.parent_id as "parentId", c.ns, c.step, c.source, c.epoch,
         w.pid as owner, c.writer::int as writer, extract(epoch from c.at)::float8 * 1000 as at
  from chaos.write c join runs r on r.id = c.run_id left join chaos.worker w on w.id = c.worker_id
  where r.owner = $1 order by c.seq`;
const OUTBOX = `select id, run_id as "runId", status from outbox where owner = $1`;
const LIVE = `select 1 from runs where owner = $1 and ended_at is null and status <> 'prepared'`;
const UNTOLD = `select 1 from outbox where owner = $1 and status = 'pending'`;
const IDLE = `
  select count(*)::int as count from pg_stat_activity
  where datname = current_database() and state like 'idle in transaction%'
    and state_change < clock_timestamp() - interval '3 s'`;

/** Waits for the end of everything, within limits; what has not ended then shows in the facts. */
export async function collect(world: World): Promise<Facts> {
  const { stage, owner, history } = world;
  await patiently(END_MS, async () => (await world.rows(LIVE, [owner])).length === 0);
  await patiently(END_MS, () => history.readings.every((reading) => reading.ended !== null));
  const runs = (await world.rows<RunRow>(RUNS, [owner])).map(runFact);
  const redis = new Redis(stage.redisUrl, { protocol: 2 });
  redis.on('error', () => undefined);
  try {
    // What is not in Redis yet may be on its way: first every server has told it all.
    await patiently(SETTLE_MS, async () => (await unsealedOn(stage)) === 0);
    await patiently(SETTLE_MS, async () => (await logsOf(redis, runs)).every((log) => log.ttlMs !== -1));
    await patiently(SETTLE_MS, async () => (await world.rows(UNTOLD, [owner])).length === 0);
    const tags = new Set(history.submissions.map((one) => one.question.tag));
    return {
      mayResync: world.mayResync,
      submissions: history.submissions,
      readings: history.readings,
      runs,
      statuses: await world.rows<StatusFact>(STATUSES, [owner]),
      writes: await world.rows<WriteFact>(WRITES, [owner]),
      logs: await logsOf(redis, runs),
      replays: await replaysOf(world, runs),
      hookCalls: stage.recorder.hookCalls.filter((call) => runs.some((run) => run.id === call.runId)),
      outbox: await world.rows(OUTBOX, [owner]),
      nodeRuns: stage.recorder.nodeRuns.filter((node) => tags.has(node.tag)),
      modelCalls: modelCallsOf(stage, tags),
      servers: [],
      idleInTransaction: 0,
    };
  } finally {
    redis.disconnect();
  }
}

/** What may be left on the servers of a stage when no client is there any more. */
export async function collectLeaks(stage: Stage): Promise<Pick<Facts, 'servers' | 'idleInTransaction'>> {
  const idle = async (): Promise<number> => (await query(stage.databaseUrl, IDLE)).rows[0].count;
  await patiently(SETTLE_MS, async () => (await idle()) === 0);
  const there = [...stage.servers].filter((server) => server.reachable);
  const servers: ServerFact[] = [];
  for (const server of there) {
    let fact: ServerFact | null = null;
    await patiently(SETTLE_MS, async () => {
      fact = await serverFact(server);
      return fact.viewers === 0 && fact.streams === 0;
    });
    if (fact !== null) servers.push(fact);
  }
  return { servers, idleInTransaction: await idle() };
}

interface RunRow extends Omit<RunFact, 'answer'> {
  answer: string | null;
  partial: boolean | null;
}

function runFact({ answer, partial, ...run }: RunRow): RunFact {
  return { ...run, answer: answer === null ? null : { text: answer, partial: partial === true } };
}

async function logsOf(redis: Redis, runs: RunFact[]): Promise<LogFact[]> {
  const logs = await Promise.all(
    runs.map(async ({ id }): Promise<LogFact | null> => {
      const entries = await redis.xrangeBuffer(logKey(id), '-', '+');
      if (entries.length === 0) return null;
      const types = await Promise.all(
        entries.map(async ([, fields]) => {
          const event = JSON.parse(await fromStored(fields[1] ?? Buffer.alloc(0))) as { type: string };
          return event.type;
        }),
      );
      const cursors = entries.map(([entryId]) => fromEntryId(entryId.toString('latin1')));
      return { runId: id, cursors, types, ttlMs: await redis.pttl(logKey(id)) };
    }),
  );
  return logs.filter((log) => log !== null);
}

async function replaysOf(world: World, runs: RunFact[]): Promise<ReplayFact[]> {
  const server = world.reachable()[0] ?? (await world.server({ name: 'observer' }));
  const replays: ReplayFact[] = [];
  for (const { id, threadId } of runs) {
    const url = `${server.url}/api/v1/threads/${threadId}/messages/stream?run_id=${id}`;
    const stream = await openSse(url, { headers: { 'x-dev-user': world.owner } });
    await stream.closed;
    const frames = stream.frames.map((frame) => ({
      event: frame.event,
      id: frame.id === undefined ? null : Number(frame.id),
      data: frame.data,
    }));
    replays.push({ runId: id, frames: stream.status === 410 ? null : frames });
  }
  return replays;
}

function modelCallsOf(stage: Stage, tags: ReadonlySet<string>): Facts['modelCalls'] {
  return stage.model.calls.flatMap((call) => {
    const asked = askedIn(call.body);
    if (asked === null || !tags.has(asked.question.tag)) return [];
    return [{ tag: asked.question.tag, depth: asked.depth, at: call.startedAt }];
  });
}

async function unsealedOn(stage: Stage): Promise<number> {
  let count = 0;
  for (const server of stage.servers) {
    if (!server.reachable) continue;
    // One that was killed meanwhile is asked no more.
    const gauge = await gaugesOf(server).catch(() => null);
    count += gauge === null ? 1 : gauge('runledger_runs_unsealed');
  }
  return count;
}

async function gaugesOf(server: ChaosServer): Promise<(name: string) => number> {
  const text = await (await fetch(`${server.url}/metrics`)).text();
  return (name) => Number(new RegExp(`^${name} (\\S+)$`, 'm').exec(text)?.[1] ?? 0);
}

async function serverFact(server: ChaosServer): Promise<ServerFact> {
  const gauge = await gaugesOf(server);
  return {
    name: server.name,
    viewers: gauge('runledger_viewers'),
    streams: gauge('runledger_sse_streams_open'),
    rssMb: rssMbOf(server.pid),
  };
}

function rssMbOf(pid: number): number {
  try {
    const kilobytes = /^VmRSS:\s+(\d+) kB$/m.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1];
    return Number(kilobytes ?? 0) / 1024;
  } catch {
    // Not Linux, or gone.
    return 0;
  }
}

async function patiently(timeoutMs: number, condition: () => boolean | Promise<boolean>): Promise<void> {
  await until(condition, { timeoutMs, message: 'the world to come to rest' }).catch(() => undefined);
}
