/** Schemas from static types: what they say, and that reading them harms nobody. */
import { fork } from 'node:child_process';
import { once } from 'node:events';
import { existsSync } from 'node:fs';
import { mkdir, mkdtemp, readFile, rm, utimes, writeFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { pino } from 'pino';
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from 'vitest';
import { createGraphDescriber } from '#src/graphs/describe.ts';
import type { GraphSchemas } from '#src/graphs/graph.ts';
import { createGraphRegistry } from '#src/graphs/registry.ts';
import { findCompiler, type SchemasByNamespace } from '#src/graphs/schema-program.ts';
import { createStaticSchemas, type StaticSchemas } from '#src/graphs/static-schemas.ts';
import { modelConfig } from '#tests/support/graphs/drive.ts';
import { testPool } from '#tests/support/pools.ts';
import { until } from '#tests/support/until.ts';

const fixture = (name: string) => fileURLToPath(new URL(`../support/graphs/${name}`, import.meta.url));
const DRAFT = 'http://json-schema.org/draft-07/schema#';
const MESSAGE = 'BaseMessage<MessageStructure<MessageToolSet>,MessageType>';

let folder: string;
const opened: StaticSchemas[] = [];
const warnings: { msg: string; err?: { message: string } }[] = [];

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'runledger-schemas-'));
});
afterAll(async () => {
  await Promise.all(opened.map((schemas) => schemas.close()));
  await rm(folder, { recursive: true, force: true });
});

const logger = pino({ level: 'warn' }, { write: (line: string) => warnings.push(JSON.parse(line)) });

/** More than a busy machine needs for LangGraph's types. */
const PATIENCE_MS = 100_000;

/** Of graphs by their exports, each in a file. */
function schemasOf(
  graphs: { [exportName: string]: string },
  limits: { timeoutMs?: number; idleMs?: number; retryAfterMs?: number } = {},
): StaticSchemas {
  const entries = Object.entries(graphs).map(([exportName, file]) => [exportName, { exportName, file }]);
  const schemas = createStaticSchemas({
    graphs: Object.fromEntries(entries),
    logger,
    timeoutMs: PATIENCE_MS,
    ...limits,
  });
  opened.push(schemas);
  return schemas;
}

function isGone(pid: number): boolean {
  try {
    return !process.kill(pid, 0);
  } catch {
    return true;
  }
}

/** A project that is read in no time: it has no library, not even that of the language. */
async function project(name: string, files: { [path: string]: string }): Promise<string> {
  const home = join(folder, name);
  const all = { 'tsconfig.json': '{"compilerOptions":{"noLib":true}}', 'package.json': '{}', ...files };
  for (const [path, text] of Object.entries(all)) {
    const file = join(home, path);
    await mkdir(join(file, '..'), { recursive: true });
    await writeFile(file, text);
  }
  return home;
}
const graphWith = (state: string) => `{ lg_is_pregel: boolean; '~RunOutput': ${state}; '~OutputType': { out: 1 } }`;

const forms = ['uncompiled', 'compiled', 'promised', 'agent', 'factory', 'asyncFactory', 'renamed'];
const others = ['channels', 'parent', 'parentFactory', 'functional', 'untyped', 'notAGraph', 'wrong', 'notThere'];
const parts = ['inner', 'outer', 'zod', 'mixed'];
/** By one process: LangGraph's own types are most of the work. */
const typed = schemasOf({
  ...Object.fromEntries([...forms, ...others].map((name) => [name, fixture('typed.ts')])),
  ...Object.fromEntries(parts.map((name) => [name, fixture('typed-parts.ts')])),
});

