/**
 * Versions side by side. What an older version wrote (fixtures/, made by `record` there) is read: replayed as it was told
 * then, gone on with, answered, taken over in mid answer and in mid superstep. And what a newer one writes is tolerated:
 * events of unknown types, unknown fields, columns that appear while this version works, and migrations it does not know.
 *
 * No process of an older version is started: it would need the project's history, which not every clone has. What two
 * versions share is what they write, and that is what is read here.
 */
import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { gunzipSync, gzipSync } from 'node:zlib';
import { Redis } from 'ioredis';
import { call, ended, follow, type RunBody, type Sent, send } from '#tests/support/cluster.ts';
import type { ChatRequest } from '#tests/support/fake-model-script.ts';
import { expectedRounds, storedRounds } from '#tests/support/rounds-state.ts';
import { loadSnapshot, type Snapshot } from '#tests/support/snapshot.ts';
import { type Recording, ROUNDS, record, recordedModel } from '../fixtures/record.ts';
import { must, mustEqual } from '../must.ts';
import { askedIn, replyTo } from '../questions.ts';
import type { Scenario } from '../scenario.ts';
import type { ChaosServer } from '../stage.ts';
import type { World } from '../world.ts';

const FIXTURES = new URL('../fixtures/', import.meta.url);
/** Times as Postgres and JavaScript write them in JSON, in UTC. */
const TIMES = /(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?)(Z|\+00:00)/g;

export const scenario: Scenario = {
  row: 22,
  name: 'what older versions wrote, and what newer ones will',
  asserts:
    'old events replay as they were told; old checkpoints are gone on with; unknown events, fields, columns and migrations are tolerated',
  // Of its own: what is loaded has ids of its own, and is removed at the next seed.
  stage: { postgres: 'own', redis: 'own', config: { auth: { mode: 'none' } } },
  weightS: 30,
  async run(world) {
    const { stage } = world;
    stage.model.setScript((request, index) =>
      askedIn(request) === null ? recordedModel(request) : replyTo(request, index),
    );
    for (const recording of await recordings(world)) {
      const isFuture = world.seed % 3 === 1;
      if (isFuture) addFuture(recording.snapshot, world);
      await emptyAll(world);
      await loadSnapshot(recording.snapshot, stage.databaseUrl, stage.redisUrl);
      if (isFuture) await world.rows(`insert into runledger_migrations (name, run_on) values ('9999_later', now())`);
      // What the model was asked while it was recorded does not count.
      stage.model.calls.length = 0;
      await readAll(world, recording, isFuture);
      if (isFuture) await world.rows(`delete from runledger_migrations where name = '9999_later'`);
    }
  },
};

/** Those of older versions; every third seed one that this version makes now, which is how the next fixture is made. */
async function recordings(world: World): Promise<Recording[]> {
  if (world.seed % 3 === 0) {
    await emptyAll(world);
    const server = await world.server({ name: 'recorded', config: { runs: { concurrency: 2 } } });
    const recording = await record(server, world.stage.databaseUrl, world.stage.redisUrl);
    const { CHAOS_FIXTURE: path } = process.env;
    if (path !== undefined) writeFileSync(path, gzipSync(JSON.stringify(recording), { level: 9 }));
    return [recording];
  }
  return readdirSync(FIXTURES)
    .filter((name) => name.endsWith('.json.gz'))
    .map((name) => asOfNow(JSON.parse(gunzipSync(readFileSync(new URL(name, FIXTURES))).toString()) as Recording));
}

/**
 * The recording with every time in it moved, as if it had been made a moment ago: a run left behind is gone on with only
 * within its time limit, logs and threads are kept only so long, and a fixture must be readable in a year. Times are moved
 * by whole seconds; what is compared is moved with what is loaded.
 */
function asOfNow(recording: Recording): Recording {
  const text = JSON.stringify(recording);
  const newestMs = Math.max(...(text.match(TIMES) ?? []).map((time) => Date.parse(time)));
  const byMs = Math.floor((Date.now() - newestMs) / 1_000) * 1_000;
  const moved = (json: string): string =>
    json.replace(TIMES, (_, date: string, rest: string) => {
      const [seconds, fraction = ''] = date.split('.');
      const later = new Date(Date.parse(`${seconds}Z`) + byMs).toISOString().slice(0, 19);
      return `${later}${fraction === '' ? '' : `.${fraction}`}${rest}`;
    });
  const all = JSON.parse(moved(text)) as Recording;
  for (const entries of Object.values(all.snapshot.streams)) {
    for (const entry of entries) {
      entry[1] = Buffer.from(moved(Buffer.from(entry[1], 'base64').toString())).toString('base64');
    }
  }
  return all;
}

