/**
 * The model of the bench, as a process: `fake-<tokens>-<delayMs>` as in the tests, and `stamp-<tokens>-<delayMs>`, whose
 * tokens say when they were sent (`t<monotonic µs> `, comparable between processes of one machine).
 */
import { once } from 'node:events';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { text } from 'node:stream/consumers';
import { benchmarkShape, sendBenchmark } from '#tests/support/fake-model-benchmark.ts';
import { chunkFrame } from '#tests/support/fake-model-render.ts';
import type { ChatRequest } from '#tests/support/fake-model-script.ts';
import { answerParent } from './ipc.ts';

const envelope = { id: 'chatcmpl-stamped', model: 'stamped', created: 0 };

async function serve(request: IncomingMessage, response: ServerResponse): Promise<void> {
  const body = JSON.parse(await text(request)) as ChatRequest;
  const left = new AbortController();
  response.on('close', () => left.abort());
  const stamped = /^stamp-(\d+)-(\d+)$/.exec(body.model);
  if (stamped !== null) return sendStamped(response, Number(stamped[1]), Number(stamped[2]), left.signal);
  const shape = benchmarkShape(body.model);
  if (shape === null) throw new Error(`no such model: ${body.model}`);
  return sendBenchmark(response, body, shape, left.signal);
}

async function sendStamped(response: ServerResponse, tokens: number, delayMs: number, left: AbortSignal) {
  response.writeHead(200, { 'content-type': 'text/event-stream', 'cache-control': 'no-cache' });
  response.write(chunkFrame(envelope, { delta: { role: 'assistant', content: '' } }));
  const start = performance.now();
  for (let sent = 0; sent < tokens && !left.aborted; sent += 1) {
    // Each token is due at its own time from the start, so the pace does not drift with the timers.
    const waitMs = start + (sent + 1) * delayMs - performance.now();
    if (waitMs > 0) await new Promise((resolve) => setTimeout(resolve, waitMs));
    const content = `t${process.hrtime.bigint() / 1000n} `;
    response.write(chunkFrame(envelope, { delta: { content } }));
  }
  response.end(`${chunkFrame(envelope, { delta: {}, finish_reason: 'stop' })}data: [DONE]\n\n`);
}

const server = createServer((request, response) => {
  serve(request, response).catch((error: unknown) => {
    console.error(error);
    response.destroy();
  });
});
server.keepAliveTimeout = 600_000;
const listening = once(server.listen(0, '127.0.0.1'), 'listening');
answerParent({
  async url() {
    await listening;
    return `http://127.0.0.1:${(server.address() as AddressInfo).port}/v1`;
  },
});
