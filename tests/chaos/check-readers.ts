/** What readers of runs may and may not see: invariants I4, I5 and I6. Pure. */
import type { Facts, ReplayFact, RunFact, Violation } from './facts.ts';
import { fold } from './fold.ts';
import type { ReaderFrame, Reading } from './history.ts';
import { questionIn, whyNotWhole } from './questions.ts';

type Framed = Pick<ReaderFrame, 'event' | 'id' | 'data'>;

export function checkReaders(facts: Facts): Violation[] {
  const runs = new Map(facts.runs.map((run) => [run.id, run]));
  const replays = new Map(facts.replays.map((replay) => [replay.runId, replay]));
  return [
    ...facts.runs.flatMap((run) => answerIsWhole(run)),
    ...facts.replays.flatMap((replay) => replayIsWhole(replay, facts.mayResync)),
    ...facts.readings.flatMap((reading) => {
      const run = runs.get(reading.runId);
      const replay = replays.get(reading.runId);
      return [
        ...order(reading, facts.mayResync),
        ...(run === undefined ? [] : text(reading, run)),
        ...(replay === undefined ? [] : sameAsReplay(reading, replay)),
      ];
    }),
  ];
}

/** I4: ids rise, also over reconnects; what is missing is said; the end is the last. */
function order(reading: Reading, mayResync: boolean): Violation[] {
  const { name, runId, frames, ended } = reading;
  const found: Violation[] = [];
  const say = (evidence: string): void => void found.push({ invariant: 'I4', runId, evidence: `${name}: ${evidence}` });
  if (ended === 'lost' || ended === null)
    say(`never saw the end; its last of ${frames.length} frames: ${shown(frames.at(-1))}`);
  if (ended === 'expired' && !mayResync) say('was told that the events are no longer kept');
  let last = reading.from ?? -1;
  for (const [index, frame] of frames.entries()) {
    if (frame.event === 'resync_required') {
      if (!mayResync) say(`was told to resync after ${last}`);
      // It reads the thread again; what came before is no measure any more.
      last = -1;
    }
    if (frame.id !== null) {
      if (frame.id <= last) say(`got ${frame.id} after ${last} (connection ${frame.connection})`);
      last = frame.id;
    }
    if (frame.event === 'run_end' && index < frames.length - 1) say(`got ${shown(frames[index + 1])} after the end`);
  }
  return found;
}

/** I5: what a client put together is what the thread says. */
function text(reading: Reading, run: RunFact): Violation[] {
  const { name, runId, frames } = reading;
  if (reading.ended !== 'end' || reading.from !== null) return [];
  const { texts, resynced, status } = fold(frames);
  const found: Violation[] = [];
  const say = (evidence: string): void => void found.push({ invariant: 'I5', runId, evidence: `${name}: ${evidence}` });
  if (status !== run.status) say(`was told ${status}, the ledger says ${run.status}`);
  // Who was told to resync reads the thread instead.
  if (resynced || run.status === 'interrupted') return found;
  const built = [...texts.values()].filter((one) => one !== '');
  const question = questionIn(run.question);
  if (run.status === 'succeeded' && question !== null) {
    if (built.length !== 1) say(`${built.length} texts: ${built.map((one) => JSON.stringify(one.slice(0, 40)))}`);
    for (const one of built) {
      const why = whyNotWhole(question, one);
      if (why !== null) say(why);
    }
  }
  const answer = run.answer?.text ?? '';
  if ((built.at(-1) ?? '') !== answer) say(`built ${cut(built.at(-1) ?? '')}, the thread says ${cut(answer)}`);
  return found;
}

/** I5: an answer that counts as complete is one answer, in one piece. */
function answerIsWhole(run: RunFact): Violation[] {
  const question = questionIn(run.question);
  if (run.status !== 'succeeded' || question === null) return [];
  const why = run.answer === null ? 'there is none' : whyNotWhole(question, run.answer.text);
  const marked = run.answer?.partial === true ? 'it is marked partial' : null;
  const evidence = why ?? marked;
  return evidence === null
    ? []
    : [{ invariant: 'I5', runId: run.id, evidence: `the answer in the thread: ${evidence}` }];
}

/** I6: a replay tells the whole run. */
function replayIsWhole({ runId, frames }: ReplayFact, mayResync: boolean): Violation[] {
  if (mayResync) return [];
  if (frames === null) return [{ invariant: 'I6', runId, evidence: 'there is no replay' }];
  const found: Violation[] = [];
  if (frames.some((frame) => frame.event === 'resync_required')) {
    found.push({ invariant: 'I6', runId, evidence: 'the replay has a hole' });
  }
  if (frames.at(-1)?.event !== 'run_end') {
    found.push({ invariant: 'I6', runId, evidence: `the replay ends with ${shown(frames.at(-1))}` });
  }
  return found;
}

/** I6: a replay now is what readers saw then; after a resync at least no frame contradicts it. */
function sameAsReplay(reading: Reading, replay: ReplayFact): Violation[] {
  if (replay.frames === null) return [];
  const { name, runId, from } = reading;
  const say = (evidence: string): Violation[] => [{ invariant: 'I6', runId, evidence: `${name}: ${evidence}` }];
  const isEvent = (frame: Framed): boolean =>
    frame.event !== 'resync_required' && !(frame.event === 'metadata' && frame.id === null);
  const seen = reading.frames.filter(isEvent);
  const told = replay.frames.filter(isEvent).slice(startIn(replay.frames.filter(isEvent), from));
  const resynced = [...reading.frames, ...replay.frames].some((frame) => frame.event === 'resync_required');
  if (resynced) {
    const byId = new Map(told.flatMap((frame) => (frame.id === null ? [] : [[frame.id, frame] as const])));
    const other = seen.find((frame) => frame.id !== null && byId.has(frame.id) && !same(frame, byId.get(frame.id)));
    return other === undefined ? [] : say(`saw ${shown(other)}, the replay has ${shown(byId.get(other.id ?? -1))}`);
  }
  const until = reading.ended === 'stopped' ? seen.length : Math.max(seen.length, told.length);
  for (let index = 0; index < until; index += 1) {
    if (!same(seen[index], told[index])) {
      return say(`frame ${index} was ${shown(seen[index])}, the replay has ${shown(told[index])}`);
    }
  }
  return [];
}

/** Where in a replay a reader begins that has seen `from`. */
function startIn(frames: Framed[], from: number | null): number {
  if (from === null) return 0;
  return frames.findLastIndex((frame) => frame.id !== null && frame.id <= from) + 1;
}

function same(a: Framed | undefined, b: Framed | undefined): boolean {
  return a !== undefined && b !== undefined && a.event === b.event && a.id === b.id && a.data === b.data;
}

function shown(frame: Framed | undefined): string {
  return frame === undefined ? 'nothing' : `${frame.event} ${frame.id} ${frame.data.slice(0, 80)}`;
}

function cut(text: string): string {
  return JSON.stringify(text.length > 60 ? `${text.slice(0, 20)}…${text.slice(-40)}` : text);
}
