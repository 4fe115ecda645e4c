/** Rules about the text of the sources that a module linter cannot see. Each takes files and returns what breaks it. */
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import ts from 'typescript';

export const ROOT = fileURLToPath(new URL('../../', import.meta.url));

export interface SourceFile {
  /** Relative to the repository, with slashes. */
  path: string;
  text: string;
}

/** All TypeScript files under a folder of the repository. */
export function sourcesUnder(folder: string): SourceFile[] {
  return readdirSync(join(ROOT, folder), { recursive: true, encoding: 'utf8' })
    .map((name) => join(folder, name).replaceAll('\\', '/'))
    .filter((path) => /\.tsx?$/.test(path))
    .sort()
    .map((path) => ({ path, text: readFileSync(join(ROOT, path), 'utf8') }));
}

/** The saver package is named (imported, required, resolved in any way) in one file only. */
export function saverOutsideItsRoom(files: SourceFile[]): string[] {
  return files
    .filter(({ path }) => path.startsWith('src/') && path !== 'src/graphs/checkpoints.ts')
    .filter((file) => literalsOf(file).some((literal) => literal.includes('langgraph-checkpoint-postgres')))
    .map(({ path }) => path);
}

const STATEMENT =
  /\bselect\s[^;]*\sfrom\s|\binsert\s+into\s|\bupdate\s+"?[\w.]+"?\s+(as\s+\w+\s+|\w+\s+)?set\s|\bdelete\s+from\s|\bwith\s+\w+\s+as\s*\(/i;

/** No SQL statement in a string of a dialect or of the HTTP ground. */
export function sqlAtTheEdge(files: SourceFile[]): string[] {
  return files
    .filter(({ path }) => /^src\/(dialects|http)\//.test(path))
    .flatMap((file) => literalsOf(file).map((literal) => ({ path: file.path, literal })))
    .filter(({ literal }) => STATEMENT.test(literal))
    .map(({ path, literal }) => `${path}: ${literal.trim().slice(0, 60)}`);
}

/** Steps of a run's life that may write its row: the listing of runs/ is the state machine. */
const RUN_WRITERS = [
  'admission',
  'admit-input',
  'delete-run',
  'start',
  'claim',
  'finalize',
  'cancel',
  'put-back',
  'recover',
  'edit',
  'rollback',
];

/** `runs` is written only by the files of src/runs that are named for a step. Deleting goes with the thread, by the foreign key. */
export function runWritesElsewhere(files: SourceFile[]): string[] {
  const allowed = new Set(RUN_WRITERS.map((step) => `src/runs/${step}.ts`));
  return files
    .filter(({ path }) => path.startsWith('src/') && !allowed.has(path))
    .filter((file) => literalsOf(file).some((literal) => /\b(update|insert\s+into)\s+(only\s+)?runs\b/i.test(literal)))
    .map(({ path }) => path);
}

/** Every event type is spelled out in every dialect's project.ts: an event nobody thought of is an event nobody sees. */
export function eventsADialectForgot(files: SourceFile[], types: string[]): string[] {
  const dialects = new Set(files.flatMap(({ path }) => /^src\/dialects\/([^/]+)\//.exec(path)?.[1] ?? []));
  return [...dialects].flatMap((dialect) => {
    const path = `src/dialects/${dialect}/project.ts`;
    const file = files.find((candidate) => candidate.path === path);
    if (file === undefined) return [`${path}: missing`];
    const spelled = new Set(literalsOf(file));
    return types.filter((type) => !spelled.has(type)).map((type) => `${path}: ${type}`);
  });
}

const SWITCHED_OFF =
  /^(?:test|it|describe|suite|bench)(?:\.\w+)*\.(?:only|skip|todo|skipIf|runIf|fails)$|^[xf](?:it|test|describe)$/;

/** No test is switched off, singled out, or expected to fail. Comments and strings do not count. */
export function testsSwitchedOff(files: SourceFile[]): string[] {
  return files.flatMap((file) =>
    nodesOf(file)
      .filter((node) => ts.isPropertyAccessExpression(node) || ts.isIdentifier(node))
      .map((node) => node.getText())
      .filter((text) => SWITCHED_OFF.test(text))
      .map((text) => `${file.path}: ${text}`),
  );
}

/** Test files outside the folders of all projects would never run. */
export function testsThatNeverRun(files: SourceFile[], folders: string[]): string[] {
  const runs = (path: string) => folders.some((folder) => path.startsWith(folder));
  return files.map(({ path }) => path).filter((path) => path.endsWith('.test.ts') && !runs(path));
}

const literals = new WeakMap<SourceFile, string[]>();

/** The strings of a file: literals, and templates with what is put in standing as a word. Parsed once per file object. */
function literalsOf(file: SourceFile): string[] {
  const known = literals.get(file);
  if (known !== undefined) return known;
  const found = nodesOf(file).flatMap((node) => {
    if (ts.isStringLiteralLike(node)) return [node.text];
    if (ts.isTemplateExpression(node)) {
      return [node.head.text + node.templateSpans.map((span) => `x${span.literal.text}`).join('')];
    }
    return [];
  });
  literals.set(file, found);
  return found;
}

function nodesOf(file: SourceFile): ts.Node[] {
  const source = ts.createSourceFile(file.path, file.text, ts.ScriptTarget.Latest, true);
  const nodes: ts.Node[] = [];
  const visit = (node: ts.Node) => {
    nodes.push(node);
    node.forEachChild(visit);
  };
  visit(source);
  return nodes;
}
