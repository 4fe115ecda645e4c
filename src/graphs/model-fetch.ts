/** fetch for model calls: notices a model that has gone silent and a stream that was cut, down at the socket. */

/** The model sent nothing for too long, or the call took too long. The request was aborted. */
export class ModelStalledError extends Error {
  // Not called a "timeout": the OpenAI client replaces errors whose text says so by one without a cause.
  override readonly name = 'ModelStalledError';
}

/** The stream ended without a finish reason and without [DONE]: what arrived is not the whole answer. */
export class ModelStreamCutError extends Error {
  override readonly name = 'ModelStreamCutError';
}

export interface ModelLimits {
  /** Longest wait for the next chunk, the first one included. */
  chunkTimeoutMs: number;
  /** Longest duration of a whole call. */
  callTimeoutMs: number;
}

/** Enough for the last frames of a stream: finish reason, usage, [DONE]. */
const TAIL_BYTES = 8192;
const COLON = 0x3a;
const NEWLINE = 0x0a;

/**
 * A fetch that aborts the request with ModelStalledError when a limit is passed. Only waiting counts: a reader
 * that does not ask for the next chunk is not the model's fault. Keep-alive comments of a provider are no chunks.
 */
export function createModelFetch(limits: ModelLimits, fetchImpl: typeof fetch = fetch): typeof fetch {
  return async (input, init) => {
    const watch = createWatch(limits);
    try {
      watch.waiting();
      const signal = init?.signal ? AbortSignal.any([init.signal, watch.signal]) : watch.signal;
      const response = await fetchImpl(input, { ...init, signal });
      watch.arrived();
      if (response.body === null) {
        watch.stop();
        return response;
      }
      const isStream = response.headers.get('content-type')?.includes('text/event-stream') === true;
      const body = watchedBody(response.body.getReader(), watch, response.ok && isStream);
      const { status, statusText, headers } = response;
      return new Response(body, { status, statusText, headers });
    } catch (error) {
      watch.stop();
      throw watch.signal.aborted ? watch.signal.reason : error;
    }
  };
}

type Watch = ReturnType<typeof createWatch>;

function createWatch({ chunkTimeoutMs, callTimeoutMs }: ModelLimits) {
  const controller = new AbortController();
  let isWaiting = false;
  const idle = setTimeout(() => {
    if (isWaiting) controller.abort(new ModelStalledError(`no chunk from the model for ${chunkTimeoutMs} ms`));
  }, chunkTimeoutMs);
  const whole = setTimeout(() => {
    controller.abort(new ModelStalledError(`the model call was not over after ${callTimeoutMs} ms`));
  }, callTimeoutMs);
  return {
    signal: controller.signal,
    /** The next chunk is asked for. */
    waiting(): void {
      isWaiting = true;
      idle.refresh();
    },
    arrived(): void {
      isWaiting = false;
    },
    stop(): void {
      clearTimeout(idle);
      clearTimeout(whole);
    },
  };
}

function watchedBody(
  reader: ReadableStreamDefaultReader<Uint8Array>,
  watch: Watch,
  mustFinish: boolean,
): ReadableStream<Uint8Array> {
  const tail = createTail();
  return new ReadableStream<Uint8Array>(
    {
      async pull(controller) {
        try {
          watch.waiting();
          let read = await reader.read();
          while (!read.done && isComment(read.value)) read = await reader.read();
          watch.arrived();
          if (!read.done) {
            tail.push(read.value);
            return controller.enqueue(read.value);
          }
          watch.stop();
          if (mustFinish && !tail.isFinished()) throw new ModelStreamCutError('the model stream ended in the middle');
          controller.close();
        } catch (error) {
          watch.stop();
          controller.error(watch.signal.aborted ? watch.signal.reason : error);
        }
      },
      async cancel(reason) {
        watch.stop();
        await reader.cancel(reason);
      },
    },
    { highWaterMark: 0 },
  );
}

/** True when the bytes are nothing but SSE comment lines (": ...") and blank lines. */
function isComment(bytes: Uint8Array): boolean {
  if (bytes[0] !== COLON || bytes.at(-1) !== NEWLINE) return false;
  return Buffer.from(bytes)
    .toString('latin1')
    .split(/\r?\n/)
    .every((line) => line === '' || line.startsWith(':'));
}

/** Remembers the end of the stream, to tell a whole answer from one that was cut. */
function createTail() {
  let chunks: Uint8Array[] = [];
  let bytes = 0;
  return {
    push(chunk: Uint8Array): void {
      chunks.push(chunk);
      bytes += chunk.length;
      if (bytes < 2 * TAIL_BYTES) return;
      chunks = [Buffer.concat(chunks).subarray(-TAIL_BYTES)];
      bytes = TAIL_BYTES;
    },
    isFinished: () => /\[DONE\]|"finish_reason"\s*:\s*"/.test(Buffer.concat(chunks).toString('latin1')),
  };
}