describe('what types say', () => {
  let read: { [exportName: string]: SchemasByNamespace | null };
  let graph: GraphSchemas;

  beforeAll(async () => {
    const names = [...forms, ...others];
    read = Object.fromEntries(await Promise.all(names.map(async (name) => [name, await typed.of(name)])));
    const own = read.compiled?.[''];
    if (own === undefined) throw new Error(`the compiled graph has no schemas: ${JSON.stringify(warnings)}`);
    graph = own;
  });

  test('of a state', () => {
    expect(graph.state).toMatchObject({ type: 'object', $schema: DRAFT });
    const { properties, definitions } = graph.state as { properties: object; definitions: { [name: string]: object } };
    expect(properties).toEqual({
      messages: { type: 'array', items: { $ref: `#/definitions/${MESSAGE}` } },
      city: { type: 'string', description: 'Where one is.' },
      mood: { type: ['null', 'string'], enum: ['glad', 'sad', null] },
      done: { type: 'boolean' },
      count: { type: ['number', 'string'] },
      place: { $ref: '#/definitions/Place' },
      places: { type: 'object' },
      scores: { type: 'object', additionalProperties: { type: 'number' } },
      tags: { type: 'array', items: { type: 'string' } },
      tree: { $ref: '#/definitions/Tree' },
      json: { $ref: '#/definitions/Json' },
      endless: { $ref: '#/definitions/Endless<string>' },
      shape: { $ref: '#/definitions/Shape' },
      either: {
        anyOf: [
          {
            type: 'object',
            properties: { kind: { type: 'string', const: 'a' }, a: { type: 'number' } },
            required: ['a', 'kind'],
          },
          { type: 'object', properties: { kind: { type: 'string', const: 'b' } }, required: ['kind'] },
          { type: 'string', const: 'none' },
        ],
      },
      link: { type: 'string', format: 'uri' },
      branded: { type: 'string' },
      missing: {},
      anything: {},
    });
    expect(definitions).toMatchObject({
      Place: {
        type: 'object',
        properties: {
          name: { type: 'string', description: 'As people call it.' },
          opened: { type: 'string', format: 'date-time' },
          position: {
            type: 'array',
            items: [{ type: 'number' }, { type: 'number' }],
            minItems: 2,
            additionalItems: false,
          },
          inside: { type: 'object', required: ['owner', 'rooms'] },
        },
        required: ['inside', 'name', 'opened'],
      },
      Tree: { properties: { children: { type: 'array', items: { $ref: '#/definitions/Tree' } } } },
      Json: { anyOf: expect.arrayContaining([{ type: 'array', items: { $ref: '#/definitions/Json' } }]) },
      Shape: { oneOf: [{ $ref: '#/definitions/Circle' }, { $ref: '#/definitions/Square' }] },
    });
    // What a class keeps to itself, and what it does, is not on the wire.
    expect(definitions.Circle).toEqual({
      type: 'object',
      properties: { kind: { type: 'string', const: 'circle' }, radius: { type: 'number' } },
      required: ['kind', 'radius'],
    });
    expect(definitions.Square).toMatchObject({ required: ['kind', 'side'] });
    expect(definitions.Place).not.toHaveProperty('properties.describe');
  });

  test('of messages: a name that clients know', () => {
    expect(graph.state).toMatchObject({
      definitions: {
        [MESSAGE]: {
          description: expect.stringContaining('Base class for all types of messages'),
          oneOf: [{ $ref: '#/definitions/RemoveMessage' }],
        },
        RemoveMessage: { properties: { type: { const: 'remove' }, id: { type: 'string' } } },
      },
    });
  });

  test('of input, output and context', () => {
    expect(graph.input).toEqual({ type: 'object', properties: { question: { type: 'string' } }, $schema: DRAFT });
    expect(graph.output).toMatchObject({
      properties: { answer: { type: 'string' }, sources: { items: { $ref: `#/definitions/${MESSAGE}` } } },
    });
    expect(graph.config).toEqual({
      type: 'object',
      properties: { model: { type: 'string', enum: ['large', 'small'] }, depth: { type: 'number' } },
      $schema: DRAFT,
    });
  });

  test.each(forms)('whatever is exported: %s', (form) => {
    expect(read[form]).toEqual({ '': graph });
  });

  test.each(['parent', 'parentFactory'])('of graphs in a graph, however they were added: %s', (name) => {
    const schemas = read[name] ?? {};
    expect(Object.keys(schemas).sort()).toEqual(['', 'called', 'direct', 'listed', 'listed|deep', 'made']);
    const inner = { type: 'object', properties: { inner: { type: 'string', enum: ['one', 'two'] } } };
    for (const namespace of ['called', 'direct', 'listed|deep', 'made']) {
      expect(schemas[namespace]).toMatchObject({ state: inner, input: inner, output: inner });
    }
    expect(schemas['']?.config).toEqual({ type: 'object', $schema: DRAFT });
  });

  test('of a graph that names its channels without annotations', () => {
    const kept = { type: 'object', properties: { kept: { type: 'string' } }, $schema: DRAFT };
    const config = { type: 'object', $schema: DRAFT };
    expect(read.channels?.['']).toEqual({ state: kept, input: kept, output: kept, config });
  });

  test('of a function that is a graph: what goes in and comes out', () => {
    expect(read.functional?.['']).toEqual({
      state: null,
      input: { type: 'object', properties: { text: { type: 'string' } }, $schema: DRAFT },
      output: { type: 'number', $schema: DRAFT },
      config: null,
    });
  });

  test('nothing of what is no graph, or says so no more', () => {
    expect([read.untyped, read.notAGraph, read.notThere]).toEqual([null, null, null]);
  });

  test('an error of types spoils nothing else', () => {
    expect(read.wrong?.['']?.state).toMatchObject({ properties: { n: { type: 'number' } } });
  });
});

