/** A checkpoint put with the fence and the same put without it, in turn. */
import { randomUUID } from 'node:crypto';
import pg from 'pg';
import { PUT } from '#src/graphs/checkpoint-sql.ts';
import { type Figures, format, median } from './figures.ts';
import type { Bench } from './setup.ts';

const FENCE = /select id from runs[\s\S]*?for share\)/;
const NO_FENCE = 'select $1::uuid as id, $2::int as epoch)';

const OWNED_RUN = `
  with thread as (insert into threads (id, owner) values ($1::uuid, 'bench') returning id),
  lineage as (insert into lineages (id, thread_id) select id, id from thread returning id)
  insert into runs (id, owner, thread_id, lineage_id, graph_id, kind, status, epoch, ordinal, worker_id)
  select $2::uuid, 'bench', id, id, 'none', 'edit', 'running', 1, 1, $2::uuid from lineage`;

export async function measureFence(bench: Bench, puts: number): Promise<Figures> {
  const bare = PUT.replace(FENCE, NO_FENCE);
  if (bare === PUT) throw new Error('the fence of the put statement was not found');
  const client = new pg.Client({ connectionString: bench.quietDatabaseUrl });
  await client.connect();
  try {
    const threadId = randomUUID();
    const runId = randomUUID();
    await client.query(OWNED_RUN, [threadId, runId]);
    const put = async (name: string, text: string): Promise<number> => {
      const startMs = performance.now();
      await client.query({ name, text, values: putValues(runId, threadId) });
      return (performance.now() - startMs) * 1000;
    };
    const us: { fenced: number[]; bare: number[] } = { fenced: [], bare: [] };
    for (let index = 0; index < puts; index += 1) {
      us.fenced.push(await put('fenced', PUT));
      us.bare.push(await put('bare', bare));
    }
    const fencedWal = await walOf(bench, puts, () => put('fenced', PUT));
    const bareWal = await walOf(bench, puts, () => put('bare', bare));
    const cost = median(us.fenced) - median(us.bare);
    return {
      rows: [
        {
          what: 'one put, with the fence against without it (right)',
          ours: `${format(median(us.fenced), 'µs')}, ${format(fencedWal, 'B')}`,
          bare: `${format(median(us.bare), 'µs')}, ${format(bareWal, 'B')}`,
          ratio: format(median(us.fenced) / median(us.bare)),
          goal: '',
        },
      ],
      values: { fence_us: cost, fence_wal_bytes: fencedWal - bareWal },
    };
  } finally {
    await client.end();
  }
}

function putValues(runId: string, threadId: string): unknown[] {
  const version = randomUUID();
  const bytes = Buffer.from(JSON.stringify('x'.repeat(1_000)));
  const checkpoint = { v: 4, id: version, ts: new Date().toISOString(), channel_versions: { messages: version } };
  return [
    runId,
    1,
    threadId,
    '',
    ['messages', 'branch:to:reply'],
    [version, version],
    ['json', 'empty'],
    [bytes, null],
    version,
    null,
    JSON.stringify(checkpoint),
    JSON.stringify({ source: 'loop', step: 1, run_id: runId }),
    threadId,
    41,
  ];
}

async function walOf(bench: Bench, puts: number, put: () => Promise<unknown>): Promise<number> {
  const before = await bench.walBytes();
  for (let index = 0; index < puts; index += 1) await put();
  return ((await bench.walBytes()) - before) / puts;
}
