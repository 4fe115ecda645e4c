/**
 * A model for tests: a real HTTP server that speaks the OpenAI chat completions API (streaming and not) on a random
 * loopback port and says what a script tells it. It records every call: the request, when it began, when each chunk was
 * sent, and whether the client went away before the end.
 */
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { benchmarkShape, sendBenchmark } from './fake-model-benchmark.ts';
import { chunkFrame, completion, cumulativeUsage, deltaOf, type Envelope } from './fake-model-render.ts';
import type { ChatRequest, Reply, Script, Step } from './fake-model-script.ts';
import { DEFAULT_USAGE, say, unpairedToolCalls } from './fake-model-script.ts';

/** Times are milliseconds since the Unix epoch, with fractions, comparable between processes of one machine. */
export interface ModelCall {
  index: number;
  body: ChatRequest;
  headers: IncomingMessage['headers'];
  startedAt: number;
  /** When each chunk was handed to the socket. */
  chunksAt: number[];
  /** True once the client closed the connection before the answer was complete. */
  aborted: boolean;
  abortedAt: number | null;
  /** When the answer was complete; null before, and for ever when it was not completed. */
  finishedAt: number | null;
}

export interface FakeModel {
  /** Base URL for an OpenAI client; ends in /v1. */
  url: string;
  port: number;
  calls: ModelCall[];
  setScript(script: Script | Reply): void;
  /** Opens a gate, for a step that waits at it now or later. */
  release(gate: string): void;
  /** Resolves when a reply has arrived at the gate. */
  reached(gate: string): Promise<void>;
  /** Resolves with the `count`-th call (from 1) once it has begun. */
  waitForCall(count: number): Promise<ModelCall>;
  /** Resolves once the call is over: answered, or left by the client. */
  waitForEnd(call: ModelCall): Promise<ModelCall>;
  close(): Promise<void>;
}

export interface FakeModelOptions {
  script?: Script | Reply;
  /** Refuse, as OpenAI does, requests whose tool calls and tool messages do not pair. */
  strict?: boolean;
  port?: number;
}

const now = () => performance.timeOrigin + performance.now();

