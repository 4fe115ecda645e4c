/** A long log read again from its start, and from near its end. */
import { framesIn, type Streamed } from './client.ts';
import { format, median } from './figures.ts';
import { SHORT_QUESTION } from './loads.ts';
import { scaled, type Workload } from './workload.ts';

const READS = 10;

export const replay: Workload = async (bench, options) => {
  const events = scaled(10_000, options, 2_000);
  const { streamPath } = await bench.client.start({
    graph: 'burst',
    content: SHORT_QUESTION,
    configurable: { events },
  });
  const whole = await bench.client.follow(streamPath, { keep: true });
  const frames = framesIn(whole.body);
  if (frames < events) throw new Error(`the log of ${events} events was replayed as ${frames} frames`);

  const fromStart = await read(streamPath);
  const nearEnd = await read(`${streamPath}&last_event_id=${events - 20}`);
  async function read(path: string): Promise<Streamed[]> {
    const reads: Streamed[] = [];
    for (let index = 0; index < READS; index += 1) reads.push(await bench.client.follow(path, { keep: false }));
    return reads;
  }
  if (fromStart.some((one) => one.bytes !== fromStart[0]?.bytes)) throw new Error('two replays of one log differ');
  const of = (reads: Streamed[], key: 'headMs' | 'totalMs') => median(reads.map((one) => one[key]));
  const row = (what: string, value: number, goal: string) => ({
    what,
    ours: format(value, 'ms'),
    bare: '',
    ratio: '',
    goal,
  });
  return {
    rows: [
      row(`replay of ${events} events: first byte`, of(fromStart, 'headMs'), '≤ 5 ms'),
      row(`replay of ${events} events: all (${format(whole.bytes / 1024)} KB)`, of(fromStart, 'totalMs'), '≤ 150 ms'),
      row(`reconnect 20 events before the end of ${events}`, of(nearEnd, 'totalMs'), '≤ 10 ms'),
    ],
    values: {
      replay_events: events,
      replay_first_byte_ms: of(fromStart, 'headMs'),
      replay_total_ms: of(fromStart, 'totalMs'),
      reconnect_near_end_ms: of(nearEnd, 'totalMs'),
    },
  };
};
