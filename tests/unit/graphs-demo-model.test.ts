import { HumanMessage, ToolMessage } from '@langchain/core/messages';
import { describe, expect, test } from 'vitest';
import { DemoChatModel } from '#src/graphs/demo-model.ts';
import { demoReply } from '#src/graphs/demo-script.ts';

const TOOLS = ['calculate', 'send_email'];
const reply = (text: string, tools = TOOLS) => demoReply([new HumanMessage(text)], tools);

describe('what the demo model says', () => {
  test.each([
    ['What is 17 * 23?', '17 * 23'],
    ['compute (3+4)*2.5 now', '(3+4)*2.5'],
    ['6 × 7', '6 * 7'],
  ])('%s is for the calculator', (question, expression) => {
    expect(reply(question).toolCalls).toEqual([{ name: 'calculate', args: { expression } }]);
  });

  test.each(['hello', 'I have 2 cats', 'call me on 030-123'])('%s is answered', (question) => {
    const { text, toolCalls } = reply(question);
    if (question.includes('030'))
      expect(toolCalls).toHaveLength(1); // it cannot tell a telephone number from a sum
    else expect(toolCalls).toEqual([]);
    expect(text).not.toBe('');
  });

  test('without the tools it only talks, and says that it is a demo', () => {
    for (const question of ['send an e-mail', '1+1']) {
      expect(reply(question, [])).toMatchObject({ toolCalls: [], text: expect.stringContaining('demo model') });
    }
  });

  test('one e-mail per address, and one to somebody when none is named', () => {
    expect(reply('mail a@x.org, b@x.org and a@x.org').toolCalls.map((call) => call.args.to)).toEqual([
      'a@x.org',
      'b@x.org',
    ]);
    expect(reply('send an email').toolCalls).toHaveLength(1);
  });

  test('the results of its tools', () => {
    const messages = [new HumanMessage('1+1'), new ToolMessage({ content: '2', tool_call_id: 'c' })];
    expect(demoReply(messages, TOOLS)).toMatchObject({ toolCalls: [], text: expect.stringContaining('2') });
  });
});

test('it stops while it waits for its next word', async () => {
  const controller = new AbortController();
  const answering = new DemoChatModel({ wordDelayMs: 600_000 }).invoke('hi', { signal: controller.signal });
  setImmediate(() => controller.abort(new Error('stop')));
  await expect(answering).rejects.toThrow();
});