/** Starts the server; resolves when it listens. */
export async function startFakeModel(options: FakeModelOptions = {}): Promise<FakeModel> {
  let script = toScript(options.script ?? say('Hello from the fake model.'));
  const calls: ModelCall[] = [];
  const gates = createGates();
  const changes = createSignal();

  const server = createServer((request, response) => {
    serve(request, response).catch((error: unknown) => {
      // A script that throws is a broken test; make it visible in the answer instead of hanging the client.
      if (!response.headersSent) sendJson(response, 500, { error: { message: `fake model: ${String(error)}` } });
      else response.destroy();
    });
  });

  async function serve(request: IncomingMessage, response: ServerResponse): Promise<void> {
    if (request.url === '/v1/models')
      return sendJson(response, 200, { object: 'list', data: [{ id: 'fake', object: 'model' }] });
    if (request.method !== 'POST' || request.url !== '/v1/chat/completions') {
      return sendJson(response, 404, { error: { message: `no such route: ${request.method} ${request.url}` } });
    }
    const body = JSON.parse(await readBody(request)) as ChatRequest;
    const call: ModelCall = {
      index: calls.length,
      body,
      headers: request.headers,
      startedAt: now(),
      chunksAt: [],
      aborted: false,
      abortedAt: null,
      finishedAt: null,
    };
    calls.push(call);
    const left = new AbortController();
    response.on('close', () => {
      if (call.finishedAt === null) Object.assign(call, { aborted: true, abortedAt: now() });
      left.abort();
      changes.notify();
    });
    changes.notify();

    const problem = options.strict === true ? unpairedToolCalls(body.messages) : null;
    if (problem !== null) {
      call.finishedAt = now();
      return sendJson(response, 400, { error: { message: problem, type: 'invalid_request_error', code: null } });
    }
    const shape = benchmarkShape(body.model);
    if (shape !== null) await sendBenchmark(response, body, shape, left.signal);
    else await answer(call, response, script(body, call.index), left.signal);
    if (!left.signal.aborted && response.writableEnded) call.finishedAt ??= now();
    changes.notify();
  }

  async function answer(call: ModelCall, response: ServerResponse, reply: Reply, left: AbortSignal): Promise<void> {
    if (reply.firstByteDelayMs !== undefined) await sleep(reply.firstByteDelayMs, left);
    if (left.aborted) return;
    if (reply.status !== undefined) {
      call.finishedAt = now();
      return sendJson(response, reply.status, reply.body, reply.headers);
    }
    const envelope: Envelope = {
      id: reply.id ?? `chatcmpl-fake-${call.index}`,
      model: call.body.model,
      created: Math.floor(call.startedAt / 1000),
    };
    if (call.body.stream !== true) {
      for (const step of reply.steps) await pause(step, left);
      if (left.aborted) return;
      call.finishedAt = now();
      response.writeHead(200, { 'content-type': 'application/json', ...reply.headers });
      response.end(completion(envelope, call.body, reply));
      return;
    }
    await stream(call, response, reply, envelope, left);
  }

  async function stream(
    call: ModelCall,
    response: ServerResponse,
    reply: Reply,
    envelope: Envelope,
    left: AbortSignal,
  ): Promise<void> {
    response.writeHead(200, { 'content-type': 'text/event-stream', 'cache-control': 'no-cache', ...reply.headers });
    response.flushHeaders();
    const send = (frame: string) => {
      call.chunksAt.push(now());
      response.write(frame);
    };
    const total = reply.steps.filter((step) => deltaOf(step) !== null).length;
    let done = 0;
    send(chunkFrame(envelope, { delta: { role: 'assistant', content: '' } }));
    for (const step of reply.steps) {
      await pause(step, left);
      if (left.aborted) return;
      if (step.do === 'reset') return void response.destroy();
      if (step.do === 'hang') return;
      if (step.do === 'cut') {
        call.finishedAt = now();
        return void response.end();
      }
      const delta = deltaOf(step);
      if (delta !== null) {
        done += 1;
        send(
          chunkFrame(
            envelope,
            { delta },
            reply.reportUsage === 'cumulative' ? cumulativeUsage(reply, done, total) : undefined,
          ),
        );
      }
      if (step.do === 'finish') send(chunkFrame(envelope, { delta: {}, finish_reason: step.reason }));
      if (step.do === 'raw') send(step.bytes);
      if (step.do === 'stream_error') send(`data: ${JSON.stringify({ error: step.error })}\n\n`);
    }
    const reports = reply.reportUsage ?? 'last';
    if (reports !== 'none' && call.body.stream_options?.include_usage === true) {
      send(chunkFrame(envelope, null, reply.usage ?? DEFAULT_USAGE));
    }
    call.finishedAt = now();
    response.end('data: [DONE]\n\n');
  }

  async function pause(step: Step, left: AbortSignal): Promise<void> {
    if (step.do === 'delay') await sleep(step.ms, left);
    if (step.do === 'gate') await gates.pass(step.gate, left);
  }

  // Longer than any test: a client whose event loop was busy must not meet a connection that was just closed for idleness.
  server.keepAliveTimeout = 600_000;
  await new Promise<void>((resolve) => server.listen(options.port ?? 0, '127.0.0.1', resolve));
  const { port } = server.address() as AddressInfo;
  return {
    url: `http://127.0.0.1:${port}/v1`,
    port,
    calls,
    setScript: (next) => {
      script = toScript(next);
    },
    release: gates.release,
    reached: gates.reached,
    waitForCall: async (count) => {
      await changes.until(() => calls.length >= count);
      return calls[count - 1] as ModelCall;
    },
    waitForEnd: async (call) => {
      await changes.until(() => call.finishedAt !== null || call.aborted);
      return call;
    },
    close: () =>
      new Promise((resolve, reject) => {
        server.close((error) => (error === undefined ? resolve() : reject(error)));
        server.closeAllConnections();
      }),
  };
}

function toScript(script: Script | Reply): Script {
  return typeof script === 'function' ? script : () => script;
}

function sendJson(response: ServerResponse, status: number, body: unknown, headers: Record<string, string> = {}): void {
  response.writeHead(status, { 'content-type': 'application/json', ...headers });
  response.end(typeof body === 'string' ? body : JSON.stringify(body));
}

async function readBody(request: IncomingMessage): Promise<string> {
  const chunks: Buffer[] = [];
  for await (const chunk of request) chunks.push(chunk as Buffer);
  return Buffer.concat(chunks).toString('utf8');
}

/** Resolves after `ms`, or at once when the client leaves. */
function sleep(ms: number, left: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (left.aborted) return resolve();
    const done = () => {
      clearTimeout(timer);
      left.removeEventListener('abort', done);
      resolve();
    };
    const timer = setTimeout(done, ms);
    left.addEventListener('abort', done, { once: true });
  });
}

/** Something changed: whoever waits for a condition looks again. */
function createSignal() {
  const waiting = new Set<() => void>();
  return {
    notify() {
      for (const look of [...waiting]) look();
    },
    until(condition: () => boolean): Promise<void> {
      return new Promise((resolve) => {
        const look = () => {
          if (!condition()) return;
          waiting.delete(look);
          resolve();
        };
        waiting.add(look);
        look();
      });
    },
  };
}

function createGates() {
  const open = new Set<string>();
  const arrived = new Set<string>();
  const changes = createSignal();
  return {
    release(gate: string) {
      open.add(gate);
      changes.notify();
    },
    reached: (gate: string) => changes.until(() => arrived.has(gate)),
    async pass(gate: string, left: AbortSignal): Promise<void> {
      arrived.add(gate);
      left.addEventListener('abort', changes.notify, { once: true });
      changes.notify();
      await changes.until(() => open.has(gate) || left.aborted);
    },
  };
}
