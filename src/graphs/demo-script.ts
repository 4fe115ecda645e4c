/** What the demo model says. */
import type { BaseMessage } from '@langchain/core/messages';

export interface DemoReply {
  text: string;
  toolCalls: { name: string; args: { [key: string]: string } }[];
}

const ADDRESS = /[\w.+-]+@[\w-]+(?:\.[\w-]+)+/g;
/** A number, then at least one operator and another number; parentheses anywhere. */
const ARITHMETIC = /[(\d][\d\s().]*(?:[-+*/^%×÷]\s*[(\d][\d\s().]*)+/;
const DEFAULT_ADDRESS = 'ada@example.com';
const INTRODUCTION =
  'I am the demo model of this server. No OPENAI_API_KEY and no OPENAI_BASE_URL is set, so I answer from a script.';
const HINT =
  'Ask me what 17 * 23 is to see a tool at work, or ask me to send an e-mail to ada@example.com to see an approval.';

/** The reply to the last message; `tools` are the names the model may call. */
export function demoReply(messages: BaseMessage[], tools: string[]): DemoReply {
  const results = trailingToolResults(messages);
  if (results.length > 0) return { text: `The tools have answered. ${results.join(' ')}`, toolCalls: [] };
  const question = messages.at(-1)?.text ?? '';
  const arithmetic = ARITHMETIC.exec(question)?.[0].trim();
  if (tools.includes('send_email') && /\be?-?mails?\b/i.test(question)) return emails(question);
  if (tools.includes('calculate') && arithmetic !== undefined) return calculation(arithmetic);
  return { text: `${INTRODUCTION} You said: “${excerpt(question)}”. ${HINT}`, toolCalls: [] };
}

function emails(question: string): DemoReply {
  const addresses = [...new Set(question.match(ADDRESS) ?? [DEFAULT_ADDRESS])];
  return {
    text: 'I will write that e-mail; it needs your approval first.',
    toolCalls: addresses.map((to) => ({
      name: 'send_email',
      args: { to, subject: 'A message from the demo model', body: `You asked: ${excerpt(question)}` },
    })),
  };
}

function calculation(arithmetic: string): DemoReply {
  const expression = arithmetic.replaceAll('×', '*').replaceAll('÷', '/');
  return { text: 'I will use the calculator.', toolCalls: [{ name: 'calculate', args: { expression } }] };
}

/** The tool results since the model last spoke, in order. */
function trailingToolResults(messages: BaseMessage[]): string[] {
  const from = messages.findLastIndex((message) => message.type !== 'tool') + 1;
  return messages.slice(from).map((message) => message.text);
}

function excerpt(text: string): string {
  const characters = [...text.replace(/\s+/g, ' ').trim()];
  return characters.length <= 200 ? characters.join('') : `${characters.slice(0, 200).join('')}…`;
}
