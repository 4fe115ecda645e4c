/**
 * Components that a project's graphs show in a chat page (`ui` of langgraph.json): bundled once, at the start, by the bundler that
 * the project itself has installed, which decides what such a bundle looks like. We keep and serve what it made.
 */
import { mkdtemp, readdir, readFile, rm } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { UserAppError } from './user-app.ts';

export interface ComponentPaths {
  /** The langgraph.json; paths are relative to it, and the bundler is looked for from it. */
  source: string;
  /** Module of components, by the name they are asked for. */
  modules: { [name: string]: string };
  /** Packages that the page provides, and the bundle leaves out. */
  shared: string[];
}

/** Files of each name's bundle, by their own names. */
export type Components = ReadonlyMap<string, ReadonlyMap<string, Uint8Array>>;

const BUNDLER = '@langchain/langgraph-ui';

interface Bundler {
  build(options: {
    cwd: string;
    defs: { [name: string]: string };
    config: { shared: string[] };
    output: string;
  }): Promise<void>;
}

/** @throws UserAppError when the project has no bundler, or its components cannot be bundled */
export async function bundleComponents({ source, modules, shared }: ComponentPaths): Promise<Components> {
  const bundler = await loadBundler(source);
  const output = await mkdtemp(join(tmpdir(), 'runledger-ui-'));
  try {
    await bundler.build({ cwd: dirname(source), defs: modules, config: { shared }, output }).catch((cause: unknown) => {
      throw new UserAppError(`${source}: ui: the components could not be bundled`, { cause });
    });
    const found = Object.keys(modules).map(
      async (name) => [name, await filesIn(join(output, 'public', name))] as const,
    );
    return new Map(await Promise.all(found));
  } finally {
    await rm(output, { recursive: true, force: true });
  }
}

async function loadBundler(source: string): Promise<Bundler> {
  try {
    return (await import(pathToFileURL(createRequire(source).resolve(BUNDLER)).href)) as Bundler;
  } catch (cause) {
    throw new UserAppError(`${source}: ui: needs the package ${BUNDLER}, installed where the file is`, { cause });
  }
}

async function filesIn(folder: string): Promise<Map<string, Uint8Array>> {
  const files = (await readdir(folder)).sort().map(async (name) => [name, await readFile(join(folder, name))] as const);
  return new Map(await Promise.all(files));
}