describe('a graph is described', () => {
  test('by its definition, and by its types where that says nothing', { timeout: PATIENCE_MS }, async () => {
    const file = fixture('typed-parts.ts');
    const entries = parts.map((exportName) => [exportName, { file, exportName, context: 'checkpoint' as const }]);
    const graphs = await createGraphRegistry({ graphs: Object.fromEntries(entries), model: modelConfig(null) });
    const asked: string[] = [];
    const staticSchemas: Pick<StaticSchemas, 'of'> = {
      of(graphId) {
        asked.push(graphId);
        return typed.of(graphId);
      },
    };
    const pool = testPool('postgres://nobody@127.0.0.1:1/nowhere');
    onTestFinished(() => pool.end());
    const describer = createGraphDescriber({ pool, graphs, staticSchemas });

    const text = { type: 'object', properties: { text: { type: 'string' } } };
    expect(await describer.schemas('zod', {})).toMatchObject({ state: text, input: text, output: text, config: null });
    expect(asked).toEqual([]);
    const inside = { properties: { inner: { enum: ['one', 'two'] } } };
    expect(await describer.schemas('mixed', {})).toMatchObject({
      state: inside,
      config: { properties: { model: { description: 'What answers.' } } },
    });
    expect(await describer.schemas('inner', {})).toMatchObject({ state: inside, input: inside, output: inside });
    const all = { namespace: undefined, recurse: true };
    expect(await describer.subgraphs('outer', {}, all)).toMatchObject({ inside: { state: inside } });
    expect(Object.keys(await describer.subgraphs('outer', {}, all))).toEqual(['inside']);
  });
});

