/** The one checker: what must hold after every scenario, over the facts that were collected. Pure. */
import { checkReaders } from './check-readers.ts';
import type { Facts, RunFact, StatusFact, Violation, WriteFact } from './facts.ts';
import { questionIn } from './questions.ts';

const TERMINAL = new Set(['succeeded', 'interrupted', 'failed', 'cancelled']);
const MAX_RSS_MB = 700;
/** Two clocks of one machine, and the time from a node's start to its telling. */
const CLOCK_SLACK_MS = 20;

/** Every violation found; none is the goal. */
export function check(facts: Facts): Violation[] {
  return [
    ...endsOnce(facts),
    ...oneRunPerKey(facts),
    ...onlyTheOwnerWrites(facts),
    ...checkReaders(facts),
    ...hooksAreTold(facts),
    ...nothingLeaks(facts),
    ...finishedNodesStayFinished(facts),
    ...memoryIsBounded(facts),
  ];
}

/** I1: every admitted run has exactly one end. */
function endsOnce({ submissions, runs, statuses }: Facts): Violation[] {
  const found: Violation[] = [];
  const known = new Map(runs.map((run) => [run.id, run]));
  for (const runId of new Set([...submissions.flatMap((one) => one.runIds), ...known.keys()])) {
    const run = known.get(runId);
    const ends = statuses.filter((change) => change.runId === runId && TERMINAL.has(change.to));
    const told = ends.map((change) => `${change.from} -> ${change.to}`).join(', ');
    if (run === undefined) found.push({ invariant: 'I1', runId, evidence: 'admitted, and no longer there' });
    else if (!TERMINAL.has(run.status)) found.push({ invariant: 'I1', runId, evidence: `still ${run.status}` });
    else if (ends.length !== 1) found.push({ invariant: 'I1', runId, evidence: `${ends.length} ends: ${told}` });
  }
  return found;
}

/** I2: one request key, one run. */
function oneRunPerKey({ submissions, runs }: Facts): Violation[] {
  return submissions.flatMap(({ requestKey, runIds, question }): Violation[] => {
    const answered = new Set(runIds);
    const stored = runs.filter((run) => run.requestKey === requestKey);
    const asked = runs.filter((run) => questionIn(run.question)?.tag === question.tag);
    if (answered.size <= 1 && stored.length <= 1 && asked.length <= 1) return [];
    const evidence = `key ${requestKey}: ${answered.size} runs in answers, ${stored.length} stored, ${asked.length} with its question`;
    return [{ invariant: 'I2', runId: runIds[0] ?? null, evidence }];
  });
}

/** I3: only the owner writes, and no owner after a newer one. */
function onlyTheOwnerWrites({ statuses, writes, logs }: Facts): Violation[] {
  return [
    ...statuses.flatMap(statusOfAnother),
    ...writes.flatMap(writeOfAnother),
    ...[...groupByRun(writes).values()].flatMap(chainOf),
    ...logs.flatMap(({ runId, cursors }): Violation[] => {
      const at = cursors.findIndex((cursor, index) => index > 0 && cursor <= (cursors[index - 1] ?? 0));
      if (at === -1) return [];
      return [{ invariant: 'I3', runId, evidence: `log entry ${cursors[at]} after ${cursors[at - 1]}` }];
    }),
  ];
}

function statusOfAnother(change: StatusFact): Violation[] {
  const { runId, from, to, fromEpoch, toEpoch, owner, writer } = change;
  const evidence = `${from} -> ${to} at epoch ${fromEpoch} -> ${toEpoch} by process ${writer}, the owner is ${owner}`;
  if (fromEpoch !== null && toEpoch < fromEpoch) return [{ invariant: 'I3', runId, evidence }];
  const ownersOwn = to === 'running' || (from === 'running' && TERMINAL.has(to));
  return ownersOwn && writer !== owner ? [{ invariant: 'I3', runId, evidence }] : [];
}

function writeOfAnother({ runId, kind, checkpointId, owner, writer, epoch }: WriteFact): Violation[] {
  if (writer === owner && owner !== null) return [];
  const evidence = `${kind} ${checkpointId} at epoch ${epoch} by process ${writer}, the owner is ${owner}`;
  return [{ invariant: 'I3', runId, evidence }];
}

