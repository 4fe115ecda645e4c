/**
 * The rules that keep the rooms apart, and the proof that each is enforced: every rule is broken once on purpose, in a
 * copy of the sources, and the checker must see it.
 */
import { execFile } from 'node:child_process';
import { cp, mkdir, mkdtemp, rm, symlink, writeFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { promisify } from 'node:util';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { z } from 'zod';
import { REPLAY_HOME } from '#src/events/event.ts';
import {
  eventsADialectForgot,
  ROOT,
  runWritesElsewhere,
  type SourceFile,
  saverOutsideItsRoom,
  sourcesUnder,
  sqlAtTheEdge,
  testsSwitchedOff,
  testsThatNeverRun,
} from '#tests/support/source-rules.ts';
import vitestConfig from '../../vitest.config.ts';

const ROOMS = [
  'dialects',
  'runs',
  'threads',
  'assistants',
  'store',
  'crons',
  'graphs',
  'outbox',
  'events',
  'http',
  'postgres',
  'redis',
];
const SAVER = '@langchain/langgraph-checkpoint-postgres';

/** [file, its text, the rule that must see it]. */
const PLANTS: [string, string, string][] = [
  ...ROOMS.map((room): [string, string, string] => [
    `src/${room}/planted-room.ts`,
    `import '#src/config.ts';`,
    `${room}-imports-one-way`,
  ]),
  ['src/postgres/planted-upward.ts', `import '../runs/run.ts';`, 'postgres-imports-one-way'],
  [
    'src/events/planted-type.ts',
    `import type { Run } from '#src/runs/run.ts';\nexport type R = Run;`,
    'events-imports-one-way',
  ],
  ['src/runs/planted-a.ts', `import './planted-b.ts';`, 'no-circular'],
  ['src/dialects/planted/sibling.ts', `import '../rest/wire.ts';`, 'dialects-are-siblings'],
  ['src/dialects/planted/door.ts', `import '#src/runs/claim.ts';`, 'runs-has-one-door'],
  ['src/dialects/planted/threads.ts', `import '#src/threads/queries.ts';`, 'threads-has-one-door'],
  ['src/dialects/planted/crons.ts', `import '#src/crons/queries.ts';`, 'crons-has-one-door'],
  ['src/dialects/planted/store.ts', `import '#src/store/queries.ts';`, 'store-has-one-door'],
  ['src/dialects/planted/assistants.ts', `import '#src/assistants/queries.ts';`, 'assistants-has-one-door'],
  ['src/dialects/planted/project.ts', `import '#src/errors.ts';`, 'projectors-are-pure'],
  ['src/runs/planted-seal.ts', `import '#src/events/seal.ts';`, 'only-finalize-seals'],
  ['src/runs/planted-seal-late.ts', `export const seal = () => import('../events/seal.ts');`, 'only-finalize-seals'],
  [
    'src/graphs/planted-saver.ts',
    `import { PostgresSaver } from '${SAVER}';\nexport const s = PostgresSaver;`,
    'only-checkpoints-touches-the-saver',
  ],
  [
    'src/graphs/planted-saver-late.ts',
    `export const s = () => import('${SAVER}');`,
    'only-checkpoints-touches-the-saver',
  ],
  [
    'src/graphs/planted-saver-required.ts',
    `declare const require: (name: string) => unknown;\nexport const s = require('${SAVER}');`,
    'only-checkpoints-touches-the-saver',
  ],
  ['src/dialects/planted/sql.ts', `import pg from 'pg';\nexport const p = pg;`, 'no-sql-in-a-dialect'],
  ['src/dialects/planted/sql-type.ts', `import type { Pool } from 'pg';\nexport type P = Pool;`, 'no-sql-in-a-dialect'],
  ['src/events/planted-pool.ts', `import '#src/postgres/pool.ts';`, 'no-sql-in-a-dialect'],
  [
    'src/runs/planted-fastify.ts',
    `import type { FastifyRequest } from 'fastify';\nexport type F = FastifyRequest;`,
    'no-fastify-in-the-core',
  ],
  [
    'src/graphs/planted-fastify.ts',
    `import cors from '@fastify/cors';\nexport const c = cors;`,
    'no-fastify-in-the-core',
  ],
  ['src/runs/planted-test.ts', `import '#tests/support/until.ts';`, 'src-stands-alone'],
  ['src/runs/planted-nowhere.ts', `import './planted-nothing.ts';`, 'not-resolvable'],
];

/** The other half of the circle, which is reported once. */
const COMPANION = ['src/runs/planted-b.ts', `import './planted-a.ts';`] as const;

interface CruiseResult {
  modules: { source: string }[];
  summary: { violations: { from: string; rule: { name: string } }[] };
}

async function cruise(cwd: string): Promise<CruiseResult> {
  const program = join(ROOT, 'node_modules/.bin/depcruise');
  const run = promisify(execFile);
  const args = ['src', '--config', '.dependency-cruiser.cjs', '--output-type', 'json'];
  // The exit code is the number of violations.
  const { stdout } = await run(program, args, { cwd, maxBuffer: 256 * 1024 ** 2 }).catch((error) => error);
  return JSON.parse(stdout) as CruiseResult;
}

describe('import rules', () => {
  let copy: string;
  let result: CruiseResult;

  beforeAll(async () => {
    copy = await mkdtemp(join(tmpdir(), 'runledger-architecture-'));
    for (const name of ['src', 'package.json', 'tsconfig.json', '.dependency-cruiser.cjs', 'tests/support/until.ts']) {
      await cp(join(ROOT, name), join(copy, name), { recursive: true });
    }
    await symlink(join(ROOT, 'node_modules'), join(copy, 'node_modules'));
    for (const [path, text] of [...PLANTS, COMPANION]) {
      await mkdir(dirname(join(copy, path)), { recursive: true });
      await writeFile(join(copy, path), text);
    }
    result = await cruise(copy);
  }, 120_000);
  afterAll(() => rm(copy, { recursive: true, force: true }));

  test.each(PLANTS)('%s is seen', (path, _text, rule) => {
    const seen = result.summary.violations.filter(({ from }) => from === path).map((violation) => violation.rule.name);
    expect(seen).toContain(rule);
  });

  test('every rule has been broken on purpose', () => {
    const { forbidden } = createRequire(import.meta.url)(join(ROOT, '.dependency-cruiser.cjs')) as {
      forbidden: { name: string }[];
    };
    expect(new Set(PLANTS.map(([, , rule]) => rule))).toEqual(new Set(forbidden.map(({ name }) => name)));
  });

  test('nothing else breaks one', () => {
    const planted = new Set([...PLANTS, COMPANION].map(([path]) => path));
    expect(result.summary.violations.filter(({ from }) => !planted.has(from))).toEqual([]);
  });

  test('every source file was looked at', () => {
    const seen = new Set(result.modules.map(({ source }) => source));
    expect(
      sourcesUnder('src')
        .map(({ path }) => path)
        .filter((path) => !seen.has(path)),
    ).toEqual([]);
    expect(seen.size).toBeGreaterThan(80);
  });

  test('the files that the rules name exist', () => {
    const paths = new Set(sourcesUnder('src').map(({ path }) => path));
    const named = [
      'runs/finalize',
      'runs/service',
      'runs/run',
      'runs/state',
      'assistants/service',
      'store/service',
      'threads/service',
      'events/seal',
      'events/event',
      'events/cursor',
      'graphs/checkpoints',
    ];
    expect(named.filter((name) => !paths.has(`src/${name}.ts`))).toEqual([]);
  });
});

// The first to ask parses every source.
describe('rules about the text of the sources', { timeout: 60_000 }, () => {
  const sources = sourcesUnder('src');
  const tests = sourcesUnder('tests');
  const types = Object.keys(REPLAY_HOME);
  const planted = (path: string, text: string): SourceFile[] => [...sources, { path, text }];

  test('only graphs/checkpoints.ts names the saver package', () => {
    expect(saverOutsideItsRoom(sources)).toEqual([]);
    const sneaky = `const load = createRequire(import.meta.url);\nexport const s = load.resolve('${SAVER}/aio');`;
    expect(saverOutsideItsRoom(planted('src/runs/sneaky.ts', sneaky))).toEqual(['src/runs/sneaky.ts']);
    // The rule is about a file that is there and does it.
    expect(sources.find(({ path }) => path === 'src/graphs/checkpoints.ts')?.text).toContain(SAVER);
  });

  test.each([
    'const q = `select id from runs where owner = $1`;',
    "const q = 'INSERT INTO threads values (1)';",
    `const q = \`update \${table} set title = $1\`;`,
    "const q = 'update threads as t set title = $1';",
    "const q = 'delete from runs';",
    'const q = `with gone as (delete from runs returning id) select 1`;',
  ])('no SQL in a dialect or in http: %s', (text) => {
    expect(sqlAtTheEdge(sources)).toEqual([]);
    expect(sqlAtTheEdge(planted('src/dialects/rest/sneaky.ts', text))).toHaveLength(1);
    expect(sqlAtTheEdge(planted('src/http/sneaky.ts', text))).toHaveLength(1);
    expect(sqlAtTheEdge(planted('src/dialects/rest/fine.ts', `// ${text}`))).toEqual([]);
  });

  test('only the steps of a run’s life write its row', () => {
    expect(runWritesElsewhere(sources)).toEqual([]);
    for (const statement of [
      'update runs set status = $1',
      'insert into runs (id) values ($1)',
      'UPDATE\n  runs r set x = 1',
    ]) {
      const text = `export const q = ${JSON.stringify(statement)};`;
      expect(runWritesElsewhere(planted('src/threads/sneaky.ts', text))).toEqual(['src/threads/sneaky.ts']);
      expect(runWritesElsewhere(planted('src/runs/helper.ts', text))).toEqual(['src/runs/helper.ts']);
    }
  });

  test('every event type is in every dialect’s project.ts', () => {
    expect(types).toContain('run.sealed');
    expect(eventsADialectForgot(sources, types)).toEqual([]);
    expect(eventsADialectForgot(sources, [...types, 'run.imagined'])).toContain(
      'src/dialects/rest/project.ts: run.imagined',
    );
    expect(eventsADialectForgot(planted('src/dialects/new/index.ts', ''), types)).toEqual([
      'src/dialects/new/project.ts: missing',
    ]);
  });

  test('no test is switched off', () => {
    expect(testsSwitchedOff(tests)).toEqual([]);
    const off = (text: string) => testsSwitchedOff([{ path: 'tests/unit/x.test.ts', text }]);
    for (const text of [
      'test.only("x")',
      'it.skip("x")',
      'describe.todo("x")',
      'test.skipIf(a)("x")',
      'test.concurrent.runIf(a)("x")',
      'test.fails("x")',
      'xit("x")',
    ]) {
      expect(off(text), text).toHaveLength(1);
    }
    expect(off('// test.only\ntest.each([1])("test.only"); list.only; list.skip(1);')).toEqual([]);
  });

  test('every test file belongs to a project', () => {
    const projects = z.object({
      test: z.object({ projects: z.array(z.object({ test: z.object({ include: z.array(z.string()) }) })) }),
    });
    const folders = projects
      .parse(vitestConfig)
      .test.projects.flatMap((project) => project.test.include.map((pattern) => pattern.replace('**/*.test.ts', '')));
    expect(testsThatNeverRun(tests, folders)).toEqual([]);
    expect(testsThatNeverRun([{ path: 'tests/lost.test.ts', text: '' }], folders)).toEqual(['tests/lost.test.ts']);
  });
});
