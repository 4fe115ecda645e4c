/** One HTTP server for what runs tell the outside world: nodes that ran, and webhooks. */
import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { query } from '#tests/support/postgres.ts';
import type { HookCall, NodeRun } from './history.ts';

export interface Recorder {
  /** Where a counting node posts. */
  readonly nodeUrl: string;
  /** A webhook URL; the name is for `answers`. */
  hookUrl(name: string): string;
  readonly nodeRuns: NodeRun[];
  readonly hookCalls: HookCall[];
  /** What a hook answers; 204 when it is not set. A promise holds the answer back. */
  answers(name: string, answer: (nth: number) => number | Promise<number>): void;
  close(): Promise<void>;
}

/** @param statusOf the status of a run in the ledger, now */
export async function startRecorder(statusOf: (runId: string) => Promise<string | null>): Promise<Recorder> {
  const nodeRuns: NodeRun[] = [];
  const hookCalls: HookCall[] = [];
  const scripts = new Map<string, (nth: number) => number | Promise<number>>();
  const counts = new Map<string, number>();

  const server = createServer((request, response) => {
    let body = '';
    request.setEncoding('utf8').on('data', (part: string) => {
      body += part;
    });
    request.on('end', () => {
      const { pathname } = new URL(request.url ?? '/', 'http://recorder');
      if (pathname === '/node') {
        nodeRuns.push({ ...(JSON.parse(body) as Omit<NodeRun, 'at'>), at: performance.timeOrigin + performance.now() });
        response.writeHead(204).end();
        return;
      }
      void hook(pathname.slice('/hook/'.length), String(request.headers['webhook-id']), body).then((status) =>
        response.writeHead(status).end(),
      );
    });
    // Whoever was killed in the middle of a request is none of our business.
    request.on('error', () => undefined);
  });

  async function hook(name: string, deliveryId: string, body: string): Promise<number> {
    const { run_id: runId } = JSON.parse(body) as { run_id: string };
    const nth = (counts.get(name) ?? 0) + 1;
    counts.set(name, nth);
    const call: HookCall = { deliveryId, runId, answered: 0, statusThen: null };
    hookCalls.push(call);
    // Postgres may be away at this moment: then there is nothing to judge by.
    call.statusThen = await statusOf(runId).catch(() => 'unread');
    call.answered = await (scripts.get(name)?.(nth) ?? 204);
    return call.answered;
  }

  server.keepAliveTimeout = 600_000;
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  return {
    nodeUrl: `${url}/node`,
    hookUrl: (name) => `${url}/hook/${name}`,
    nodeRuns,
    hookCalls,
    answers: (name, answer) => void scripts.set(name, answer),
    async close() {
      server.closeAllConnections();
      server.close();
      await once(server, 'close');
    },
  };
}

export async function ledgerStatus(databaseUrl: string, runId: string): Promise<string | null> {
  const { rows } = await query(databaseUrl, 'select status from runs where id = $1::uuid', [runId]);
  return (rows[0] as { status: string } | undefined)?.status ?? null;
}
