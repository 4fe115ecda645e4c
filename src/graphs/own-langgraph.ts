/** LangGraph as a project imports it: its own copy, where it has one. Marks on Zod schemas are kept in the copy that made them. */
import { readFile } from 'node:fs/promises';
import { findPackageJSON } from 'node:module';
import { dirname, join } from 'node:path';
import { pathToFileURL } from 'node:url';
import * as ours from '@langchain/langgraph/zod/schema';

export type SchemaTools = Pick<
  typeof ours,
  'getUpdateTypeSchema' | 'getInputTypeSchema' | 'getOutputTypeSchema' | 'getConfigTypeSchema'
>;

interface Manifest {
  exports?: { [path: string]: { import?: string | { default?: string } } };
}

/**
 * What reads the schemas of the graphs of a module.
 * @param file absolute path of the module; undefined for none
 */
export async function schemaToolsFor(file: string | undefined): Promise<SchemaTools> {
  if (file === undefined) return ours;
  const manifest = manifestFor(file);
  if (manifest === undefined) return ours;
  const { exports } = JSON.parse(await readFile(manifest, 'utf8')) as Manifest;
  const target = exports?.['./zod/schema']?.import;
  const path = typeof target === 'string' ? target : target?.default;
  // An older LangGraph, which has no such marks.
  if (path === undefined) return ours;
  return (await import(pathToFileURL(join(dirname(manifest), path)).href)) as SchemaTools;
}

function manifestFor(file: string): string | undefined {
  try {
    return findPackageJSON('@langchain/langgraph', pathToFileURL(file));
  } catch (error) {
    // A module that imports no LangGraph of its own.
    if ((error as NodeJS.ErrnoException).code === 'ERR_MODULE_NOT_FOUND') return undefined;
    throw error;
  }
}
