/** The state of the graph `rounds`: what a server's checkpoints hold, and what the same graph makes in this process. */
import { AIMessage, type BaseMessage } from '@langchain/core/messages';
import { type BaseCheckpointSaver, MemorySaver } from '@langchain/langgraph';
import { openSaver } from '#src/graphs/checkpoints.ts';
import { type RoundsSettings, rounds } from './graphs/delta-rounds.ts';
import { testPool } from './pools.ts';

export interface RoundsState {
  /** Content of the AI messages, in order. */
  messages: string[];
  words: string[];
  plain: string[];
  round: number;
}

/** Of a lineage, as a server would read it now. */
export async function storedRounds(databaseUrl: string, lineageId: string): Promise<RoundsState> {
  const pool = testPool(databaseUrl, 1);
  try {
    // Reading needs no fence: the owner is nobody.
    const owner = { runId: lineageId, epoch: 0, metadata: {} };
    const { saver } = openSaver(pool, owner, () => undefined);
    return await stateOf(saver, lineageId, { rounds: 0, width: 0, slowestMs: 0 });
  } finally {
    await pool.end();
  }
}

/** Something done to a thread: a whole turn, or words put into its state as if the last node had said them. */
export type RoundsStep = 'turn' | { edit: string };

/** Of a thread to which this was done, in this process, without anything that could go wrong. */
export async function expectedRounds(settings: RoundsSettings, steps: RoundsStep[] = ['turn']): Promise<RoundsState> {
  const quiet = { ...settings, slowestMs: 0 };
  const saver = new MemorySaver();
  for (const [index, step] of steps.entries()) {
    if (step === 'turn') {
      const graph = rounds(configOf({ ...quiet, run_id: String(index) })).compile({ checkpointer: saver });
      await graph.invoke({ messages: [] }, { configurable: { thread_id: 'here' }, recursionLimit: 100 });
    } else await editRounds(saver, 'here', quiet, step.edit);
  }
  return stateOf(saver, 'here', quiet);
}

/** A state update by API: a message and words, as if the last node had said them. */
export async function editRounds(
  saver: BaseCheckpointSaver,
  threadId: string,
  settings: RoundsSettings,
  text: string,
): Promise<void> {
  const graph = rounds(configOf(settings)).compile({ checkpointer: saver });
  const values = { messages: [new AIMessage({ id: `edit ${text}`, content: text })], words: [text], plain: [text] };
  await graph.updateState({ configurable: { thread_id: threadId } }, values, 'joins');
}

async function stateOf(saver: BaseCheckpointSaver, threadId: string, settings: RoundsSettings): Promise<RoundsState> {
  const graph = rounds(configOf(settings)).compile({ checkpointer: saver });
  const { values } = (await graph.getState({ configurable: { thread_id: threadId } })) as {
    values: Omit<RoundsState, 'messages'> & { messages: BaseMessage[] };
  };
  const { messages, words, plain, round } = values;
  const told = messages.filter((message) => message.getType() === 'ai').map((message) => message.text);
  return { messages: told, words, plain, round };
}

function configOf(settings: RoundsSettings & { run_id?: string }): Parameters<typeof rounds>[0] {
  return { configurable: { ...settings } } as Parameters<typeof rounds>[0];
}
