/** A real Chromium for tests, without a window, on a leash and with a profile that is empty and goes away with it. */
import { existsSync } from 'node:fs';
import { mkdtemp } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type Browser, chromium } from 'playwright-core';
import { installPackage, onPath } from './apt.ts';
import { leash } from './leash.ts';
import { until } from './until.ts';

export interface TestBrowser {
  /** `newContext()` is a browser without cookies or storage of others; pages of one context are tabs that share them. */
  readonly browser: Browser;
  stop(): Promise<void>;
}

const MISSING =
  'The tests need Chromium: install chromium (it must be on the PATH), or set CHROME_PATH to the program of a Chromium or Chrome.';
/** The last three: two tabs of a test are both looked at. The rest: it asks for nothing beyond the page. */
const FLAGS = [
  '--headless',
  '--no-sandbox',
  '--disable-gpu',
  '--disable-quic',
  '--disable-dev-shm-usage',
  '--no-first-run',
  '--no-default-browser-check',
  '--disable-background-networking',
  '--disable-component-update',
  '--disable-sync',
  '--disable-extensions',
  '--disable-breakpad',
  '--disable-background-timer-throttling',
  '--disable-backgrounding-occluded-windows',
  '--disable-renderer-backgrounding',
];
const LISTENING = /DevTools listening on (ws:\/\/\S+)/;

/**
 * Starts Chromium: CHROME_PATH, or what is on the PATH; where it is missing, it is installed (Debian, as root), which takes
 * a minute.
 * @throws Error with one sentence when there is none, with its output when it does not start
 */
export async function startBrowser(): Promise<TestBrowser> {
  const program = await findProgram();
  const profile = await mkdtemp(join(tmpdir(), 'runledger-chromium-'));
  const command = [program, ...FLAGS, `--user-data-dir=${profile}`, '--remote-debugging-port=0', 'about:blank'];
  const running = await leash(command, { stopSignal: 'KILL', orphanDir: profile });
  let ended: number | null = null;
  void running.exited.then((code) => {
    ended = code;
  });
  try {
    await until(() => LISTENING.test(running.output()) || ended !== null, { timeoutMs: 60_000, message: 'Chromium' });
    const [, address] = LISTENING.exec(running.output()) ?? [];
    if (address === undefined) throw new Error(`Chromium ended with code ${ended}`);
    const browser = await chromium.connectOverCDP(address);
    return {
      browser,
      async stop() {
        await browser.close();
        await running.stop();
      },
    };
  } catch (cause) {
    await running.stop();
    throw new Error(`${(cause as Error).message}; its output:\n${running.output()}`, { cause });
  }
}

async function findProgram(): Promise<string> {
  const given = process.env.CHROME_PATH;
  if (given !== undefined && given !== '') {
    if (!existsSync(given)) throw new Error(`The browser that CHROME_PATH names is not there (${given}).`);
    return given;
  }
  const look = () => onPath('chromium', 'chromium-browser', 'google-chrome-stable', 'google-chrome');
  const found = look();
  if (found !== null) return found;
  await installPackage('chromium', MISSING);
  const installed = look();
  if (installed === null) throw new Error(MISSING);
  return installed;
}
