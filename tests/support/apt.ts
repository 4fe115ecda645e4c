/** Programs that the tests need and a machine may lack: on Debian, as root, they are installed. */
import { execFile } from 'node:child_process';
import { existsSync } from 'node:fs';
import { delimiter, join } from 'node:path';
import { promisify } from 'node:util';

const run = promisify(execFile);

/** The first of `names` that is a file in a folder of the PATH, or null. */
export function onPath(...names: string[]): string | null {
  const folders = (process.env.PATH ?? '').split(delimiter).filter((folder) => folder !== '');
  const files = names.flatMap((name) => folders.map((folder) => join(folder, name)));
  return files.find((file) => existsSync(file)) ?? null;
}

/**
 * Installs a Debian package without what it only recommends.
 * @param sentence what is missing, and what a person can do about it
 * @throws Error with that sentence where there is no apt, no root, or apt fails
 */
export async function installPackage(name: string, sentence: string): Promise<void> {
  if (process.getuid?.() !== 0 || !existsSync('/usr/bin/apt-get')) throw new Error(sentence);
  process.stderr.write(`tests: installing ${name} with apt\n`);
  const options = { env: { ...process.env, DEBIAN_FRONTEND: 'noninteractive' }, timeout: 240_000 };
  const wait = ['-o', 'DPkg::Lock::Timeout=120'];
  try {
    await run('apt-get', [...wait, 'update'], options);
    await run('apt-get', [...wait, 'install', '-y', '--no-install-recommends', name], options);
  } catch (cause) {
    throw new Error(sentence, { cause });
  }
}
