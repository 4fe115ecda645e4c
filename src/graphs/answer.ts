/** Which text of a run is its answer so far. */
import type { Json } from '#src/events/event.ts';
import { contentText, type MessageView } from './message-fields.ts';

/** A streamed AI message as far as the answer needs it. */
export interface StreamedText {
  id: string;
  text: string;
}

export interface AnswerFold {
  /** More text of a streamed message; its `text` holds all so far. */
  text(depth: number, message: StreamedText): void;
  /** A tool is called or has answered, or a person spoke: text before it is not the answer. */
  reset(depth: number): void;
  /** A complete message that a node returned or a model gave whole. */
  message(depth: number, message: MessageView): void;
  /** Forgets text that was only streamed. */
  forgetStreamed(): void;
  current(): { stream_id: string; content: Json } | null;
}

interface Level {
  whole: { stream_id: string; content: Json } | null;
  streamed: StreamedText | null;
}

/**
 * The answer is the last AI text after the last tool call, of the root graph if it has any, else of its subgraphs.
 * `depth` is the length of the namespace.
 * @param toContent the content of a message as JSON
 */
export function createAnswerFold(toContent: (content: unknown) => Json): AnswerFold {
  const root: Level = { whole: null, streamed: null };
  const nested: Level = { whole: null, streamed: null };
  const levelOf = (depth: number) => (depth === 0 ? root : nested);

  return {
    text(depth, message) {
      levelOf(depth).streamed = message;
    },
    reset(depth) {
      Object.assign(levelOf(depth), { whole: null, streamed: null });
    },
    message(depth, message) {
      const level = levelOf(depth);
      const type = message._getType();
      if (type === 'tool' || type === 'human' || (type === 'ai' && (message.tool_calls?.length ?? 0) > 0)) {
        Object.assign(level, { whole: null, streamed: null });
      } else if (type === 'ai' && message.id !== undefined && contentText(message.content) !== '') {
        level.whole = { stream_id: message.id, content: toContent(message.content) };
        level.streamed = null;
      }
    },
    forgetStreamed() {
      root.streamed = null;
      nested.streamed = null;
    },
    current: () => currentOf(root) ?? currentOf(nested),
  };
}

function currentOf(level: Level): { stream_id: string; content: Json } | null {
  if (level.streamed === null) return level.whole;
  return { stream_id: level.streamed.id, content: level.streamed.text };
}