async function emptyAll({ stage, rows }: World): Promise<void> {
  await rows('truncate threads, workers, outbox, checkpoints, checkpoint_blobs, checkpoint_writes cascade');
  const redis = new Redis(stage.redisUrl, { protocol: 2 });
  await redis.flushall();
  redis.disconnect();
}

async function readAll(world: World, recording: Recording, isFuture: boolean): Promise<void> {
  const server = await world.server({ name: 'later' });
  const other = await world.server({ name: 'later too' });
  const { threads } = recording;
  await tellsTheSame(server, recording);
  if (isFuture) await columnsAppear(world);
  await goesOn(world, server, recording);
  await isTakenOver(world, other, recording);
  const next = await send(other, 'thanks', {}, threads.cut.thread_id);
  mustEqual('a turn after the takeover', (await ended(server, next.run_id)).status, 'succeeded');
}

/** Every run that had ended, from the start and from a cursor in its middle; every thread where nothing went on. */
async function tellsTheSame(server: ChaosServer, { told, turns }: Recording): Promise<void> {
  for (const { run_id, frames } of told) {
    const thread_id = (JSON.parse(frames[0]?.data ?? '{}') as { thread_id: string }).thread_id;
    const whole = await follow(server, { run_id, thread_id });
    await whole.closed;
    // The id of the end is another one when something unknown lies before it.
    const bare = (all: Recording['told'][number]['frames']) =>
      all.map(({ event, id, data }) => [event, event === 'run_end' || event === 'error' ? null : id, data]);
    mustEqual(`replay of ${run_id}`, bare([...whole.frames]), bare(frames));
    const middle = Math.floor(frames.length / 2);
    const at = frames.slice(0, middle + 1).findLastIndex(({ id }) => id !== undefined);
    if (at < 0 || at === frames.length - 1) continue;
    const rest = await follow(server, { run_id, thread_id }, frames[at]?.id);
    await rest.closed;
    mustEqual(`rest of ${run_id}`, bare([...rest.frames]), bare(frames.slice(at + 1)));
  }
  for (const [threadId, body] of Object.entries(turns)) {
    mustEqual(`turns of ${threadId}`, (await call(server, 'GET', `/api/v1/threads/${threadId}/turns`)).body, body);
  }
}

/** New turns, a retry, answers: each from what the older version left. */
async function goesOn(world: World, server: ChaosServer, { threads }: Recording): Promise<void> {
  const again = await send(server, 'thanks again', {}, threads.talk.thread_id);
  mustEqual('a third turn', (await ended(server, again.run_id)).status, 'succeeded');
  mustEqual(
    'what the model was told',
    rolesOf(lastCall(world)),
    'system user assistant tool assistant user assistant user',
  );
  const afterStop = await send(server, 'and now?', {}, threads.stopped.thread_id);
  mustEqual('a turn after a stop', (await ended(server, afterStop.run_id)).status, 'succeeded');
  mustEqual('what the model was told', rolesOf(lastCall(world)), 'system user assistant user');
  const retry = await call<Sent>(server, 'POST', `/api/v1/threads/${threads.failed.thread_id}/retry`, {});
  mustEqual('the retry fails as it did', (await ended(server, retry.body.run_id)).error?.code, 'MODEL_REJECTED');
  const approved = await answer(server, threads.asks.thread_id, 'approve');
  mustEqual('an approved tool call', approved.status, 'succeeded');
  const second = await answer(server, threads.halfway.thread_id, 'yes2');
  mustEqual('the second of two answers', second.status, 'succeeded');
  const { body } = await turnsOf(server, threads.halfway.thread_id);
  mustEqual('both answers', body.turns[0]?.answer?.content, 'one:yes1,two:yes2');
  await roundsGoOn(world, server, threads.rounds.thread_id);
}

interface Turns {
  turns: { interrupts: { id: string }[]; answer: { content: string } | null }[];
}

function turnsOf(server: ChaosServer, threadId: string) {
  return call<Turns>(server, 'GET', `/api/v1/threads/${threadId}/turns`);
}