/** Along the chain of one run's root checkpoints the epoch never falls, and no owner began anew where another had gone on. */
function chainOf(writes: WriteFact[]): Violation[] {
  const found: Violation[] = [];
  const checkpoints = new Map<string, WriteFact>();
  const children = new Map<string, WriteFact>();
  for (const write of writes) {
    if (write.kind !== 'checkpoint' || write.ns !== '' || checkpoints.has(write.checkpointId)) continue;
    checkpoints.set(write.checkpointId, write);
    if (write.parentId === null) continue;
    const parent = checkpoints.get(write.parentId);
    if (parent !== undefined && (parent.epoch ?? 0) > (write.epoch ?? 0)) {
      const evidence = `checkpoint ${write.checkpointId} of epoch ${write.epoch} after ${write.parentId} of epoch ${parent.epoch}`;
      found.push({ invariant: 'I3', runId: write.runId, evidence });
    }
    const sibling = children.get(write.parentId);
    if (sibling !== undefined && sibling.epoch !== write.epoch) {
      const evidence = `checkpoints ${sibling.checkpointId} (epoch ${sibling.epoch}) and ${write.checkpointId} (epoch ${write.epoch}) both follow ${write.parentId}`;
      found.push({ invariant: 'I3', runId: write.runId, evidence });
    }
    children.set(write.parentId, write);
  }
  return found;
}

/** I7: what must follow an end is told, under one id, and only after the end. */
function hooksAreTold({ runs, outbox, hookCalls }: Facts): Violation[] {
  const found: Violation[] = [];
  const say = (run: RunFact, evidence: string): void => void found.push({ invariant: 'I7', runId: run.id, evidence });
  for (const run of runs) {
    if (!run.hasWebhook) continue;
    const rows = outbox.filter((row) => row.runId === run.id);
    const calls = hookCalls.filter((call) => call.runId === run.id);
    if (rows.length !== 1) say(run, `${rows.length} outbox rows`);
    if (rows.some((row) => row.status !== 'delivered')) say(run, `its webhook is ${rows[0]?.status}`);
    if (!calls.some((call) => call.answered >= 200 && call.answered < 300)) say(run, 'its webhook was never told');
    if (calls.some((call) => call.deliveryId !== rows[0]?.id)) say(run, 'told under another id');
    for (const { statusThen } of calls) {
      if (statusThen === 'unread') continue;
      if (statusThen === null || !TERMINAL.has(statusThen)) say(run, `told while the ledger said ${statusThen}`);
    }
  }
  return found;
}

/** I8: after the end nothing is left behind. */
function nothingLeaks({ runs, logs, servers, idleInTransaction }: Facts): Violation[] {
  const found: Violation[] = [];
  const say = (runId: string | null, evidence: string): void => void found.push({ invariant: 'I8', runId, evidence });
  const known = new Set(runs.map((run) => run.id));
  for (const { runId, ttlMs, cursors, types } of logs) {
    if (!known.has(runId)) continue;
    if (ttlMs === -1) say(runId, `its log never expires; it ends with ${types.at(-1)} at ${cursors.at(-1)}`);
  }
  for (const server of servers) {
    if (server.viewers !== 0) say(null, `${server.name} has ${server.viewers} viewers`);
    if (server.streams !== 0) say(null, `${server.name} has ${server.streams} open streams`);
  }
  if (idleInTransaction > 0) say(null, `${idleInTransaction} connections idle in a transaction`);
  return found;
}

/** I9: what is stored as finished is not run again. */
function finishedNodesStayFinished(facts: Facts): Violation[] {
  const writes = groupByRun(facts.writes);
  return facts.runs.flatMap((run): Violation[] => {
    const tag = questionIn(run.question)?.tag;
    const roots = (writes.get(run.id) ?? []).filter((write) => write.kind === 'checkpoint' && write.ns === '');
    const doneAt = (step: number): number =>
      roots.find((write) => write.step !== null && write.step >= step && write.source === 'loop')?.at ??
      Number.POSITIVE_INFINITY;
    const late = facts.nodeRuns
      .filter((node) => node.tag === tag && node.step !== null && node.at > doneAt(node.step) + CLOCK_SLACK_MS)
      .map((node) => `node ${node.node} ran again after step ${node.step} was stored`);
    const input = roots.find((write) => write.source === 'input')?.step;
    if (run.graphId === 'chat' && input !== undefined && input !== null) {
      for (const call of facts.modelCalls) {
        const step = input + 2 + 2 * call.depth;
        if (call.tag !== tag || call.at <= doneAt(step) + CLOCK_SLACK_MS) continue;
        late.push(`the model was called again (depth ${call.depth}) after step ${step} was stored`);
      }
    }
    return late.map((evidence) => ({ invariant: 'I9', runId: run.id, evidence }));
  });
}

/** I10 */
function memoryIsBounded({ servers }: Facts): Violation[] {
  return servers
    .filter((server) => server.rssMb > MAX_RSS_MB)
    .map(({ name, rssMb }) => ({ invariant: 'I10', runId: null, evidence: `${name} takes ${Math.round(rssMb)} MB` }));
}

function groupByRun(writes: WriteFact[]): Map<string, WriteFact[]> {
  const groups = new Map<string, WriteFact[]>();
  for (const write of writes) groups.set(write.runId, [...(groups.get(write.runId) ?? []), write]);
  return groups;
}
