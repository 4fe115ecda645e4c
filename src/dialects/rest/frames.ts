/** The frames of the REST dialect's streams: `event` and `data` as clients get them. The web client shares these types. */
import type { Cursor } from '#src/events/cursor.ts';
import type {
  InterruptFacts,
  Json,
  Namespace,
  RunFailure,
  TerminalFacts,
  ToolCall,
  ToolCallChunk,
  Usage,
} from '#src/events/event.ts';

/** Where in the graph: left out at the root. */
interface Placed {
  ns?: Namespace;
}

export type RestFrameBody =
  /** First; again after a takeover, then with the ids of messages to forget. */
  | {
      event: 'metadata';
      data: { run_id: string; thread_id: string; turn_id: string | null; takeover: number; dropped?: string[] };
    }
  | { event: 'message_chunk'; data: Placed & { message_id: string; type: 'text' | 'reasoning'; delta: string } }
  | { event: 'tool_call_chunks'; data: Placed & { message_id: string; tool_call_chunks: ToolCallChunk[] } }
  | { event: 'tool_calls'; data: Placed & { message_id: string; tool_calls: ToolCall[] } }
  | {
      event: 'tool_call_result';
      data: Placed & {
        message_id: string;
        tool_call_id: string | null;
        name: string | null;
        status: string | null;
        content: Json;
      };
    }
  /** What a node wrote to the stream itself. */
  | { event: 'custom'; data: Placed & { data: Json } }
  | { event: 'usage'; data: Placed & { message_id: string; model: string | null; usage: Usage } }
  | { event: 'interrupt'; data: { interrupts: InterruptFacts[] } }
  | { event: 'retry'; data: { attempt: number; delay_ms: number; dropped: string[] } }
  | { event: 'error'; data: RunFailure }
  /** What came between cannot be replayed: read `/turns` again. The stream goes on. */
  | { event: 'resync_required'; data: { [key: string]: never } }
  /** Last. `interrupts`, `error` and `reason` are there when the run has them. */
  | {
      event: 'run_end';
      data: {
        status: TerminalFacts['status'];
        usage: Usage | null;
        interrupts?: InterruptFacts[];
        error?: RunFailure;
        reason?: string;
      };
    };

/** `id` is the cursor to reconnect with; only the last frame of an event has one. */
export type RestFrame = RestFrameBody & { id?: Cursor };
