/** The first command of the README: a server with nothing but Node, on its own Postgres, log and model. */
import { chmod, mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { query } from '#tests/support/postgres.ts';
import { startServer } from '#tests/support/server.ts';
import { openSse } from '#tests/support/sse.ts';
import { until } from '#tests/support/until.ts';

let folder: string;
let config: Record<string, unknown>;

beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'runledger-start-'));
  await chmod(folder, 0o755);
  config = { postgres: { data_dir: folder } };
});
afterEach(() => rm(folder, { recursive: true, force: true }));

/** The cluster's own URL, from the files a start leaves. */
async function clusterUrl(): Promise<string> {
  const cluster = join(folder, 'cluster');
  const { password, port } = JSON.parse(await readFile(join(cluster, 'runledger.json'), 'utf8'));
  return `postgresql://runledger:${password}@127.0.0.1:${port}/runledger`;
}

async function clusterIsUp(): Promise<boolean> {
  return query(await clusterUrl(), 'select 1').then(
    () => true,
    () => false,
  );
}

async function turns(url: string, threadId: string) {
  const response = await fetch(`${url}/api/v1/threads/${threadId}/turns`);
  expect(response.status).toBe(200);
  return (await response.json()) as { turns: { status: string; answer: { content: unknown } | null }[] };
}

// Two starts from nothing on a slow machine.
describe('a server without any service', { timeout: 120_000 }, () => {
  test('answers, keeps its threads over a kill -9, and takes its Postgres down when it is stopped', async () => {
    const first = await startServer({ config });
    const stream = await openSse(`${first.url}/api/v1/threads/messages`, { body: { content: 'What is 2 + 2?' } });
    const end = await stream.waitFor((frame) => frame.event === 'run_end', { timeoutMs: 30_000 });
    expect(JSON.parse(end.data)).toMatchObject({ status: 'succeeded' });
    const { thread_id } = JSON.parse((await stream.waitFor((frame) => frame.event === 'metadata')).data);
    const before = await turns(first.url, thread_id);
    expect(before.turns).toMatchObject([{ status: 'succeeded' }]);

    first.kill('SIGKILL');
    await first.exit;
    expect(await clusterIsUp()).toBe(true);

    const second = await startServer({ config });
    expect(await turns(second.url, thread_id)).toEqual(before);
    expect(await second.stop()).toBe(0);
    expect(await clusterIsUp()).toBe(false);
  });

  test('finishes what it does at Ctrl-C before its Postgres goes', async () => {
    const server = await startServer({ config });
    const stream = await openSse(`${server.url}/api/v1/threads/messages`, { body: { content: 'Tell me a story' } });
    await stream.waitFor((frame) => frame.event === 'message_chunk');
    // A terminal sends Ctrl-C to every process of the group; the cluster must not be one of them.
    process.kill(-server.groupPid, 'SIGINT');
    expect(await server.exit).toBe(0);
    expect(server.logs()).not.toMatch(/terminating connection|ECONNREFUSED|ended by an error/);
    await until(async () => !(await clusterIsUp()), { message: 'the cluster to be down' });
  });
});
