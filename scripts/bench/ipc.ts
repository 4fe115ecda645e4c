/** Questions to a child process over its IPC channel, and their answers. */
import type { ChildProcess } from 'node:child_process';

interface Question {
  id: number;
  name: string;
  args: unknown;
}
interface Reply {
  id: number;
  value?: unknown;
  error?: string;
}

export type Handlers = { [name: string]: (args: never) => unknown };
export type Ask = <T>(name: string, args?: unknown) => Promise<T>;

/** In a child: answers the questions it knows; others are for another caller of this function. It ends with its parent. */
export function answerParent(handlers: Handlers): void {
  process.on('message', (question: Question) => {
    const handler = handlers[question.name];
    if (handler === undefined) return;
    // Deferred, so that a handler that throws at once is answered like one that rejects.
    Promise.resolve()
      .then(() => handler(question.args as never))
      .then(
        (value) => process.send?.({ id: question.id, value } satisfies Reply),
        (error: unknown) => process.send?.({ id: question.id, error: String((error as Error).stack) } satisfies Reply),
      );
  });
  process.on('disconnect', () => process.exit(1));
}

/** In the parent. A question to a child that ends before it has answered is rejected. */
export function askChild(child: ChildProcess): Ask {
  const waiting = new Map<number, PromiseWithResolvers<unknown>>();
  let last = 0;
  child.on('message', ({ id, value, error }: Reply) => {
    const question = waiting.get(id);
    waiting.delete(id);
    if (error === undefined) question?.resolve(value);
    else question?.reject(new Error(error));
  });
  child.on('exit', (code) => {
    for (const question of waiting.values()) question.reject(new Error(`the child ended with code ${code}`));
  });
  return <T>(name: string, args?: unknown) => {
    last += 1;
    const question = Promise.withResolvers<unknown>();
    waiting.set(last, question);
    child.send({ id: last, name, args } satisfies Question);
    return question.promise as Promise<T>;
  };
}
