/**
 * `useStream` of LangGraph's clients in a real browser: a page of another origin, two server processes behind one address,
 * and a model that goes on when the test says so.
 */
import { Client } from '@langchain/langgraph-sdk';
import type { BrowserContext } from 'playwright-core';
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import { startBrowser, type TestBrowser } from '#tests/support/browser.ts';
import { type ChatTab, openChat, type TabOptions } from '#tests/support/chat-tab.ts';
import { type Cluster, startCluster } from '#tests/support/cluster.ts';
import { callTools, lastText, type Reply, type Script, type Step, say } from '#tests/support/fake-model-script.ts';
import { type PageServer, startPageServer } from '#tests/support/page-server.ts';
import { SDKS } from '#tests/support/sdks.ts';
import type { TestServer } from '#tests/support/server.ts';
import { startTcpProxy, type TcpProxy } from '#tests/support/tcp-proxy.ts';
import { until } from '#tests/support/until.ts';

let pages: PageServer;
let browser: TestBrowser;
/** One for all tests: each has tabs and a thread of its own, and nothing else is remembered. */
let context: BrowserContext;
let cluster: Cluster;
/** What the pages take for the server: it gives each connection to the next of the processes behind it. */
let front: TcpProxy;
let behind: TestServer[];
let api: string;
let client: Client;

beforeAll(async () => {
  [pages, browser] = await Promise.all([startPageServer(SDKS.map(({ name }) => name)), startBrowser()]);
  context = await browser.browser.newContext();
  const config = { server: { cors: { origins: [pages.origin] } } };
  cluster = await startCluster({ size: 2, model: { strict: true }, server: { config } });
  behind = [...cluster.servers];
  let connections = 0;
  front = await startTcpProxy({
    get port() {
      connections += 1;
      return Number(new URL(behind[connections % behind.length]?.url ?? '').port);
    },
  });
  api = `http://127.0.0.1:${front.port}`;
  client = new Client({ apiUrl: cluster.servers[0]?.url ?? '', callerOptions: { maxRetries: 0 } });
}, 400_000);
afterAll(async () => {
  await browser?.stop();
  await front?.close();
  await cluster?.stop();
  await pages?.stop();
});

let tabs: ChatTab[] = [];
afterEach(async () => {
  const closed = tabs;
  tabs = [];
  for (const { page } of closed) await page.close();
  expect(closed.flatMap(({ failures }) => failures)).toEqual([]);
});

/** The input, the message taken in, the end of what was to be done, and what was said. */
const STATES_OF_A_STOPPED_TURN = 4;

let gates = 0;
/** An answer in pieces; each but the first is said when the test calls `next`. */
function answer(...pieces: string[]): { reply: Reply; next(): void; text: string } {
  const first = gates;
  gates += pieces.length;
  const steps = pieces.flatMap((text, index): Step[] =>
    index === 0
      ? [{ do: 'text', text }]
      : [
          { do: 'gate', gate: `g${first + index}` },
          { do: 'text', text },
        ],
  );
  let said = 0;
  return {
    reply: { steps: [...steps, { do: 'finish', reason: 'stop' }] },
    next: () => cluster.model.release(`g${first + ++said}`),
    text: pieces.join(''),
  };
}
/** The model answers each message with what belongs to it. */
const replies =
  (byText: { [text: string]: Reply }): Script =>
  (request) =>
    byText[lastText(request)] ?? say(`answer to ${lastText(request)}`);

