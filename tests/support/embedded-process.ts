/** A process for tests/integration/embedded-*.test.ts: uses an embedded Postgres until SIGTERM, or until it is killed. */
import { pino } from 'pino';
import { startEmbeddedPostgres } from '#src/postgres/embedded.ts';

const dataDir = process.argv[2];
if (dataDir === undefined) throw new Error('usage: embedded-process.ts <data dir>');

const postgres = await startEmbeddedPostgres({ dataDir, logger: pino({ level: 'warn' }, pino.destination(2)) });
// Before it says that it is ready: a signal that came in between would end it.
for (const signal of ['SIGTERM', 'SIGINT']) process.on(signal, () => void end(signal));
process.stdout.write(`ready ${JSON.stringify({ url: postgres.url, reused: postgres.reused })}\n`);

let asked = 0;
async function end(signal: string): Promise<void> {
  asked += 1;
  process.stdout.write(`${signal} ${asked}\n`);
  if (asked > 1) return;
  // Long enough to see that nobody else ends this process or the cluster in between.
  await new Promise((resolve) => setTimeout(resolve, 300));
  await postgres.stop();
  process.stdout.write('stopped\n');
  process.exit(7);
}
setInterval(() => undefined, 1000);
