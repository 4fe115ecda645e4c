/** The chaos suite's checker sees a violation of each invariant that is planted in facts which are in order. */
import { describe, expect, test } from 'vitest';
import { check } from '#tests/chaos/checker.ts';
import type { Facts, RunFact, StatusFact, WriteFact } from '#tests/chaos/facts.ts';
import type { ReaderFrame } from '#tests/chaos/history.ts';
import { contentOf, whyNotWhole } from '#tests/chaos/questions.ts';

const OWNER = 100;
const PEER = 200;
const question = { tag: 'me.1', tokens: 3, delayMs: 0, tools: 0 };
const ANSWER = '7:0 7:1 7:2 ';

function frames(): ReaderFrame[] {
  const chunk = (id: number, delta: string) => ({
    event: 'message_chunk',
    id,
    data: JSON.stringify({ message_id: 'm', type: 'text', delta }),
  });
  const all = [
    { event: 'metadata', id: 0, data: '{"run_id":"run","takeover":0}' },
    chunk(1, '7:0 '),
    chunk(2, '7:1 7:2 '),
    { event: 'run_end', id: 3, data: '{"status":"succeeded"}' },
  ];
  return all.map((frame) => ({ ...frame, atMs: 0, connection: 0 }));
}

const change = (from: string | null, to: string, epoch: number, writer: number): StatusFact => ({
  runId: 'run',
  from,
  to,
  fromEpoch: from === null ? null : epoch - (to === 'running' ? 1 : 0),
  toEpoch: epoch,
  owner: to === 'queued' ? null : OWNER,
  writer,
});

function put(id: string, parentId: string | null, step: number, more: Partial<WriteFact> = {}): WriteFact {
  const source = step < 0 ? 'input' : 'loop';
  const base = { runId: 'run', kind: 'checkpoint', ns: '', epoch: 1, owner: OWNER, writer: OWNER } as const;
  return { ...base, checkpointId: id, parentId, step, source, at: 1_000 + step * 100, ...more };
}

/** A run that ended as it should, with one reader and one webhook. */
function inOrder(): Facts & { runs: [RunFact]; readings: [Facts['readings'][0]] } {
  return {
    mayResync: false,
    submissions: [{ question, requestKey: 'key', runIds: ['run'], statuses: [202] }],
    readings: [{ name: 'reader', runId: 'run', from: null, frames: frames(), ended: 'end' }],
    runs: [
      {
        id: 'run',
        threadId: 'thread',
        lineageId: 'thread',
        graphId: 'chat',
        status: 'succeeded',
        hasWebhook: true,
        epoch: 1,
        takeovers: 0,
        requestKey: 'key',
        logEnd: 3,
        question: contentOf(question),
        answer: { text: ANSWER, partial: false },
      },
    ],
    statuses: [
      change(null, 'queued', 0, OWNER),
      change('queued', 'running', 1, OWNER),
      change('running', 'succeeded', 1, OWNER),
    ],
    writes: [put('a', null, -1), put('b', 'a', 0), put('c', 'b', 1)],
    logs: [{ runId: 'run', cursors: [0, 1, 2, 3], types: ['run.started', 'run.sealed'], ttlMs: 1_000 }],
    replays: [{ runId: 'run', frames: frames().map(({ event, id, data }) => ({ event, id, data })) }],
    hookCalls: [{ deliveryId: 'delivery', runId: 'run', answered: 204, statusThen: 'succeeded' }],
    outbox: [{ id: 'delivery', runId: 'run', status: 'delivered' }],
    nodeRuns: [{ tag: 'me.1', node: 'agent', step: 1, at: 1_050 }],
    modelCalls: [{ tag: 'me.1', depth: 0, at: 1_060 }],
    servers: [{ name: 'a', viewers: 0, streams: 0, rssMb: 200 }],
    idleInTransaction: 0,
  };
}

