/** Prometheus metrics of this process. Other rooms say what they count by a callback that is read at scrape time. */
import type { FastifyBaseLogger, FastifyInstance } from 'fastify';
import { Counter, collectDefaultMetrics, Gauge, Histogram, Registry } from 'prom-client';
import type { StreamEnd } from './sse.ts';

export interface Sample {
  value: number;
  labels?: { [name: string]: string };
}

export interface Reading {
  /** Full name, `runledger_...`; a counter's ends in `_total`. */
  name: string;
  help: string;
  /** counter: `read` gives the total since the process began; it must never fall. */
  kind: 'gauge' | 'counter';
  labels?: string[];
  /** Called at every scrape. When it throws, the last values stay and runledger_metric_read_failures_total counts it. */
  read(): Sample[] | Promise<Sample[]>;
}

export interface Metrics {
  observe(reading: Reading): void;
  /** One finished request. Streams are left out: their duration says nothing about the server. */
  request(facts: { method: string; route: string; status: number; seconds: number }): void;
  streamEnded(end: StreamEnd): void;
  /** The text format. */
  text(): Promise<string>;
  readonly contentType: string;
}

export function createMetrics(deps: { logger: FastifyBaseLogger }): Metrics {
  const registry = new Registry();
  collectDefaultMetrics({ register: registry });
  const requests = new Histogram({
    name: 'runledger_http_request_duration_seconds',
    help: 'Time from request to response by route template, streams left out.',
    labelNames: ['method', 'route', 'status'],
    buckets: [0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10],
    registers: [registry],
  });
  const streams = new Counter({
    name: 'runledger_sse_streams_ended_total',
    help: 'Event streams that ended, by how.',
    labelNames: ['end'],
    registers: [registry],
  });
  const failures = new Counter({
    name: 'runledger_metric_read_failures_total',
    help: 'Scrapes in which a metric could not be read and its last value was given.',
    labelNames: ['metric'],
    registers: [registry],
  });

  return {
    observe(reading) {
      const Metric = reading.kind === 'gauge' ? Gauge : Counter;
      const metric: Gauge | Counter = new Metric({
        name: reading.name,
        help: reading.help,
        labelNames: reading.labels ?? [],
        registers: [registry],
        async collect() {
          try {
            const samples = await reading.read();
            metric.reset();
            for (const { value, labels } of samples) metric.inc(labels ?? {}, value);
          } catch (error) {
            failures.inc({ metric: reading.name });
            deps.logger.warn({ err: error, metric: reading.name }, 'metric could not be read');
          }
        },
      });
    },
    request({ method, route, status, seconds }) {
      requests.observe({ method, route, status: String(status) }, seconds);
    },
    streamEnded(end) {
      streams.inc({ end });
    },
    text: () => registry.metrics(),
    contentType: registry.contentType,
  };
}

/** Adds GET /metrics, without authentication: whoever can reach the port may see counts, never contents. */
export function registerMetrics(app: FastifyInstance, metrics: Metrics): void {
  app.get('/metrics', async (_request, reply) => reply.type(metrics.contentType).send(await metrics.text()));
}
