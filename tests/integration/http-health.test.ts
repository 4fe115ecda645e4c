/** /livez, /readyz and /metrics, as probes and scrapers see them. */
import { describe, expect, test } from 'vitest';
import { watchClient } from '#src/http/client.ts';
import { registerHealth } from '#src/http/health.ts';
import { type Reading, registerMetrics } from '#src/http/metrics.ts';
import { openSse } from '#tests/support/sse.ts';
import { until } from '#tests/support/until.ts';
import { createFeed, startRig } from './http-rig.ts';

type Check = () => Promise<unknown>;

function startHealth(state: { postgres: Check; log: Check; draining: boolean }) {
  return startRig({}, ({ app, logger }) =>
    registerHealth(app, {
      checks: { postgres: () => state.postgres(), log: () => state.log() },
      isDraining: () => state.draining,
      logger,
      deadlineMs: 100,
    }),
  );
}

const fine: Check = async () => undefined;
const failing: Check = () => Promise.reject(new Error('connect ECONNREFUSED postgres://u:secret@db'));
const silent: Check = () => new Promise(() => undefined);

async function ask(url: string) {
  const response = await fetch(url);
  return { status: response.status, body: (await response.json()) as unknown };
}

describe('/livez and /readyz', () => {
  test('all is well', async () => {
    const { url } = await startHealth({ postgres: fine, log: fine, draining: false });
    expect(await ask(`${url}/livez`)).toEqual({ status: 200, body: { status: 'ok' } });
    expect(await ask(`${url}/readyz`)).toEqual({
      status: 200,
      body: { status: 'ready', checks: { postgres: 'ok', log: 'ok', draining: false } },
    });
  });

  test.each<[string, Partial<{ postgres: Check; log: Check; draining: boolean }>, object]>([
    ['Postgres refuses', { postgres: failing }, { postgres: 'down', log: 'ok', draining: false }],
    ['the log does not answer', { log: silent }, { postgres: 'ok', log: 'down', draining: false }],
    ['both are down', { postgres: silent, log: failing }, { postgres: 'down', log: 'down', draining: false }],
    ['the process drains', { draining: true }, { postgres: 'ok', log: 'ok', draining: true }],
  ])('%s: 503 says what, not why', async (_name, change, checks) => {
    const { url, logs } = await startHealth({ postgres: fine, log: fine, draining: false, ...change });
    expect(await ask(`${url}/readyz`)).toEqual({ status: 503, body: { status: 'unavailable', checks } });
    expect((await ask(`${url}/livez`)).status).toBe(200);
    const down = Object.values(checks).filter((value) => value === 'down').length;
    expect(logs.filter((line) => line.msg === 'readiness check failed')).toHaveLength(down);
  });

  test('a service that comes back is ready again', async () => {
    const state = { postgres: failing, log: fine, draining: false };
    const { url } = await startHealth(state);
    expect((await ask(`${url}/readyz`)).status).toBe(503);
    state.postgres = fine;
    expect((await ask(`${url}/readyz`)).status).toBe(200);
  });
});

describe('/metrics', () => {
  async function startMetrics(readings: Reading[] = []) {
    const feed = createFeed<Buffer>();
    const rig = await startRig({}, ({ app, sse, metrics }) => {
      registerMetrics(app, metrics);
      for (const reading of readings) metrics.observe(reading);
      app.get('/items/:id', async (request) => request.params);
      app.get('/stream', async (_request, reply) =>
        sse.stream(reply, { client: watchClient(reply), items: feed.items, encode: (bytes) => bytes }),
      );
    });
    const scrape = async () => {
      const response = await fetch(`${rig.url}/metrics`);
      expect(response.headers.get('content-type')).toContain('text/plain');
      return response.text();
    };
    return { ...rig, feed, scrape };
  }

  test('times requests by route template, never by URL, and leaves streams out', async () => {
    const { url, feed, scrape } = await startMetrics();
    await ask(`${url}/items/private-1`);
    await ask(`${url}/items/private-2`);
    await ask(`${url}/none/private`);
    feed.end();
    await (await fetch(`${url}/stream`)).text();
    const text = await until(
      async () => {
        const scraped = await scrape();
        return scraped.includes('end="finished"') && scraped;
      },
      { message: 'the end of the stream to be counted' },
    );
    expect(text).toContain(
      'runledger_http_request_duration_seconds_count{method="GET",route="/items/:id",status="200"} 2',
    );
    expect(text).toContain(
      'runledger_http_request_duration_seconds_count{method="GET",route="unmatched",status="404"} 1',
    );
    expect(text).not.toContain('route="/stream"');
    expect(text).not.toContain('private');
    expect(text).toContain('process_cpu_seconds_total');
  });

  test('counts open streams and how they ended', async () => {
    const { url, scrape, sse } = await startMetrics();
    const streams = await Promise.all([openSse(`${url}/stream`), openSse(`${url}/stream`)]);
    expect(await scrape()).toContain('runledger_sse_streams_open 2');
    for (const stream of streams) stream.close();
    await until(() => sse.open === 0, { message: 'both to be gone' });
    const text = await scrape();
    expect(text).toContain('runledger_sse_streams_open 0');
    expect(text).toContain('runledger_sse_streams_ended_total{end="client_left"} 2');
  });

  test('asks other rooms at every scrape, and keeps the last values when one cannot say', async () => {
    let running = 3;
    let broken = false;
    const { scrape } = await startMetrics([
      {
        name: 'runledger_runs',
        help: 'Runs by status.',
        kind: 'gauge',
        labels: ['status'],
        async read() {
          if (broken) throw new Error('the database is away');
          return [{ value: running, labels: { status: 'running' } }];
        },
      },
      {
        name: 'runledger_runs_ended_total',
        help: 'Runs that ended here.',
        kind: 'counter',
        read: () => [{ value: 7 }],
      },
    ]);
    expect(await scrape()).toMatch(/runledger_runs\{status="running"\} 3\n/);
    running = 4;
    expect(await scrape()).toMatch(/runledger_runs\{status="running"\} 4\n/);
    broken = true;
    const text = await scrape();
    expect(text).toMatch(/runledger_runs\{status="running"\} 4\n/);
    expect(text).toMatch(/# TYPE runledger_runs_ended_total counter\nrunledger_runs_ended_total 7\n/);
    expect(await scrape()).toMatch(/runledger_metric_read_failures_total\{metric="runledger_runs"\} [12]\n/);
  });
});
