/** The watchdog's own thread; @see watchdog.ts. Writes to stderr itself, because the main thread cannot. */
import { writeSync } from 'node:fs';
import { workerData } from 'node:worker_threads';

const { shared, warnAfterMs } = workerData as { shared: SharedArrayBuffer; warnAfterMs: number };
const cells = new Float64Array(shared);
const STDERR = 2;
let reported = false;

setInterval(() => {
  const now = performance.timeOrigin + performance.now();
  const stallMs = now - (cells[0] ?? now);
  if (stallMs > (cells[1] ?? 0)) cells[1] = stallMs;
  if (stallMs < warnAfterMs) {
    reported = false;
  } else if (!reported) {
    reported = true;
    const line = { level: 50, time: Math.round(now), msg: 'event loop blocked', stallMs: Math.round(stallMs) };
    writeSync(STDERR, `${JSON.stringify(line)}\n`);
  }
}, 100);
