/** What the fake model says: a reply is a list of steps, chosen per request by a function. */

/** The part of an OpenAI chat completion request that scripts and tests look at. */
export interface ChatRequest {
  model: string;
  messages: ChatRequestMessage[];
  stream?: boolean;
  stream_options?: { include_usage?: boolean };
  tools?: { type: string; function: { name: string; parameters?: unknown } }[];
  [key: string]: unknown;
}

export interface ChatRequestMessage {
  role: string;
  content?: unknown;
  tool_calls?: { id: string; function: { name: string; arguments: unknown } }[];
  tool_call_id?: string;
}

export interface TokenUsage {
  prompt_tokens: number;
  completion_tokens: number;
  total_tokens: number;
  [detail: string]: unknown;
}

/** One thing the model does. Everything but the ends sends one chunk, or waits. */
export type Step =
  | { do: 'text'; text: string }
  | { do: 'reasoning'; text: string; field?: 'reasoning_content' | 'reasoning' }
  /** Part of a tool call. The first part carries `id` and `name`; `args` is a piece of the arguments' JSON text. */
  | { do: 'tool_call'; index: number; id?: string; name?: string; args?: string }
  /** Several tool call parts in one chunk. */
  | { do: 'delta'; delta: Record<string, unknown> }
  | { do: 'finish'; reason: string }
  | { do: 'delay'; ms: number }
  /** Waits until the test calls `release(gate)`. */
  | { do: 'gate'; gate: string }
  /** Bytes as they are, to send what no model should: a malformed chunk, a comment. */
  | { do: 'raw'; bytes: string }
  /** An error object in the middle of the stream, as providers send it after the 200. */
  | { do: 'stream_error'; error: Record<string, unknown> }
  /** The socket is destroyed. */
  | { do: 'reset' }
  /** Nothing more is sent; the connection stays open until the client or the server closes it. */
  | { do: 'hang' }
  /** The body ends properly, but without a finish reason and without [DONE]. */
  | { do: 'cut' };

export interface Reply {
  steps: Step[];
  /** HTTP error instead of an answer: the status and the body as sent. */
  status?: number;
  headers?: Record<string, string>;
  body?: unknown;
  /** Pause before the first byte, headers included. */
  firstByteDelayMs?: number;
  /** Token counts and when they are told. Default: last. */
  usage?: TokenUsage | undefined;
  reportUsage?: 'last' | 'cumulative' | 'none';
  /** Id of the completion; every provider has its own idea of unique. */
  id?: string;
}

/** `index` counts the requests to this server from 0. */
export type Script = (request: ChatRequest, index: number) => Reply;

export const DEFAULT_USAGE: TokenUsage = { prompt_tokens: 11, completion_tokens: 7, total_tokens: 18 };

/** The text in word-like tokens; their concatenation is the text. */
export function tokensOf(text: string): string[] {
  return text.match(/\s*\S+|\s+$/g) ?? [];
}

/** A plain answer, one chunk per word. */
export function say(text: string, options: Partial<Reply> & { delayMs?: number } = {}): Reply {
  const { delayMs, ...reply } = options;
  const steps = tokensOf(text).flatMap<Step>((token) =>
    delayMs === undefined
      ? [{ do: 'text', text: token }]
      : [
          { do: 'delay', ms: delayMs },
          { do: 'text', text: token },
        ],
  );
  return { ...reply, steps: [...steps, { do: 'finish', reason: 'stop' }] };
}

export interface ScriptedCall {
  id: string;
  name: string;
  /** Arguments: an object, or the JSON text itself (which may be broken). */
  args: Record<string, unknown> | string;
}

/** An answer that calls tools, in parallel, the arguments split into pieces of `pieceChars`. */
export function callTools(calls: ScriptedCall[], options: Partial<Reply> & { pieceChars?: number } = {}): Reply {
  const { pieceChars = 5, ...reply } = options;
  const steps = calls.flatMap<Step>((call, index) => {
    const text = typeof call.args === 'string' ? call.args : JSON.stringify(call.args);
    const pieces: Step[] = [];
    for (let at = 0; at < text.length; at += pieceChars) {
      pieces.push({ do: 'tool_call', index, args: text.slice(at, at + pieceChars) });
    }
    return [{ do: 'tool_call', index, id: call.id, name: call.name, args: '' }, ...pieces];
  });
  return { ...reply, steps: [...steps, { do: 'finish', reason: 'tool_calls' }] };
}

/** An HTTP error with the body a provider would send. */
export function fail(status: number, body: unknown, headers: Record<string, string> = {}): Reply {
  return { status, body, headers, steps: [] };
}

/** The last message of the request, as text. */
export function lastText(request: ChatRequest): string {
  const content = request.messages.at(-1)?.content;
  return typeof content === 'string' ? content : JSON.stringify(content ?? '');
}

/**
 * What strict providers refuse with 400: an assistant message with tool calls that is not directly followed by one
 * tool message for each, or a tool message that answers no call. Returns what is wrong, or null.
 */
export function unpairedToolCalls(messages: ChatRequestMessage[]): string | null {
  let open = new Set<string>();
  for (const [position, message] of messages.entries()) {
    if (message.role === 'tool') {
      if (!open.delete(message.tool_call_id ?? '')) {
        return `messages[${position}]: tool message answers no preceding tool call (${message.tool_call_id})`;
      }
      continue;
    }
    if (open.size > 0) return `messages[${position}]: no tool message for tool_call_ids: ${[...open].join(', ')}`;
    open = new Set(message.tool_calls?.map((call) => call.id));
    const broken = message.tool_calls?.find((call) => typeof call.function.arguments !== 'string');
    if (broken !== undefined) return `messages[${position}]: arguments of ${broken.id} are not a string`;
  }
  return open.size > 0 ? `messages: no tool message for tool_call_ids: ${[...open].join(', ')}` : null;
}
