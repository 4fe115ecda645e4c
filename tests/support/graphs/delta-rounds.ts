/**
 * Rounds of parallel nodes that write one delta channel and one plain channel, without a model. What the state is in the
 * end depends on nothing but the input's settings: whoever runs it, however often it is interrupted on the way.
 */
import { AIMessage, type BaseMessage } from '@langchain/core/messages';
import {
  Annotation,
  DeltaChannel,
  END,
  type Messages,
  messagesDeltaReducer,
  Send,
  START,
  StateGraph,
} from '@langchain/langgraph';
import type { GraphConfig } from '#src/graphs/registry.ts';

export interface RoundsSettings {
  rounds: number;
  /** Nodes at the same time in each round. */
  width: number;
  /** How long the slowest node takes; each takes another time, so that a superstep is cut with some of its writes in. */
  slowestMs: number;
}

interface Task {
  round: number;
  place: number;
}

const Rounds = Annotation.Root({
  messages: () => new DeltaChannel<BaseMessage[], Messages>(messagesDeltaReducer, { snapshotFrequency: 7 }),
  words: () =>
    new DeltaChannel<string[], string[]>((all, writes) => [...all, ...writes.flat()], { snapshotFrequency: 5 }),
  plain: Annotation<string[]>({ reducer: (all, more) => [...all, ...more], default: () => [] }),
  round: Annotation<number>(),
});

export function rounds(config: GraphConfig) {
  const { rounds: last, width, slowestMs } = config.configurable as unknown as RoundsSettings;
  // Every run says messages of its own.
  const runId = String(config.configurable.run_id ?? '');
  const tasks = (round: number): Send[] =>
    Array.from({ length: width }, (_, place) => new Send('works', { round, place } satisfies Task));

  return new StateGraph(Rounds)
    .addNode('opens', () => ({ round: 0 }))
    .addNode('works', async ({ round, place }: Task) => {
      const name = `${round}.${place}`;
      // The last ones of a round are not the last in the list.
      await new Promise((resolve) => setTimeout(resolve, (slowestMs * ((place * 7 + round * 3) % width)) / width));
      return { messages: [new AIMessage({ id: `${runId} ${name}`, content: name })], words: [name], plain: [name] };
    })
    .addNode('joins', ({ round }) => ({ round: round + 1, words: [`joined ${round}`] }))
    .addEdge(START, 'opens')
    .addConditionalEdges('opens', () => tasks(0), ['works'])
    .addEdge('works', 'joins')
    .addConditionalEdges('joins', ({ round }) => (round < last ? tasks(round) : END), ['works', END]);
}
