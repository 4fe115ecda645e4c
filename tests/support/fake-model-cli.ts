/**
 * The fake model as a process: `node tests/support/fake-model-cli.ts --port 8124`. Model names: `fake-<tokens>-<delayMs>`
 * for measurements; any other name answers with a few words.
 */
import { parseArgs } from 'node:util';
import { startFakeModel } from './fake-model.ts';

const { values } = parseArgs({ options: { port: { type: 'string', default: '8124' } } });
const model = await startFakeModel({ port: Number(values.port) });
process.stdout.write(`fake model listens: OPENAI_BASE_URL=${model.url}\n`);
