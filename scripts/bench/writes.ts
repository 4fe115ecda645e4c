/** What a turn writes, early and late in a thread: statements, WAL, time; and what the fence of a checkpoint costs. */
import { randomUUID } from 'node:crypto';
import { measureFence } from './fence.ts';
import { type Figures, format, median } from './figures.ts';
import type { Ask } from './ipc.ts';
import { LONG_QUESTION } from './loads.ts';
import type { ProcessUsage } from './probe.ts';
import type { Bench } from './setup.ts';
import { scaled, type Workload } from './workload.ts';

const EARLY = 10;
/** Turns around the one that is meant, so that one with a background statement in it does not count. */
const AROUND = 4;
/** After an answer the worker still looks for more work. */
const SETTLE_MS = 15;

interface Turn {
  statements: number;
  walBytes: number;
  ms: number;
}

interface Sides {
  early: Turn;
  late: Turn;
}

export const writes: Workload = async (bench, options) => {
  const late = scaled(200, options, 50);
  const count = (ask: Ask, names: string[]) => async (): Promise<number> => {
    const { statements } = await ask<ProcessUsage>('usage');
    return names.reduce((sum, name) => sum + (statements[name] ?? 0), 0);
  };
  const oursCount = count(bench.server, ['runledger app', 'runledger checkpoints']);
  const savedCount = count(bench.server, ['runledger checkpoints']);
  const bareCount = count(bench.bare, ['bare']);
  const oursIn = (graph: string) => {
    let threadId: string | undefined;
    return async (): Promise<number> => {
      const message = { graph, content: LONG_QUESTION, ...(threadId === undefined ? {} : { threadId }) };
      const streamed = await bench.client.send(message);
      threadId = streamed.threadId;
      return streamed.totalMs;
    };
  };
  const bareIn = (graph: string) => {
    const threadId = randomUUID();
    return () => bench.bare<number>('turn', { graph, threadId });
  };

  const list = await sides(bench, late, oursIn('notes'), oursCount);
  const delta = await sides(bench, late, oursIn('deltaNotes'), oursCount);
  const saved = await sides(bench, EARLY, oursIn('deltaNotes'), savedCount);
  const stock = await sides(bench, late, bareIn('notes'), bareCount);
  const fence = await measureFence(bench, scaled(1_000, options, 200));
  return merge([
    turnRows(`turn ${EARLY}`, { list: list.early, delta: delta.early, stock: stock.early, saver: saved.early }),
    turnRows(`turn ${late}`, { list: list.late, delta: delta.late, stock: stock.late }),
    fence,
  ]);
};

async function sides(
  bench: Bench,
  last: number,
  turn: () => Promise<number>,
  count: () => Promise<number>,
): Promise<Sides> {
  const seen: Turn[][] = [];
  for (const middle of last === EARLY ? [EARLY] : [EARLY, last]) {
    const done: number = seen.length === 0 ? 0 : EARLY + AROUND;
    for (let index = done; index < middle - AROUND; index += 1) await turn();
    const turns: Turn[] = [];
    for (let index = 0; index < 2 * AROUND; index += 1) turns.push(await watched(bench, turn, count));
    seen.push(turns);
  }
  const early = medianTurn(seen[0] ?? []);
  return { early, late: seen[1] === undefined ? early : medianTurn(seen[1]) };
}

async function watched(bench: Bench, turn: () => Promise<number>, count: () => Promise<number>): Promise<Turn> {
  const before = { statements: await count(), walBytes: await bench.walBytes() };
  const ms = await turn();
  await new Promise((resolve) => setTimeout(resolve, SETTLE_MS));
  return { statements: (await count()) - before.statements, walBytes: (await bench.walBytes()) - before.walBytes, ms };
}

function medianTurn(turns: Turn[]): Turn {
  const of = (key: keyof Turn) => median(turns.map((turn) => turn[key]));
  return { statements: Math.round(of('statements')), walBytes: of('walBytes'), ms: of('ms') };
}

function turnRows(when: string, turns: { list: Turn; delta: Turn; stock: Turn; saver?: Turn }): Figures {
  const { list, delta, stock, saver } = turns;
  const key = when.replace(' ', '');
  const kb = (turn: Turn) => format(turn.walBytes / 1024, 'KB');
  const row = (what: string, ours: string, bare: string, ratio: string, goal = '') => ({
    what,
    ours,
    bare,
    ratio,
    goal,
  });
  return {
    rows: [
      row(
        `${when}: statements, all of a run (${saver === undefined ? 'list' : `saver alone ${saver.statements}`})`,
        `${list.statements}`,
        `${stock.statements}`,
        '',
      ),
      row(`${when}: WAL, messages as a list`, kb(list), kb(stock), format(list.walBytes / stock.walBytes)),
      row(`${when}: WAL, messages as differences`, kb(delta), kb(stock), format(delta.walBytes / stock.walBytes)),
      row(`${when}: time, list`, format(list.ms, 'ms'), format(stock.ms, 'ms'), format(list.ms / stock.ms)),
      row(`${when}: time, differences`, format(delta.ms, 'ms'), format(stock.ms, 'ms'), format(delta.ms / stock.ms)),
    ],
    values: {
      [`${key}_statements`]: list.statements,
      [`${key}_statements_delta`]: delta.statements,
      [`${key}_statements_stock`]: stock.statements,
      ...(saver === undefined ? {} : { [`${key}_statements_saver`]: saver.statements }),
      [`${key}_wal_bytes`]: list.walBytes,
      [`${key}_wal_bytes_delta`]: delta.walBytes,
      [`${key}_wal_bytes_stock`]: stock.walBytes,
      [`${key}_ms`]: list.ms,
      [`${key}_ms_delta`]: delta.ms,
      [`${key}_ms_stock`]: stock.ms,
    },
  };
}

function merge(parts: Figures[]): Figures {
  return {
    rows: parts.flatMap((part) => part.rows),
    values: Object.assign({}, ...parts.map((part) => part.values)),
  };
}
