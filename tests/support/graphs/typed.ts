/** Graphs whose state is known by its types alone, in every form in which a module may export one. Never run. */
import type { BaseMessage } from '@langchain/core/messages';
import { Annotation, entrypoint, MessagesAnnotation, START, StateGraph } from '@langchain/langgraph';
// @ts-expect-error There is no such type: it is anything.
import { inner, type Missing, makeInner } from './typed-parts.ts';

interface Place {
  /** As people call it. */
  name: string;
  opened: Date;
  position?: [x: number, y: number];
  inside: { rooms: number; owner: string | null };
  describe(): string;
}

interface Tree {
  value: number;
  children: Tree[];
}

type Json = string | number | boolean | null | Json[] | { [key: string]: Json };

interface Endless<T> {
  inner?: Endless<T[]>;
}

abstract class Shape {
  abstract readonly kind: string;
}
export class Circle extends Shape {
  readonly kind = 'circle';
  radius = 1;
  protected hidden = 2;
}
export class Square extends Shape {
  readonly kind = 'square';
  side = 1;
  get area(): number {
    return this.side ** 2;
  }
}

const State = Annotation.Root({
  ...MessagesAnnotation.spec,
  /** Where one is. */
  city: Annotation<string | undefined>(),
  mood: Annotation<'sad' | 'glad' | null>(),
  done: Annotation<boolean>(),
  count: Annotation<number | string>(),
  place: Annotation<Place>(),
  places: Annotation<Map<string, Place>>(),
  scores: Annotation<Record<string, number>>(),
  tags: Annotation<string[], string | string[]>({ reducer: (all, more) => all.concat(more), default: () => [] }),
  tree: Annotation<Tree>(),
  json: Annotation<Json>(),
  endless: Annotation<Endless<string>>(),
  shape: Annotation<Shape>(),
  either: Annotation<{ kind: 'a'; a: number } | { kind: 'b' } | 'none'>(),
  link: Annotation<URL>(),
  branded: Annotation<string & { readonly brand: 'id' }>(),
  missing: Annotation<Missing>(),
  anything: Annotation<unknown>(),
});
const Input = Annotation.Root({ question: Annotation<string>(), callback: Annotation<() => void>() });
const Output = Annotation.Root({ answer: Annotation<string>(), sources: Annotation<BaseMessage[]>() });
const Context = Annotation.Root({ model: Annotation<'small' | 'large'>(), depth: Annotation<number | undefined>() });

export const uncompiled = new StateGraph({ stateSchema: State, input: Input, output: Output }, Context)
  .addNode('one', () => ({ done: true }))
  .addEdge(START, 'one');
export const compiled = uncompiled.compile();
export const promised = Promise.resolve(compiled);
export const agent = { graph: compiled, invoke: () => undefined };
export function factory(_config: object) {
  return uncompiled;
}
export const asyncFactory = async (_config: object) => uncompiled.compile();
export { compiled as renamed };

const Plain = Annotation.Root({ plain: Annotation<string>() });
const builder = new StateGraph(Plain)
  .addNode('own', () => ({ plain: '' }))
  .addNode('direct', inner)
  .addNode({ made: makeInner(), wrong: (state: typeof Plain.State) => state })
  .addEdge(START, 'own');
builder.addNode([
  ['listed', new StateGraph(Plain).addNode('deep', inner).addEdge(START, 'deep').compile()],
  [
    'called',
    async (state: typeof Plain.State) => ({ plain: (await inner.invoke(state)).plain }),
    { subgraphs: [inner] },
  ],
]);
export const parent = builder.compile();
export const parentFactory = () => parent;

/** As graphs were defined before there were annotations. */
export const channels = new StateGraph<{ kept: string }>({ channels: { kept: null } })
  .addNode('step', () => ({ kept: '' }))
  .addEdge(START, 'step');

export const functional = entrypoint('functional', async (question: { text: string }) => question.text.length);

/** Its type has been given away. */
// biome-ignore lint/suspicious/noExplicitAny: that is the case
export const untyped: any = uncompiled.compile();
export const notAGraph = { nodes: [] };

/** With an error in its types. */
export const wrong = new StateGraph(Annotation.Root({ n: Annotation<number>() }))
  // @ts-expect-error A node that gives what the state has not.
  .addNode('bad', () => ({ n: 'text' }))
  .addEdge(START, 'bad');

throw new Error('the module was run');
