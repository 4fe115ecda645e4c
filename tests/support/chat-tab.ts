/** The chat page in a tab, as a person has it: what it shows, and what can be pressed. */
import type { BrowserContext, Page } from 'playwright-core';
import type { Shown } from './page/shown.ts';

export interface ChatTab {
  readonly page: Page;
  /** Errors that nothing in the page caught. */
  readonly failures: Error[];
  /**
   * Resolves once the page shows this, in each of the named respects.
   * @throws Error with what it shows instead, after 20 s
   */
  shows(expected: Partial<Shown>): Promise<void>;
  /** Every list of messages it has shown since it was loaded, without those that repeat the one before. */
  renders(): Promise<string[][]>;
  /** Writes a message, and presses `send` or another button that takes it. */
  say(text: string, button?: 'send' | 'queue'): Promise<void>;
  press(button: 'stop' | 'approve' | 'reject'): Promise<void>;
  /** Presses what belongs to one message, counted from 0; `edit` takes the text. */
  pressAt(index: number, button: 'edit' | 'again' | 'former' | 'later', text?: string): Promise<void>;
  /** The thread it is on, once there is one. */
  threadId(): string;
}

export interface TabOptions {
  /** The address of the page (page-server.ts). */
  page: string;
  /** The address of the server. */
  api: string;
  /** The thread to open; a new one begins with the first message. */
  thread?: string;
  /** Where the page remembers the run it follows; its own storage by default. */
  storage?: 'local' | 'session';
}

/** Far above what anything takes on a busy machine. */
const PATIENCE_MS = 20_000;

export async function openChat(context: BrowserContext, options: TabOptions): Promise<ChatTab> {
  const address = new URL(options.page);
  for (const name of ['api', 'thread', 'storage'] as const) {
    const value = options[name];
    if (value !== undefined) address.searchParams.set(name, value);
  }
  const page = await context.newPage();
  page.setDefaultTimeout(PATIENCE_MS);
  const failures: Error[] = [];
  page.on('pageerror', (error) => failures.push(error));
  await page.goto(address.href);

  const message = page.getByLabel('message');
  const button = (name: string) => page.locator('main > button').getByText(name, { exact: true });
  const pressed = (name: string) => page.locator('main > button', { hasText: name }).click();
  return {
    page,
    failures,
    async shows(expected) {
      try {
        await page.waitForFunction(isShown, expected, { polling: 30 });
      } catch (cause) {
        const shown = await page.evaluate(() => globalThis.shown());
        throw new Error(`waited for ${JSON.stringify(expected)}; shown is ${JSON.stringify(shown)}`, { cause });
      }
    },
    async renders() {
      const renders = await page.evaluate(() => globalThis.renders);
      return renders.filter((render, index) => JSON.stringify(render) !== JSON.stringify(renders[index - 1]));
    },
    async say(text, name = 'send') {
      await message.fill(text);
      await button(name).click();
    },
    press: (name) => pressed(name),
    async pressAt(index, name, text) {
      if (text !== undefined) await message.fill(text);
      await page.locator('#messages li').nth(index).getByText(name, { exact: true }).click();
    },
    threadId() {
      const id = new URL(page.url()).searchParams.get('thread');
      if (id === null) throw new Error('the page has no thread yet');
      return id;
    },
  };
}

/** Runs in the page. */
function isShown(expected: Partial<Shown>): boolean {
  const shown: { [respect: string]: unknown } = { ...globalThis.shown() };
  return Object.entries(expected).every(([key, value]) => JSON.stringify(shown[key]) === JSON.stringify(value));
}
