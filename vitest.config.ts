import { defineConfig } from 'vitest/config';

const shared = { environment: 'node' as const, restoreMocks: true };

export default defineConfig({
  test: {
    // Groups run one after the other: the tests of processes measure times and want the machine for themselves.
    projects: [
      // Pure: no I/O beyond the repository's own files. Part of `npm run check`.
      { test: { ...shared, name: 'unit', sequence: { groupOrder: 0 }, include: ['tests/unit/**/*.test.ts'] } },
      // Rooms against real Postgres and Redis, in this process; one cloned database per file.
      {
        test: {
          ...shared,
          name: 'integration',
          sequence: { groupOrder: 1 },
          include: ['tests/integration/**/*.test.ts'],
          globalSetup: ['tests/support/services.ts'],
          testTimeout: 30_000,
          hookTimeout: 120_000,
          maxWorkers: 2,
        },
      },
      // Other people's clients against real server processes.
      {
        test: {
          ...shared,
          name: 'conformance',
          sequence: { groupOrder: 2 },
          include: ['tests/conformance/**/*.test.ts'],
          globalSetup: ['tests/support/services.ts'],
          testTimeout: 60_000,
          hookTimeout: 120_000,
          maxWorkers: 1,
        },
      },
      // Real server processes, real clients, over the wire only.
      {
        test: {
          ...shared,
          name: 'process',
          sequence: { groupOrder: 3 },
          include: ['tests/process/**/*.test.ts'],
          globalSetup: ['tests/support/services.ts'],
          testTimeout: 60_000,
          hookTimeout: 120_000,
          maxWorkers: 2,
        },
      },
      // Faults at named points, and what must hold whatever they are.
      {
        test: {
          ...shared,
          name: 'chaos',
          sequence: { groupOrder: 4 },
          include: ['tests/chaos/**/*.test.ts'],
          globalSetup: ['tests/support/services.ts'],
          hookTimeout: 120_000,
          // They measure nothing that is asserted, and often wait.
          maxWorkers: 3,
        },
      },
    ],
  },
});
