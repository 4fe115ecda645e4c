// The import rules of the architecture (AGENTS.md, "Rooms"). Each is seen to fail by tests/unit/architecture.test.ts.
const ROOMS = {
  // who may import whom inside src/; a room always may import itself
  dialects: ['crons', 'runs', 'threads', 'assistants', 'store', 'events', 'http', 'errors'],
  crons: ['runs', 'events', 'postgres', 'errors'],
  runs: ['threads', 'store', 'graphs', 'events', 'outbox', 'postgres', 'errors'],
  threads: ['events', 'postgres', 'errors'],
  assistants: ['graphs', 'events', 'postgres', 'errors'],
  store: ['graphs', 'events', 'postgres', 'errors'],
  graphs: ['events', 'postgres', 'errors'],
  outbox: ['events', 'postgres', 'errors'],
  events: ['redis'],
  http: ['errors'],
  postgres: [],
  redis: [],
};

const roomRules = Object.entries(ROOMS).map(([room, allowed]) => ({
  name: `${room}-imports-one-way`,
  severity: 'error',
  from: { path: `^src/${room}/` },
  to: {
    path: '^src/',
    pathNot: [
      `^src/${room}/`,
      ...allowed.map((other) => (other === 'errors' ? '^src/errors\\.ts$' : `^src/${other}/`)),
    ],
  },
}));

module.exports = {
  forbidden: [
    ...roomRules,
    { name: 'no-circular', severity: 'error', from: { path: '^src/' }, to: { circular: true } },
    {
      name: 'dialects-are-siblings',
      severity: 'error',
      from: { path: '^src/dialects/([^/]+)/' },
      to: { path: '^src/dialects/[^/]+/', pathNot: '^src/dialects/$1/' },
    },
    {
      name: 'runs-has-one-door',
      severity: 'error',
      from: { path: '^src/dialects/' },
      to: { path: '^src/runs/', pathNot: '^src/runs/(service|run|state)\\.ts$' },
    },
    {
      name: 'crons-has-one-door',
      severity: 'error',
      from: { path: '^src/dialects/' },
      to: { path: '^src/crons/', pathNot: '^src/crons/service\\.ts$' },
    },
    {
      name: 'threads-has-one-door',
      severity: 'error',
      from: { path: '^src/dialects/' },
      to: { path: '^src/threads/', pathNot: '^src/threads/service\\.ts$' },
    },
    {
      name: 'store-has-one-door',
      severity: 'error',
      from: { path: '^src/dialects/' },
      to: { path: '^src/store/', pathNot: '^src/store/service\\.ts$' },
    },
    {
      name: 'assistants-has-one-door',
      severity: 'error',
      from: { path: '^src/dialects/' },
      to: { path: '^src/assistants/', pathNot: '^src/assistants/service\\.ts$' },
    },
    {
      name: 'projectors-are-pure',
      severity: 'error',
      from: { path: '^src/dialects/[^/]+/project\\.ts$' },
      to: {
        pathNot: [
          '^src/events/(event|cursor)\\.ts$',
          '^src/dialects/[^/]+/(frames|wire)\\.ts$',
          '^node_modules/@ag-ui/core/',
        ],
      },
    },
    {
      name: 'only-finalize-seals',
      severity: 'error',
      from: { path: '^src/', pathNot: '^src/runs/finalize\\.ts$' },
      to: { path: '^src/events/seal\\.ts$' },
    },
    {
      name: 'only-checkpoints-touches-the-saver',
      severity: 'error',
      from: { path: '^src/', pathNot: '^src/graphs/checkpoints\\.ts$' },
      to: { path: 'node_modules/@langchain/langgraph-checkpoint-postgres/' },
    },
    {
      name: 'no-sql-in-a-dialect',
      severity: 'error',
      from: { path: '^src/(dialects|http|events)/' },
      to: { path: ['^src/postgres/', 'node_modules/(pg|@types/pg)/'] },
    },
    {
      name: 'no-fastify-in-the-core',
      severity: 'error',
      from: { path: '^src/(crons|runs|threads|assistants|store|graphs|events|outbox|postgres|redis)/' },
      to: { path: 'node_modules/(fastify|@fastify|fastify-[^/]+)/' },
    },
    { name: 'src-stands-alone', severity: 'error', from: { path: '^src/' }, to: { path: '^(tests|scripts)/' } },
    { name: 'not-resolvable', severity: 'error', from: { path: '^src/' }, to: { couldNotResolve: true } },
  ],
  options: {
    doNotFollow: { path: 'node_modules' },
    tsPreCompilationDeps: true,
    tsConfig: { fileName: 'tsconfig.json' },
    enhancedResolveOptions: {
      exportsFields: ['exports'],
      conditionNames: ['import', 'types', 'node', 'default'],
      extensions: ['.ts', '.js', '.cjs', '.mjs', '.d.ts'],
    },
  },
};
