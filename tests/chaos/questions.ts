/**
 * A question says what the model is to answer, so that any number of runs share one model, and every token of an answer is
 * unlike every other: a lost, repeated or mixed piece shows.
 */
import { type ChatRequest, callTools, type Reply, type Step } from '#tests/support/fake-model-script.ts';

export interface Question {
  /** Unlike that of any other question; names the run in what the model and nodes are asked. */
  tag: string;
  tokens: number;
  /** Pause before each token. */
  delayMs: number;
  /** Calculations asked for, in parallel, before the answer. */
  tools: number;
  /** In the middle of its answer the model waits until this gate is released (`stage.model.release`). */
  gate?: string;
}

const QUESTION = /#(\S+) tokens=(\d+) delay=(\d+) tools=(\d+)(?: gate=(\S+))?/;

export function contentOf({ tag, tokens, delayMs, tools, gate }: Question): string {
  return `#${tag} tokens=${tokens} delay=${delayMs} tools=${tools}${gate === undefined ? '' : ` gate=${gate}`}`;
}

export function questionIn(content: unknown): Question | null {
  const [, tag, tokens, delay, tools, gate] = QUESTION.exec(typeof content === 'string' ? content : '') ?? [];
  if (tag === undefined) return null;
  const question = { tag, tokens: Number(tokens), delayMs: Number(delay), tools: Number(tools) };
  return gate === undefined ? question : { ...question, gate };
}

/** The question a model is asked, and how many AI messages have followed it. */
export function askedIn(request: ChatRequest): { question: Question; depth: number } | null {
  const at = request.messages.findLastIndex((message) => message.role === 'user');
  const question = questionIn(request.messages[at]?.content);
  if (question === null) return null;
  const depth = request.messages.slice(at).filter((message) => message.role === 'assistant').length;
  return { question, depth };
}

/** The model's part: tools first, when asked for, then the answer, each call with texts of its own. */
export function replyTo(request: ChatRequest, call: number): Reply {
  const asked = askedIn(request);
  if (asked === null) throw new Error('a request without a question of the chaos suite');
  const { question, depth } = asked;
  if (depth === 0 && question.tools > 0) {
    const calls = Array.from({ length: question.tools }, (_, index) => ({
      id: `call_${call}_${index}`,
      name: 'calculate',
      args: { expression: `${index}+1` },
    }));
    return callTools(calls);
  }
  const steps: Step[] = [];
  for (let index = 0; index < question.tokens; index += 1) {
    if (question.gate !== undefined && index === question.tokens >> 1) steps.push({ do: 'gate', gate: question.gate });
    if (question.delayMs > 0) steps.push({ do: 'delay', ms: question.delayMs });
    steps.push({ do: 'text', text: `${call}:${index} ` });
  }
  return { steps: [...steps, { do: 'finish', reason: 'stop' }] };
}

/** Why the text is not the whole answer of one model call, in one piece; null when it is. */
export function whyNotWhole(question: Pick<Question, 'tokens'>, text: string): string | null {
  const tokens = text.trim().split(' ');
  const [call] = (tokens[0] ?? '').split(':');
  for (const [index, token] of tokens.entries()) {
    if (token !== `${call}:${index}`) return `token ${index} is ${JSON.stringify(token)}, expected ${call}:${index}`;
  }
  return tokens.length === question.tokens ? null : `${tokens.length} tokens of ${question.tokens}`;
}
