/** What tests say through LangGraph's own client, and how they read what it answers. */
import { Client } from '@langchain/langgraph-sdk';
import type { TestServer } from './server.ts';

/** A client of one server that tries nothing again. */
export function clientOf(server: Pick<TestServer, 'url'>, headers: Record<string, string> = {}): Client {
  return new Client({ apiUrl: server.url, apiKey: null, defaultHeaders: headers, callerOptions: { maxRetries: 0 } });
}

/** One frame as the client hands it out. */
export interface Part {
  id?: string | undefined;
  event: string;
  data: unknown;
}

/** All frames of a stream, to its end. @param seen is called with each as it comes */
export async function partsOf(stream: AsyncIterable<unknown>, seen?: (part: Part) => void): Promise<Part[]> {
  const parts: Part[] = [];
  for await (const part of stream) {
    parts.push(part as Part);
    seen?.(part as Part);
  }
  return parts;
}

/** The frames of a stream that its reader leaves as soon as it has seen enough. */
export async function partsUntil(
  open: (signal: AbortSignal) => AsyncIterable<unknown>,
  isEnough: (parts: readonly Part[]) => boolean,
): Promise<Part[]> {
  const leaving = new AbortController();
  const parts: Part[] = [];
  for await (const part of open(leaving.signal)) {
    parts.push(part as Part);
    if (isEnough(parts)) break;
  }
  leaving.abort();
  return parts;
}

export interface SaidMessage {
  id: string;
  type: string;
  content: unknown;
}

/** The messages of a state's values. */
export function messagesOf(values: unknown): SaidMessage[] {
  return (values as { messages?: SaidMessage[] } | null)?.messages ?? [];
}

export const textsOf = (values: unknown): unknown[] => messagesOf(values).map(({ content }) => content);

export const human = (content: string) => ({ messages: [{ role: 'human', content }] });
