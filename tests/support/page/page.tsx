/**
 * A chat page as an application of `useStream` would have it. What it shows is told to the tests as one object (`shown`), and
 * all it has shown since it was loaded as a list (`renders`).
 *
 * The address says which server it speaks to (`api`), on which thread (`thread`), and where it remembers the run that it
 * follows (`storage`: `local` is shared by all tabs, `session` is a tab's own).
 */
import type { Message } from '@langchain/langgraph-sdk';
import { useStream } from '@langchain/langgraph-sdk/react';
import { useLayoutEffect, useState } from 'react';
import { createRoot } from 'react-dom/client';
import './shown.ts';

const ASSISTANT = 'chat';
const address = new URL(window.location.href);
const apiUrl = address.searchParams.get('api') ?? undefined;
const storage = address.searchParams.get('storage') === 'local' ? window.localStorage : window.sessionStorage;

interface Chat extends Record<string, unknown> {
  messages: Message[];
}
interface Question {
  question: string;
}

/** The thread is in the address, so that a reload finds it. */
function useThreadInAddress() {
  const [threadId, setThreadId] = useState(address.searchParams.get('thread'));
  const onThreadId = (id: string): void => {
    setThreadId(id);
    address.searchParams.set('thread', id);
    window.history.replaceState(null, '', address);
  };
  return { threadId, onThreadId };
}

function useChat() {
  const thread = useThreadInAddress();
  const stream = useStream<Chat, { InterruptType: Question }>({
    apiUrl,
    assistantId: ASSISTANT,
    ...thread,
    reconnectOnMount: () => storage,
    fetchStateHistory: { limit: 100 },
  });
  return { ...thread, stream };
}
type Stream = ReturnType<typeof useChat>['stream'];

const human = (content: string) => ({ type: 'human' as const, id: crypto.randomUUID(), content });

function ChatPage() {
  const { threadId, stream } = useChat();
  const [text, setText] = useState('');
  const written = (): ReturnType<typeof human> => {
    setText('');
    return human(text);
  };

  const send = (): void => {
    const message = written();
    void stream.submit(
      { messages: [message] },
      {
        optimisticValues: (shown) => ({ ...shown, messages: [...(shown.messages ?? []), message] }),
        // Whoever sends while an answer comes means the end of the thread, not the checkpoint that is shown.
        ...(stream.isLoading ? { multitaskStrategy: 'enqueue', checkpoint: null } : {}),
      },
    );
  };
  /** The server's own queue: the run waits there, and is followed when its turn has come. */
  const queue = async (): Promise<void> => {
    if (threadId === null) throw new Error('there is no thread to queue on');
    const { run_id } = await stream.client.runs.create(threadId, ASSISTANT, {
      input: { messages: [written()] },
      multitaskStrategy: 'enqueue',
      streamMode: ['values', 'messages-tuple'],
      streamResumable: true,
    });
    await stream.joinStream(run_id);
  };
  const answer = (resume: unknown): void => void stream.submit(null, { command: { resume } });

  useLayoutEffect(() => {
    globalThis.renders.push(globalThis.shown().messages);
  });

  return (
    <main>
      <ol id="messages">
        {stream.messages.map((message, index) => (
          <Line key={message.id ?? index} stream={stream} message={message} index={index} written={written} />
        ))}
      </ol>
      <p id="state">{stream.isLoading ? 'busy' : 'idle'}</p>
      <p id="error">{stream.error === undefined ? '' : String(stream.error)}</p>
      <p id="states">{stream.history.length}</p>
      {stream.interrupt === undefined ? null : <p id="question">{stream.interrupt.value?.question ?? 'breakpoint'}</p>}
      <input aria-label="message" value={text} onChange={(event) => setText(event.target.value)} />
      <Button name="send" onPress={send} />
      <Button name="queue" onPress={() => void queue()} />
      <Button name="stop" onPress={() => void stream.stop()} />
      <Button name="approve" onPress={() => answer({ action: 'approve' })} />
      <Button name="reject" onPress={() => answer({ action: 'reject' })} />
    </main>
  );
}

interface LineProps {
  stream: Stream;
  message: Message;
  index: number;
  written: () => Message;
}

/** A message, with what leads back to the point before it, and to the other branches that begin there. */
function Line({ stream, message, index, written }: LineProps) {
  const about = stream.getMessagesMetadata(message, index);
  const before = about?.firstSeenState?.parent_checkpoint;
  const from = before == null ? {} : { checkpoint: before };
  const branches = about?.branchOptions ?? [];
  const at = about?.branch === undefined ? -1 : branches.indexOf(about.branch);
  const turnTo = (branch: string | undefined): void => {
    if (branch !== undefined) stream.setBranch(branch);
  };
  return (
    <li data-branch={at === -1 ? '' : `${at + 1}/${branches.length}`}>
      <span>{`${message.type}: ${textOf(message)}`}</span>
      <Button name="edit" onPress={() => void stream.submit({ messages: [written()] }, from)} />
      <Button name="again" onPress={() => void stream.submit(undefined, from)} />
      <Button name="former" onPress={() => turnTo(branches[at - 1])} />
      <Button name="later" onPress={() => turnTo(branches[at + 1])} />
    </li>
  );
}

function Button({ name, onPress }: { name: string; onPress: () => void }) {
  return (
    <button type="button" onClick={onPress}>
      {name}
    </button>
  );
}

function textOf({ content }: Message): string {
  if (typeof content === 'string') return content;
  return content.map((part) => (part.type === 'text' ? part.text : `[${part.type}]`)).join('');
}

const all = (selector: string): Element[] => [...document.querySelectorAll(selector)];
const read = (selector: string): string | null => document.querySelector(selector)?.textContent ?? null;

globalThis.renders = [];
globalThis.shown = () => ({
  messages: all('#messages span').map((line) => line.textContent),
  branches: all('#messages li').map((line) => line.getAttribute('data-branch') ?? ''),
  state: read('#state'),
  error: read('#error'),
  states: Number(read('#states')),
  question: read('#question'),
});

const root = document.getElementById('root');
if (root === null) throw new Error('the page has no root');
createRoot(root).render(<ChatPage />);
