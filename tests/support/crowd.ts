/**
 * Many readers of event streams on a thread of their own, so that their work does not show in what a test measures beside
 * them. `readAll` is the test's side; the rest runs in the worker.
 */
import { request } from 'node:http';
import { isMainThread, parentPort, Worker, workerData } from 'node:worker_threads';

/** What one reader saw of its stream. */
export interface Reading {
  status: number;
  /** The body as it came, to its end or to where the connection broke. */
  raw: string;
  complete: boolean;
}

/** Reads every URL to its end. Resolves with the readings in the order of the URLs. */
export async function readAll(urls: string[]): Promise<Reading[]> {
  const worker = new Worker(new URL(import.meta.url), { workerData: { urls } });
  try {
    return await new Promise<Reading[]>((resolve, reject) => {
      worker.once('message', resolve);
      worker.once('error', reject);
    });
  } finally {
    await worker.terminate();
  }
}

function read(url: string): Promise<Reading> {
  return new Promise((resolve) => {
    const reading: Reading = { status: 0, raw: '', complete: false };
    const asked = request(url, { headers: { accept: 'text/event-stream' }, agent: false }, (response) => {
      reading.status = response.statusCode ?? 0;
      response.setEncoding('utf8').on('data', (text: string) => {
        reading.raw += text;
      });
      response.on('end', () => {
        reading.complete = true;
      });
      response.on('close', () => resolve(reading));
    });
    asked.on('error', () => resolve(reading));
    asked.end();
  });
}

if (!isMainThread && typeof workerData === 'object' && workerData !== null && 'urls' in workerData) {
  const { urls } = workerData as { urls: string[] };
  parentPort?.postMessage(await Promise.all(urls.map(read)));
}
