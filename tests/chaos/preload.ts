/**
 * Loaded into server processes (`NODE_OPTIONS=--import`): wraps the clients of Postgres, Redis and HTTP, and acts at the
 * armed fault points. Faults come with CHAOS_FAULTS, and over a connection to the tests (CHAOS_CONTROL_PORT), one JSON line
 * each time. Its own lines go to stderr at once, because the next thing may be SIGKILL.
 */
import { writeSync } from 'node:fs';
import http from 'node:http';
import { connect } from 'node:net';
import { createInterface } from 'node:readline';
import { isMainThread } from 'node:worker_threads';
import { Redis } from 'ioredis';
import pg from 'pg';
import { armory } from './armory.ts';
import type { Fault } from './fault-points.ts';
import { wrapHttp, wrapPostgres, wrapRedis } from './wraps.ts';

if (isMainThread) {
  const say = (line: string): void => void writeSync(2, `${line}\n`);
  const armed = armory(say);
  wrapPostgres(pg.Client, armed);
  wrapRedis(Redis, armed);
  wrapHttp(http, armed);
  if (process.env.CHAOS_FAULTS !== undefined) armed.arm(JSON.parse(process.env.CHAOS_FAULTS));
  const { CHAOS_CONTROL_PORT: port } = process.env;
  if (port !== undefined) {
    const control = connect(Number(port), '127.0.0.1', () => control.write(`${process.pid}\n`));
    control.unref();
    control.on('error', (error) => say(`chaos: no control (${error.message})`));
    const lines = createInterface({ input: control });
    // It passes on the errors of its input, which are said above.
    lines.on('error', () => undefined);
    lines.on('line', (line) => {
      const { group, faults } = JSON.parse(line) as { group: string; faults: Fault[] };
      armed.arm(faults, group);
      control.write('armed\n');
    });
  }
}