/** The invariants that are violated once `plant` has spoiled the facts. */
function violated(plant: (facts: ReturnType<typeof inOrder>) => void): string[] {
  const facts = inOrder();
  plant(facts);
  return [...new Set(check(facts).map((violation) => violation.invariant))];
}

const only =
  (from: number, to?: number) =>
  (facts: ReturnType<typeof inOrder>): void => {
    facts.readings[0].frames = facts.readings[0].frames.filter((_, index) => index < from || index >= (to ?? from + 1));
  };

test('nothing is found in facts that are in order', () => {
  expect(check(inOrder())).toEqual([]);
});

describe('a planted violation is found', () => {
  test.each<[string, string[], (facts: ReturnType<typeof inOrder>) => void]>([
    ['a run that never ends', ['I1', 'I5'], (facts) => Object.assign(facts.runs[0], { status: 'running' })],
    ['a run that ends twice', ['I1'], (facts) => facts.statuses.push(change('running', 'succeeded', 1, OWNER))],
    ['an admitted run that is gone', ['I1'], (facts) => facts.submissions[0]?.runIds.splice(0, 1, 'other')],
    ['one key, two answers', ['I1', 'I2'], (facts) => facts.submissions[0]?.runIds.push('other')],
    ['an end written by another', ['I3'], (facts) => Object.assign(facts.statuses[2] ?? {}, { writer: PEER })],
    ['an epoch that falls', ['I3'], (facts) => Object.assign(facts.statuses[2] ?? {}, { fromEpoch: 2 })],
    ['a checkpoint of another', ['I3'], (facts) => facts.writes.push(put('d', 'c', 2, { writer: PEER }))],
    [
      'a pending write of another',
      ['I3'],
      (facts) => facts.writes.push(put('c', null, 2, { kind: 'write', writer: PEER })),
    ],
    ['a checkpoint without an owner', ['I3'], (facts) => facts.writes.push(put('d', 'c', 2, { owner: null }))],
    [
      'an older epoch after a newer',
      ['I3'],
      (facts) => facts.writes.push(put('d', 'c', 2, { epoch: 3 }), put('e', 'd', 3, { epoch: 1 })),
    ],
    ['a second owner that began anew', ['I3'], (facts) => facts.writes.push(put('d', 'b', 2, { epoch: 3 }))],
    ['a log out of order', ['I3'], (facts) => facts.logs[0]?.cursors.push(2)],
    ['a reader that gave up', ['I4'], (facts) => Object.assign(facts.readings[0], { ended: 'lost' })],
    ['a log that is no longer kept', ['I4'], (facts) => Object.assign(facts.readings[0], { ended: 'expired' })],
    ['a resync without a reason', ['I4'], (facts) => facts.readings[0].frames.splice(2, 0, resync())],
    [
      'the same event twice',
      ['I4', 'I5', 'I6'],
      (facts) => facts.readings[0].frames.splice(2, 0, facts.readings[0].frames[1] as ReaderFrame),
    ],
    [
      'something after the end',
      ['I4', 'I6'],
      (facts) => facts.readings[0].frames.push({ ...resync(), event: 'usage' }),
    ],
    ['text that was lost in silence', ['I5', 'I6'], only(2)],
    ['an event without text that was lost', ['I6'], only(0)],
    ['another status than the ledger', ['I5'], (facts) => endWith(facts, '{"status":"failed"}')],
    [
      'text of a dead attempt that was not taken back',
      ['I5'],
      (facts) => {
        const dead = { ...resync(), event: 'message_chunk', data: '{"message_id":"old","type":"text","delta":"6:0 "}' };
        facts.readings[0].frames.splice(1, 0, { ...dead, id: null });
        facts.replays[0]?.frames?.splice(1, 0, { event: dead.event, id: null, data: dead.data });
      },
    ],
    [
      'an answer in pieces of two',
      ['I5'],
      (facts) => Object.assign(facts.runs[0].answer ?? {}, { text: '7:0 8:1 7:2 ' }),
    ],
    ['an answer marked partial', ['I5'], (facts) => Object.assign(facts.runs[0].answer ?? {}, { partial: true })],
    ['no answer', ['I5'], (facts) => Object.assign(facts.runs[0], { answer: null })],
    ['no replay', ['I6'], (facts) => Object.assign(facts.replays[0] ?? {}, { frames: null })],
    ['a replay with a hole', ['I6'], (facts) => facts.replays[0]?.frames?.splice(1, 0, resync())],
    ['a replay without its end', ['I6'], (facts) => facts.replays[0]?.frames?.pop()],
    ['a webhook that was never told', ['I7'], (facts) => facts.hookCalls.pop()],
    ['a webhook that was given up', ['I7'], (facts) => Object.assign(facts.outbox[0] ?? {}, { status: 'dead' })],
    ['no outbox row', ['I7'], (facts) => facts.outbox.pop()],
    ['another id', ['I7'], (facts) => facts.hookCalls.push({ ...told(facts), deliveryId: 'second' })],
    ['told before the end', ['I7'], (facts) => facts.hookCalls.push({ ...told(facts), statusThen: 'running' })],
    ['told of no run', ['I7'], (facts) => facts.hookCalls.push({ ...told(facts), statusThen: null })],
    ['a log for ever', ['I8'], (facts) => Object.assign(facts.logs[0] ?? {}, { ttlMs: -1 })],
    ['a viewer left', ['I8'], (facts) => Object.assign(facts.servers[0] ?? {}, { viewers: 1 })],
    ['a stream left', ['I8'], (facts) => Object.assign(facts.servers[0] ?? {}, { streams: 1 })],
    ['a transaction left open', ['I8'], (facts) => Object.assign(facts, { idleInTransaction: 1 })],
    [
      'a node that ran again',
      ['I9'],
      (facts) => facts.nodeRuns.push({ tag: 'me.1', node: 'agent', step: 1, at: 1_200 }),
    ],
    ['a model called again', ['I9'], (facts) => facts.modelCalls.push({ tag: 'me.1', depth: 0, at: 1_200 })],
    ['memory without bound', ['I10'], (facts) => Object.assign(facts.servers[0] ?? {}, { rssMb: 2_000 })],
  ])('%s', (_what, invariants, plant) => {
    expect(violated(plant)).toEqual(invariants);
  });
});

