/** `npm run migrate`: applies what DATABASE_URL's database lacks. */
import { migrate } from '#src/postgres/migrate.ts';

const databaseUrl = process.env.DATABASE_URL;
if (databaseUrl === undefined || databaseUrl === '') {
  console.error('migrate: set DATABASE_URL. (The embedded database is migrated at every start.)');
  process.exit(1);
}
const applied = await migrate({ databaseUrl });
console.log(applied.length === 0 ? 'nothing to do' : `applied: ${applied.join(', ')}`);