describe('a module is read', () => {
  test('once for each state of its file, however many ask', async () => {
    const home = await project('once', { 'a.ts': `export declare const a: ${graphWith('{ a: string }')};` });
    const file = join(home, 'a.ts');
    const schemas = schemasOf({ a: file });
    const [first, second] = await Promise.all([schemas.of('a'), schemas.of('a')]);
    expect(first?.['']?.state).toMatchObject({ properties: { a: { type: 'string' } } });
    expect(second).toBe(first);
    expect(await schemas.of('a')).toBe(first);
    await writeFile(file, `export declare const a: ${graphWith('{ b: number }')};`);
    await utimes(file, new Date(1_000), new Date(1_000));
    expect((await schemas.of('a'))?.['']?.state).toMatchObject({ properties: { b: { type: 'number' } } });
  });

  test('one at a time', async () => {
    const told = join(folder, 'told');
    const tell = (word: string) => `require('node:fs').appendFileSync(${JSON.stringify(told)}, '${word} ');`;
    const text = `${tell('begin')} const end = Date.now() + 300; while (Date.now() < end); ${tell('end')}`;
    const files = { 'a.ts': '', 'b.ts': '', 'node_modules/typescript/index.js': `${text} process.exit();` };
    const home = await project('queue', files);
    const schemas = schemasOf({ a: join(home, 'a.ts'), b: join(home, 'b.ts') });
    await Promise.all([schemas.of('a'), schemas.of('b')]);
    expect(await readFile(told, 'utf8')).toBe('begin end begin end ');
  });

  test('by one process, which is kept for a while', async () => {
    const pids = join(folder, 'pids');
    const real = createRequire(import.meta.url).resolve('typescript');
    const shim = `require('node:fs').appendFileSync(${JSON.stringify(pids)}, process.pid + ' ');
      module.exports = require(${JSON.stringify(real)});`;
    const source = (name: string) => `export declare const ${name}: ${graphWith(`{ ${name}: string }`)};`;
    const files = {
      'a.ts': source('a'),
      'b.ts': source('b'),
      'c.ts': source('c'),
      'node_modules/typescript/index.js': shim,
    };
    const home = await project('kept', files);
    const pidsSoFar = async () => (await readFile(pids, 'utf8')).trim().split(' ').map(Number);
    const schemas = schemasOf({ a: join(home, 'a.ts'), b: join(home, 'b.ts'), c: join(home, 'c.ts') });
    const read = await Promise.all([schemas.of('a'), schemas.of('b')]);
    expect(read).toMatchObject([
      { '': { state: { properties: { a: {} } } } },
      { '': { state: { properties: { b: {} } } } },
    ]);
    const [kept = 0, ...others] = await pidsSoFar();
    expect(others).toEqual([]);
    // One that has ended meanwhile is not asked.
    process.kill(kept, 'SIGKILL');
    await until(() => isGone(kept), { message: 'the process ends' });
    expect(await schemas.of('c')).toMatchObject({ '': { state: { properties: { c: {} } } } });
    const hasty = schemasOf({ a: join(home, 'a.ts') }, { idleMs: 1 });
    expect(await hasty.of('a')).toEqual(read[0]);
    const [, , pid = 0] = await pidsSoFar();
    await until(() => isGone(pid), { message: 'the process ends' });
  });

  test('and is not run', async () => {
    const source = `throw new Error('was run'); export const a = null as ${graphWith('{ a: string }')};`;
    const home = await project('throws', { 'a.ts': source });
    const schemas = await schemasOf({ a: join(home, 'a.ts') }).of('a');
    expect(schemas?.['']?.state).toMatchObject({ properties: { a: { type: 'string' } } });
  });

  test('its default export too, and JavaScript by the types beside it', async () => {
    const types = `declare enum Mood { Glad = 'glad', Sad = 'sad' }
      declare const graph: ${graphWith('{ mood: Mood }')};
      export default graph;`;
    const home = await project('compiled', { 'a.js': 'export default {};', 'a.d.ts': types });
    const schemas = await schemasOf({ default: join(home, 'a.js') }).of('default');
    expect(schemas?.['']).toMatchObject({
      state: { properties: { mood: { type: 'string', enum: ['glad', 'sad'] } } },
      output: { properties: { out: { type: 'number', const: 1 } } },
    });
  });

  test('by the compiler of its project, or else by ours; none, and TypeScript 7 alone, is null', async () => {
    const fake = (text: string) => ({ 'node_modules/typescript/index.js': text });
    const own = await project('own', fake('exports.version = "own"; exports.createProgram = () => null;'));
    const seven = await project('seven', fake('exports.version = "7.0.2";'));
    const none = await project('none', {});
    const from = (...homes: string[]) => findCompiler(homes.map((home) => join(home, 'a.ts')))?.version ?? null;
    expect(from(own, seven)).toBe('own');
    expect(from(seven, own)).toBe('own');
    expect(from(none, seven)).toBeNull();
  });
});

