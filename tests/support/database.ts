/** One database per test file: a clone of a template that was migrated once (about 25 ms). */
import { inject } from 'vitest';
import { migrate } from '#src/postgres/migrate.ts';
import { databaseName, query } from './postgres.ts';

export interface TestDatabase {
  url: string;
  /** Removes it, ending every connection to it. */
  drop(): Promise<void>;
}

/**
 * Clones the migrated template.
 * @param options.empty a database without any migration, for tests of the migrations themselves
 */
export async function createDatabase(options: { empty?: boolean } = {}): Promise<TestDatabase> {
  const admin = inject('databaseUrl');
  const template = options.empty === true ? 'template0' : inject('templateDatabase');
  return cloneDatabase(admin, template);
}

/** Called once, by services.ts. Returns the template's name. */
export async function createTemplate(adminUrl: string): Promise<string> {
  const name = databaseName('runledger_template');
  await query(adminUrl, `create database "${name}" template template0 encoding 'UTF8'`);
  await migrate({ databaseUrl: at(adminUrl, name) });
  return name;
}

async function cloneDatabase(adminUrl: string, template: string): Promise<TestDatabase> {
  const name = databaseName('runledger_test');
  await query(adminUrl, `create database "${name}" template "${template}" strategy file_copy`);
  return {
    url: at(adminUrl, name),
    async drop() {
      await query(adminUrl, `drop database if exists "${name}" with (force)`);
    },
  };
}

function at(adminUrl: string, database: string): string {
  const url = new URL(adminUrl);
  url.pathname = `/${database}`;
  return url.href;
}
