/**
 * Compiled code of the server, kept between its starts: most of the CPU of a test that kills servers is their starting.
 * Node writes it only when a process exits by itself, which servers of tests rarely do, so it is made once beforehand.
 */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';

const path = (relative: string): string => fileURLToPath(new URL(relative, import.meta.url));
const MAIN = path('../../src/main.ts');

/** For the environment of a server. */
export const COMPILE_CACHE = { NODE_COMPILE_CACHE: path('../../node_modules/.cache/runledger-compiled') };

/** Loads every module of the server, once. */
export async function fillCompileCache(): Promise<void> {
  // An unknown option is refused when all modules are loaded and before anything is started.
  const args = [MAIN, '--no-such-option'];
  const child = spawn(process.execPath, args, { env: { ...process.env, ...COMPILE_CACHE }, stdio: 'ignore' });
  await once(child, 'exit');
}