describe('a reading that fails gives null and a warning', () => {
  const warned = async (home: string, timeoutMs = PATIENCE_MS): Promise<string[]> => {
    warnings.length = 0;
    const schemas = schemasOf({ a: join(home, 'a.ts') }, { timeoutMs });
    expect(await schemas.of('a')).toBeNull();
    expect(warnings).toHaveLength(1);
    return warnings.map(({ err }) => err?.message ?? '');
  };
  const compiler = (text: string) => ({ 'a.ts': '', 'node_modules/typescript/index.js': text });

  test('that takes too long', async () => {
    const home = await project('slow', compiler('for (;;);'));
    expect(await warned(home, 500)).toEqual(['it took more than 500 ms']);
  });

  test('whose compiler throws', async () => {
    const home = await project('broken', compiler('exports.createProgram = 1; throw new Error("no such luck");'));
    expect(await warned(home)).toEqual([expect.stringContaining('no such luck')]);
  });

  test('whose process dies', async () => {
    const home = await project('dying', compiler('process.exit(3);'));
    expect(await warned(home)).toEqual(['the process that reads them ended (3)']);
  });

  test('is tried again after a while', async () => {
    const failed = join(folder, 'failed');
    const real = createRequire(import.meta.url).resolve('typescript');
    const text = `const { existsSync, writeFileSync } = require('node:fs');
      if (!existsSync(${JSON.stringify(failed)})) { writeFileSync(${JSON.stringify(failed)}, ''); process.exit(3); }
      module.exports = require(${JSON.stringify(real)});`;
    const home = await project('again', {
      ...compiler(text),
      'a.ts': `export declare const a: ${graphWith('{ a: 1 }')};`,
    });
    for (const [retryAfterMs, answer] of [
      [60_000, null],
      [0, { '': { state: {} } }],
    ] as const) {
      await rm(failed, { force: true });
      const schemas = schemasOf({ a: join(home, 'a.ts') }, { retryAfterMs });
      expect(await schemas.of('a')).toBeNull();
      if (answer === null) expect(await schemas.of('a')).toBeNull();
      else expect(await schemas.of('a')).toMatchObject(answer);
    }
  });

  test('and holds up nobody', async () => {
    const bad = await project('bad', compiler('process.exit(3);'));
    const good = await project('good', { 'b.ts': `export declare const b: ${graphWith('{ b: string }')};` });
    const schemas = schemasOf({ a: join(bad, 'a.ts'), b: join(good, 'b.ts') });
    const [a, b] = await Promise.all([schemas.of('a'), schemas.of('b')]);
    expect([a, b?.['']?.state]).toEqual([null, expect.objectContaining({ properties: { b: { type: 'string' } } })]);
  });

  test('a close ends one without a warning', async () => {
    warnings.length = 0;
    const began = join(folder, 'began');
    const text = `require('node:fs').writeFileSync(${JSON.stringify(began)}, ''); for (;;);`;
    const schemas = schemasOf({ a: join(await project('closed', compiler(text)), 'a.ts') });
    const reading = schemas.of('a');
    await until(() => existsSync(began), { message: 'the process works' });
    await schemas.close();
    expect([await reading, await schemas.of('a'), warnings]).toEqual([null, null, []]);
  });
});

test('a process that reads schemas ends by itself when nobody is there to end it', async () => {
  const home = await project('orphan', { 'a.ts': '', 'node_modules/typescript/index.js': 'for (;;);' });
  const file = fileURLToPath(new URL('../../src/graphs/schema-process.ts', import.meta.url));
  const child = fork(file, { execArgv: [], stdio: ['ignore', 'ignore', 'ignore', 'ipc'] });
  child.send({ file: join(home, 'a.ts'), exportNames: ['a'], usefulMs: 500 });
  onTestFinished(() => void child.kill('SIGKILL'));
  expect(await once(child, 'exit')).toEqual([null, 'SIGKILL']);
});