async function answer(server: ChaosServer, threadId: string, value: string): Promise<RunBody> {
  const { body } = await turnsOf(server, threadId);
  const interrupts = { [body.turns.at(-1)?.interrupts[0]?.id ?? 'none']: value };
  const sent = await call<Sent>(server, 'POST', `/api/v1/threads/${threadId}/answer`, { interrupts });
  mustEqual('status of an answer', sent.status, 202);
  return ended(server, sent.body.run_id);
}

async function roundsGoOn(world: World, server: ChaosServer, threadId: string): Promise<void> {
  const { databaseUrl } = world.stage;
  mustEqual('the old state', await storedRounds(databaseUrl, threadId), await expectedRounds(ROUNDS));
  const more = await send(server, 'go', { graph: 'rounds', config: { configurable: ROUNDS } }, threadId);
  mustEqual('a second turn of rounds', (await ended(server, more.run_id)).status, 'succeeded');
  mustEqual(
    'the state after it',
    await storedRounds(databaseUrl, threadId),
    await expectedRounds(ROUNDS, ['turn', 'turn']),
  );
}

/** Their owner was of the older version: what is finished is not done again, the rest is. */
async function isTakenOver(world: World, server: ChaosServer, { threads }: Recording): Promise<void> {
  const { cut, cutRounds, queued } = threads;
  for (const { run_id } of [cut, cutRounds, queued]) {
    mustEqual('status of a run left behind', (await ended(server, run_id, 60_000)).status, 'succeeded');
  }
  const stream = await follow(server, cut);
  await stream.closed;
  must(
    !stream.frames.some(({ event }) => event === 'resync_required'),
    'the replay of a run of two versions has a hole',
  );
  const calls = world.stage.model.calls.filter(({ body }) => body.messages.some(({ content }) => content === 'cut'));
  must(
    calls.length > 0 && calls.every(({ body }) => body.messages.some(({ role }) => role === 'tool')),
    'the model was asked again for the tool call that was finished',
  );
  const state = await storedRounds(world.stage.databaseUrl, cutRounds.thread_id);
  mustEqual('the state of the run that was cut', state, await expectedRounds(ROUNDS));
}

function lastCall(world: World): ChatRequest {
  const call = world.stage.model.calls.at(-1);
  must(call !== undefined, 'the model was not called');
  return call.body;
}

function rolesOf(request: ChatRequest): string {
  return request.messages.map(({ role }) => role).join(' ');
}

/** In every log: fields nobody knows, and before the end an event nobody knows. */
function addFuture(snapshot: Snapshot, world: World): void {
  const coded = (value: object): string => Buffer.from(JSON.stringify(value)).toString('base64');
  for (const [key, entries] of Object.entries(snapshot.streams)) {
    const later: [string, string][] = entries.map(([id, value]) => {
      const event = JSON.parse(Buffer.from(value, 'base64').toString()) as Record<string, unknown>;
      return [id, coded({ ...event, later: { known: false, list: [1] } })];
    });
    const isSealed = Buffer.from(entries.at(-1)?.[1] ?? '', 'base64').includes('"run.sealed"');
    const seal = isSealed ? later.pop() : undefined;
    const [epoch = '1', last = '-1'] = later.at(-1)?.[0].split('-') ?? [];
    const count = world.rng.int(1, 3);
    for (let n = 1; n <= count; n += 1) {
      later.push([`${epoch}-${Number(last) + n}`, coded({ type: 'run.later', ns: [], n })]);
    }
    if (seal !== undefined) later.push([`${epoch}-${Number(last) + count + 1}`, seal[1]]);
    snapshot.streams[key] = later;
    const run = snapshot.tables.runs?.find(({ id }) => key.includes(String(id)));
    if (seal !== undefined && run !== undefined) run.log_end = Number(run.log_end) + count;
  }
}

/** A newer version's migration, under this one's connections and their prepared statements. */
async function columnsAppear(world: World): Promise<void> {
  for (const table of [
    'threads',
    'lineages',
    'turns',
    'runs',
    'messages',
    'interrupts',
    'workers',
    'outbox',
    'checkpoints',
    'checkpoint_writes',
  ]) {
    await world.rows(`alter table ${table} add column if not exists later jsonb default '{}'`);
  }
}