describe('what a scenario allows', () => {
  test('a resync, after which ids may begin anew and text is read from the thread', () => {
    const facts = inOrder();
    facts.mayResync = true;
    facts.readings[0].frames.splice(1, 1, resync());
    expect(check(facts)).toEqual([]);
  });

  test('not that a frame contradicts the replay', () => {
    const facts = inOrder();
    facts.mayResync = true;
    facts.readings[0].frames.splice(1, 1, resync());
    Object.assign(facts.readings[0].frames[2] ?? {}, { data: '{"message_id":"m","type":"text","delta":"8:1 "}' });
    expect(check(facts).map((violation) => violation.invariant)).toEqual(['I6']);
  });
});

test('an answer is whole only in one piece of one call', () => {
  expect(whyNotWhole(question, ANSWER)).toBeNull();
  for (const text of ['', '7:0 7:1 ', '7:0 7:2 ', '7:0 7:1 7:1 7:2 ', '7:1 7:2 7:3 ', '7:0 8:1 7:2 ']) {
    expect(whyNotWhole(question, text), text).not.toBeNull();
  }
});

function resync(): ReaderFrame {
  return { event: 'resync_required', id: null, data: '{}', atMs: 0, connection: 0 };
}

function told(facts: Facts): Facts['hookCalls'][0] {
  const [call] = facts.hookCalls;
  if (call === undefined) throw new Error('no call');
  return call;
}

function endWith(facts: ReturnType<typeof inOrder>, data: string): void {
  Object.assign(facts.readings[0].frames.at(-1) ?? {}, { data });
  Object.assign(facts.replays[0]?.frames?.at(-1) ?? {}, { data });
}