describe.each(SDKS)('useStream of $name', ({ name: sdk }) => {
  async function open(options: Pick<TabOptions, 'thread' | 'storage'> = {}): Promise<ChatTab> {
    const tab = await openChat(context, { page: pages.addressOf(sdk), api, ...options });
    tabs.push(tab);
    return tab;
  }

  test('a first message makes a thread, and its answer is shown as it is said', async () => {
    const { reply, next, text } = answer('one', ' two', ' three');
    cluster.model.setScript(reply);
    const tab = await open();
    await tab.say('hello');
    await tab.shows({ messages: ['human: hello', 'ai: one'], state: 'busy' });
    next();
    await tab.shows({ messages: ['human: hello', 'ai: one two'], state: 'busy' });
    next();
    await tab.shows({ messages: ['human: hello', `ai: ${text}`], state: 'idle', error: '', question: null });
    const renders = await tab.renders();
    expect(renders.filter((render) => !render.includes('ai: '))).toEqual([
      [],
      ['human: hello'],
      ['human: hello', 'ai: one'],
      ['human: hello', 'ai: one two'],
      ['human: hello', 'ai: one two three'],
    ]);
    expect((await client.threads.get(tab.threadId())).status).toBe('idle');
  });

  test('a page that is loaded again in mid-answer shows all of it, once', async () => {
    const { reply, next, text } = answer('one', ' two', ' three', ' four');
    cluster.model.setScript(reply);
    const tab = await open();
    await tab.say('hello');
    next();
    await tab.shows({ messages: ['human: hello', 'ai: one two'], state: 'busy' });
    const calls = cluster.model.calls.length;
    await tab.page.reload();
    await tab.shows({ messages: ['human: hello', 'ai: one two'], state: 'busy' });
    next();
    await tab.shows({ messages: ['human: hello', 'ai: one two three'], state: 'busy' });
    next();
    await tab.shows({ messages: ['human: hello', `ai: ${text}`], state: 'idle', error: '' });
    for (const [question, said, ...more] of await tab.renders()) {
      expect(['human: hello', undefined]).toContain(question);
      expect(`ai: ${text}`.startsWith(said ?? '')).toBe(true);
      expect(more).toEqual([]);
    }
    expect(cluster.model.calls).toHaveLength(calls);
  });

  test('stop ends the run; what was said stays, and the thread goes on at once', async () => {
    const { reply, next } = answer('one', ' two', ' three');
    cluster.model.setScript(replies({ hello: reply, next: say('fine') }));
    const tab = await open();
    await tab.say('hello');
    next();
    await tab.shows({ messages: ['human: hello', 'ai: one two'], state: 'busy' });
    await stop(tab, sdk);
    await tab.shows({ messages: ['human: hello', 'ai: one two'], state: 'idle', error: '', question: null });
    expect(await client.threads.getState(tab.threadId())).toMatchObject({ next: [], tasks: [] });
    await tab.say('next');
    const all = ['human: hello', 'ai: one two', 'human: next', 'ai: fine'];
    await tab.shows({ messages: all, state: 'idle', error: '' });
    const runs = await client.runs.list(tab.threadId());
    expect(runs.map(({ status }) => status)).toEqual(['success', 'interrupted']);
    await tab.page.reload();
    await tab.shows({ messages: all, state: 'idle', error: '' });
  });

  test('messages sent while an answer comes are answered after it, in their order', async () => {
    const { reply, next, text } = answer('one', ' two');
    cluster.model.setScript(replies({ first: reply }));
    const tab = await open();
    await tab.say('hello');
    await tab.shows({ messages: conversation('hello'), state: 'idle' });
    await tab.say('first');
    await tab.shows({ messages: [...conversation('hello'), 'human: first', 'ai: one'], state: 'busy' });
    await tab.say('second');
    await tab.say('third');
    next();
    const all = conversation('hello', ['first', text], 'second', 'third');
    await tab.shows({ messages: all, state: 'idle', error: '' });
    await tab.page.reload();
    await tab.shows({ messages: all, state: 'idle', error: '' });
  });

  test('runs queued on the server are shown one after the other', async () => {
    const { reply, next, text } = answer('one', ' two');
    cluster.model.setScript(replies({ first: reply }));
    const tab = await open();
    await tab.say('first');
    await tab.shows({ messages: ['human: first', 'ai: one'], state: 'busy' });
    for (const [index, queued] of ['second', 'third'].entries()) {
      await tab.say(queued, 'queue');
      await until(async () => (await client.runs.list(tab.threadId())).length === index + 2, { message: 'the run' });
    }
    expect((await client.runs.list(tab.threadId())).map(({ status }) => status)).toEqual([
      'pending',
      'pending',
      'running',
    ]);
    next();
    await tab.shows({ messages: conversation(['first', text], 'second', 'third'), state: 'idle', error: '' });
  });

  test('a question is asked, also after a reload, and answered with yes or no', async () => {
    const mail = { to: 'ada@example.com', subject: 'Hi', body: 'Hello' };
    cluster.model.setScript((request, index) =>
      request.messages.at(-1)?.role === 'tool'
        ? say(`done: ${lastText(request)}`)
        : callTools([{ id: `call-${index}`, name: 'send_email', args: mail }]),
    );
    const tab = await open();
    const question = 'Send this e-mail to ada@example.com?';
    const shown: string[] = [];
    for (const [decision, result] of [
      ['approve', 'Recorded for ada@example.com with the subject “Hi”. (This server sends no real mail.)'],
      ['reject', 'Not sent: the person said no.'],
    ] as const) {
      await tab.say(`${decision} this`);
      shown.push(`human: ${decision} this`, 'ai: ');
      await tab.shows({ messages: shown, question, state: 'idle', error: '' });
      await tab.page.reload();
      await tab.shows({ messages: shown, question, state: 'idle', error: '' });
      await tab.press(decision);
      shown.push(`tool: ${result}`, `ai: done: ${result}`);
      await tab.shows({ messages: shown, question: null, state: 'idle', error: '' });
    }
  });

  test('a message is written again; the former branch is still there, and can be gone on with', async () => {
    let answers = 0;
    cluster.model.setScript((request) => say(`${lastText(request)} ${++answers}`));
    const tab = await open();
    await tab.say('first');
    await tab.shows({ messages: ['human: first', 'ai: first 1'], state: 'idle' });
    await tab.say('second');
    const former = ['human: first', 'ai: first 1', 'human: second', 'ai: second 2'];
    await tab.shows({ messages: former, branches: ['', '', '', ''], state: 'idle' });

    await tab.pressAt(0, 'edit', 'other');
    const later = ['human: other', 'ai: other 3'];
    await tab.shows({ messages: later, branches: ['2/2', ''], state: 'idle', error: '' });
    await tab.pressAt(0, 'former');
    await tab.shows({ messages: former, branches: ['1/2', '', '', ''] });
    await tab.pressAt(0, 'later');
    await tab.shows({ messages: later, branches: ['2/2', ''] });

    await tab.pressAt(1, 'again');
    await tab.shows({ messages: ['human: other', 'ai: other 4'], branches: ['2/2', '2/2'], state: 'idle', error: '' });
    await tab.pressAt(1, 'former');
    await tab.shows({ messages: later, branches: ['2/2', '1/2'] });

    await tab.pressAt(0, 'former');
    await tab.shows({ messages: former });
    await tab.say('third');
    const gone = [...former, 'human: third', 'ai: third 5'];
    await tab.shows({ messages: gone, state: 'busy' });
    // When the run is over, the client turns to the branch that was begun last.
    await tab.shows({ messages: ['human: other', 'ai: other 4'], branches: ['2/2', '2/2'], state: 'idle', error: '' });
    await tab.page.reload();
    await tab.shows({ messages: ['human: other', 'ai: other 4'], branches: ['2/2', '2/2'], state: 'idle', error: '' });
    await tab.pressAt(0, 'former');
    await tab.shows({ messages: gone, branches: ['1/2', '', '', '', '', ''], state: 'idle', error: '' });
  });

  test('two tabs show the same run; one stops it, and the other sees its end', async () => {
    const { reply, next } = answer('one', ' two', ' three', ' four');
    cluster.model.setScript(reply);
    const [first, second] = await twoTabs('hello', next);
    next();
    for (const tab of [first, second])
      await tab.shows({ messages: ['human: hello', 'ai: one two three'], state: 'busy' });
    await stop(first, sdk);
    for (const tab of [second, first])
      await tab.shows({ messages: ['human: hello', 'ai: one two three'], state: 'idle', error: '', question: null });
    cluster.model.setScript(say('fine'));
    await second.say('next');
    await second.shows({ messages: ['human: hello', 'ai: one two three', 'human: next', 'ai: fine'], state: 'idle' });
  });

  test('a server that leaves in mid-answer: pages go on by themselves, with what they have', async () => {
    const { survivor, victim } = await twoServers();
    const { reply, next, text } = answer('one', ' two', ' three');
    cluster.model.setScript(reply);
    put(victim);
    const both = await twoTabs('hello', next);
    const calls = cluster.model.calls.length;
    behind = [survivor];
    victim.kill('SIGTERM');
    // A new connection is one that came back: the first have ended.
    await Promise.all(both.map(({ page }) => page.waitForRequest(/\/stream$|\/stream\?/)));
    next();
    for (const tab of both) await tab.shows({ messages: ['human: hello', `ai: ${text}`], state: 'idle', error: '' });
    expect(cluster.model.calls).toHaveLength(calls);
    expect(await victim.exit).toBe(0);
  });

  test('a server that is killed in mid-answer: pages go on by themselves, and show the answer once', async () => {
    const { survivor, victim } = await twoServers();
    const { reply, next, text } = answer('one', ' two', ' three');
    const again = answer('one', ' two', ' three');
    const call = cluster.model.calls.length;
    cluster.model.setScript((_request, index) => (index === call ? reply : again.reply));
    // Held still until the victim dies, so that it is the victim that executes the run.
    survivor.kill('SIGSTOP');
    put(victim);
    const both = await twoTabs('hello', next);
    behind = [survivor];
    survivor.kill('SIGCONT');
    victim.kill('SIGKILL');
    for (const tab of both) await tab.shows({ messages: ['human: hello', 'ai: one'], state: 'busy' });
    again.next();
    again.next();
    for (const tab of both) await tab.shows({ messages: ['human: hello', `ai: ${text}`], state: 'idle', error: '' });
  });

  /** One tab that has asked and one that has joined; both show `one two` of the answer. */
  async function twoTabs(text: string, next: () => void): Promise<[ChatTab, ChatTab]> {
    const first = await open({ storage: 'local' });
    await first.say(text);
    next();
    await first.shows({ messages: [`human: ${text}`, 'ai: one two'], state: 'busy' });
    const second = await open({ storage: 'local', thread: first.threadId() });
    await second.shows({ messages: [`human: ${text}`, 'ai: one two'], state: 'busy' });
    return [first, second];
  }
});

