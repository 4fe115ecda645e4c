/** Reads the schemas of a module's graphs from their static types, with the compiler of the project the module is in. */
import { createRequire } from 'node:module';
import { dirname } from 'node:path';
import type ts from 'typescript';
import type { GraphSchemas } from './graph.ts';
import { createGraphParts, type GraphParts } from './schema-parts.ts';
import { createGraphSource, type GraphSource } from './schema-source.ts';
import { createSchemaWriter } from './schema-types.ts';

/** Schemas by namespace: '' is the graph itself, the others are the graphs in it. */
export type SchemasByNamespace = { [namespace: string]: GraphSchemas };

/** Graphs in graphs, at most. */
const MAX_NESTING = 8;

/** TypeScript 7 has no API in JavaScript; this name is what version 6 is installed under beside it. */
const COMPILERS = ['typescript', '@typescript/typescript6'];

/**
 * The first compiler with an API that modules at these places, paths or URLs, would find. Null when there is none, or only
 * TypeScript 7.
 */
export function findCompiler(places: string[]): typeof ts | null {
  for (const from of places) {
    const require = createRequire(from);
    for (const name of COMPILERS) {
      const found = loaded(require, name);
      if (typeof found?.createProgram === 'function') return found as typeof ts;
    }
  }
  return null;
}

function loaded(require: NodeJS.Require, name: string): Partial<typeof ts> | null {
  try {
    return require(name) as Partial<typeof ts>;
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code === 'MODULE_NOT_FOUND' || code === 'ERR_PACKAGE_PATH_NOT_EXPORTED') return null;
    throw error;
  }
}

/**
 * Null for an export that is no graph by its type. Errors of types are not looked at: what has one is `any`.
 * @param file absolute path of the module
 */
export function readSchemas(
  compiler: typeof ts,
  file: string,
  exportNames: string[],
): { [exportName: string]: SchemasByNamespace | null } {
  const program = programOf(compiler, file);
  const checker = program.getTypeChecker();
  const root = program.getSourceFile(program.getRootFileNames()[0] ?? file);
  const module = root && checker.getSymbolAtLocation(root);
  const exported = module === undefined ? [] : checker.getExportsOfModule(module);
  const parts = createGraphParts(compiler, checker, createSchemaWriter(compiler, program));
  const source = createGraphSource(compiler, checker);
  return Object.fromEntries(
    exportNames.map((name) => {
      const symbol = exported.find((candidate) => candidate.name === name);
      return [name, symbol === undefined ? null : schemasOf(symbol)];
    }),
  );

  function schemasOf(symbol: ts.Symbol): SchemasByNamespace | null {
    const schemas: SchemasByNamespace = {};
    const own = parts.schemasOf(checker.getTypeOfSymbol(symbol));
    if (own !== null) schemas[''] = own;
    addNested(schemas, { parts, source, checker }, source.nodesOfExport(symbol), []);
    return Object.keys(schemas).length === 0 ? null : schemas;
  }
}

function addNested(
  schemas: SchemasByNamespace,
  graphs: { parts: GraphParts; source: GraphSource; checker: ts.TypeChecker },
  nodes: ReturnType<GraphSource['nodesOf']>,
  path: string[],
): void {
  for (const { name, action } of nodes) {
    const type = graphs.checker.getTypeAtLocation(action);
    const found = graphs.parts.isGraph(type) ? graphs.parts.schemasOf(type) : null;
    if (found === null) continue;
    const inner = [...path, name];
    schemas[inner.join('|')] = found;
    if (inner.length < MAX_NESTING) addNested(schemas, graphs, graphs.source.nodesOf(action), inner);
  }
}

/**
 * Of packages, what was parsed stays for the next module of the project: it is nearly everything. By compiler, as one does not
 * understand what another has parsed.
 */
const parsed = new WeakMap<typeof ts, Map<string, ts.SourceFile | undefined>>();

function hostOf(compiler: typeof ts, configPath: string | undefined, options: ts.CompilerOptions): ts.CompilerHost {
  const host = compiler.createCompilerHost(options);
  const parse = host.getSourceFile;
  const files = parsed.get(compiler) ?? new Map<string, ts.SourceFile | undefined>();
  parsed.set(compiler, files);
  host.getSourceFile = (...asked) => {
    const [name, how] = asked;
    if (!name.includes('/node_modules/')) return parse(...asked);
    const key = JSON.stringify([configPath, name, how]);
    if (!files.has(key)) files.set(key, parse(...asked));
    return files.get(key);
  };
  return host;
}

/** As the project's tsconfig.json says, but for what Node decides when it runs the module: how imports are found. */
function programOf(compiler: typeof ts, file: string): ts.Program {
  const configPath = compiler.findConfigFile(dirname(file), compiler.sys.fileExists);
  const config = configPath === undefined ? {} : compiler.readConfigFile(configPath, compiler.sys.readFile).config;
  // Nothing else of the project is looked for.
  const narrowed = { ...config, files: [file], include: [] };
  const home = dirname(configPath ?? file);
  const options: ts.CompilerOptions = {
    target: compiler.ScriptTarget.ESNext,
    ...compiler.parseJsonConfigFileContent(narrowed, compiler.sys, home).options,
    module: compiler.ModuleKind.ESNext,
    moduleResolution: compiler.ModuleResolutionKind.Bundler,
    allowImportingTsExtensions: true,
    allowJs: true,
    resolveJsonModule: true,
    // Without it `null` and `undefined` are in no type, and LangGraph's types mean something else.
    strict: true,
    skipLibCheck: true,
    noEmit: true,
    incremental: false,
    composite: false,
  };
  const host = hostOf(compiler, configPath, options);
  return compiler.createProgram({ rootNames: [declarationsOf(compiler, file)], options, host });
}

/** The types of compiled JavaScript are beside it. */
function declarationsOf(compiler: typeof ts, file: string): string {
  const declarations = file.replace(/\.([cm]?)js$/, '.d.$1ts');
  return declarations !== file && compiler.sys.fileExists(declarations) ? declarations : file;
}
