/**
 * The cheap path of the fake model, for measurements: the model name `fake-<tokens>-<delayMs>` streams that many
 * one-token chunks from bytes rendered once, with `delayMs` between them (0 = as fast as the socket takes them).
 */
import { once } from 'node:events';
import type { ServerResponse } from 'node:http';
import { chunkFrame } from './fake-model-render.ts';
import type { ChatRequest } from './fake-model-script.ts';

export interface BenchmarkShape {
  tokens: number;
  delayMs: number;
}

const TOKEN = 'token ';
const FRAMES_PER_WRITE = 64;
const envelope = { id: 'chatcmpl-fake', model: 'fake', created: 0 };
const head = chunkFrame(envelope, { delta: { role: 'assistant', content: '' } });
const token = Buffer.from(chunkFrame(envelope, { delta: { content: TOKEN } }));
const slab = Buffer.concat(Array.from({ length: FRAMES_PER_WRITE }, () => token));

/** The shape a model name asks for, or null when it is no such name. */
export function benchmarkShape(model: string): BenchmarkShape | null {
  const match = /^fake-(\d{1,7})-(\d{1,5})$/.exec(model);
  return match === null ? null : { tokens: Number(match[1]), delayMs: Number(match[2]) };
}

/** Streams the answer (the only form this path has) and ends the response, or stops when `left` aborts. */
export async function sendBenchmark(
  response: ServerResponse,
  request: ChatRequest,
  shape: BenchmarkShape,
  left: AbortSignal,
): Promise<void> {
  response.writeHead(200, { 'content-type': 'text/event-stream', 'cache-control': 'no-cache' });
  response.write(head);
  if (shape.delayMs === 0) await flatOut(response, shape.tokens, left);
  else await paced(response, shape, left);
  if (left.aborted) return;
  const usage = {
    prompt_tokens: request.messages.length,
    completion_tokens: shape.tokens,
    total_tokens: request.messages.length + shape.tokens,
  };
  const last = chunkFrame(envelope, { delta: {}, finish_reason: 'stop' });
  const report = request.stream_options?.include_usage === true ? chunkFrame(envelope, null, usage) : '';
  response.end(`${last}${report}data: [DONE]\n\n`);
}

async function flatOut(response: ServerResponse, tokens: number, left: AbortSignal): Promise<void> {
  for (let sent = 0; sent < tokens && !left.aborted; sent += FRAMES_PER_WRITE) {
    const count = Math.min(FRAMES_PER_WRITE, tokens - sent);
    const flowing = response.write(count === FRAMES_PER_WRITE ? slab : slab.subarray(0, token.length * count));
    if (!flowing) await once(response, 'drain', { signal: left }).catch(() => undefined); // aborted: the loop ends
  }
}

/** Each token is due at its own time from the start, so the pace does not drift with the timers. */
async function paced(response: ServerResponse, shape: BenchmarkShape, left: AbortSignal): Promise<void> {
  const start = performance.now();
  for (let sent = 0; sent < shape.tokens && !left.aborted; sent += 1) {
    const waitMs = start + (sent + 1) * shape.delayMs - performance.now();
    if (waitMs > 0) await new Promise((resolve) => setTimeout(resolve, waitMs));
    response.write(token);
  }
}