/** From now on these are behind the front; connections that the browser has kept are gone. */
function put(...servers: TestServer[]): void {
  behind = servers;
  front.resetAll();
}

/** One that has been there for a while, so that it judges who is dead, and one that may go; both are behind the front. */
async function twoServers(): Promise<{ survivor: TestServer; victim: TestServer }> {
  const [survivor] = cluster.servers;
  const [, second] = behind;
  const victim = second ?? (await cluster.add());
  if (survivor === undefined) throw new Error('two servers were asked for');
  behind = [survivor, victim];
  return { survivor, victim };
}

/**
 * Presses stop. The newer client then reads the thread, and shows what it reads: it is let do so when the server has been told
 * to stop, and then reads the end of the run.
 */
async function stop(tab: ChatTab, sdk: string): Promise<void> {
  const reads = sdk === SDKS[0].name;
  const told = tab.page.waitForResponse((response) => response.url().includes('/cancel'));
  await tab.page.route(/\/history$/, async (route) => {
    await told;
    await route.continue();
  });
  await tab.press('stop');
  expect((await told).status()).toBe(202);
  await tab.shows({ state: 'idle', states: reads ? STATES_OF_A_STOPPED_TURN : 0 });
}

/** What is shown of a conversation; a message without an answer of its own is answered by default. */
function conversation(...turns: (string | [string, string])[]): string[] {
  return turns.flatMap((turn) => {
    const [said, answered] = typeof turn === 'string' ? [turn, `answer to ${turn}`] : turn;
    return [`human: ${said}`, `ai: ${answered}`];
  });
}
